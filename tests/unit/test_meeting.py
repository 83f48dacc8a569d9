"""The exchange of addresses before a job: whoever else comes to that port disturbs nobody."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET, create_connection, create_server, getaddrinfo, socket
from threading import Event, Thread

import pytest

from launcher.cluster.address_exchange import meet
from launcher.cluster.exchange_server import GUESTS
from launcher.core.errors import LauncherError
from launcher.core.model import Meeting
from launcher.machine.host import Host

WAIT_S = 3.0
FIRST, SECOND = "127.0.0.2", "127.0.0.1"
"""Where the first of them listens; where all others come from."""


def connect(port: int) -> socket:
    """Return a connection to the first launcher, as soon as it listens."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return create_connection((FIRST, port), 1)
        except OSError:
            assert time.monotonic() < deadline, "nobody listens"
            time.sleep(0.01)


def attend(port: int, member: int, count: int = 2, timeout_s: float = WAIT_S) -> tuple[str, ...] | str:
    """Return what one launcher is told, or what it says."""
    try:
        return meet(Meeting(FIRST, port, member, count, member, count, timeout_s))
    except LauncherError as error:
        return error.problems[0].what


@contextmanager
def first(count: int = 2, timeout_s: float = WAIT_S) -> Iterator[tuple[int, Future[tuple[str, ...] | str]]]:
    """Start the first launcher of a job; give its port, and what it is told."""
    port = Host().free_port()
    with ThreadPoolExecutor(1) as pool:
        yield port, pool.submit(attend, port, 0, count, timeout_s)


def say(port: int, text: bytes) -> socket:
    """Say something to the first launcher, and stay."""
    guest = connect(port)
    with suppress(OSError):
        guest.sendall(text)
    return guest


def word(member: int, count: int) -> bytes:
    """Return what a launcher says."""
    return json.dumps({"job": [count, count], "member": member, "node": member}).encode() + b"\n"


def drip(guest: socket, stop: Event) -> None:
    """Send a byte now and then, never a line."""
    with suppress(OSError):
        while not stop.wait(0.2):
            guest.send(b"x")


GARBAGE = (
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    b"[" * 100_000 + b"\n",
    b"x" * 300_000,
    b"\xff\x00\n",
    b"1\n",
    b"{}\n",
)


@pytest.mark.parametrize("text", GARBAGE, ids=range(len(GARBAGE)))
def test_a_stranger_holds_up_nobody(text: bytes) -> None:
    """Silent, or with something that is no word: the launchers meet beside it."""
    with first() as (port, told), say(port, text):
        began = time.monotonic()
        assert attend(port, 1) == told.result() == (FIRST, SECOND)
        assert time.monotonic() - began < WAIT_S


def test_one_that_never_ends_its_word_is_not_waited_for() -> None:
    """It sends a byte now and then: the time is over when it is over."""
    stop = Event()
    with first(timeout_s=1.5) as (port, told), connect(port) as guest:
        dripping = Thread(target=drip, args=(guest, stop))
        dripping.start()
        try:
            assert "did not come" in str(told.result(timeout=4.0))
        finally:
            stop.set()
            dripping.join()


def test_a_crowd_of_strangers_is_bounded() -> None:
    """Those who came first, and said nothing, must go; whoever says a word is heard."""
    with first(timeout_s=20.0) as (port, told):
        crowd = [connect(port) for _ in range(GUESTS + 20)]
        try:
            assert attend(port, 1, timeout_s=20.0) == told.result() == (FIRST, SECOND)
        finally:
            for guest in crowd:
                guest.close()


def reset(guest: socket) -> None:
    """End a connection as the kernel of a killed process does when words are unread."""
    guest.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    guest.close()


@pytest.mark.parametrize("leave", [reset, socket.close])
def test_a_launcher_that_came_and_died_is_missed(leave: Callable[[socket], None]) -> None:
    """It does not count any more: the others are not told of a node that is gone."""
    with first(count=3, timeout_s=1.0) as (port, told):
        leave(say(port, word(1, 3)))
        with say(port, word(2, 3)):
            assert "launchers 1 did not come" in str(told.result())


def test_a_launcher_that_is_started_anew_is_heard() -> None:
    """It takes the place of its predecessor."""
    with first() as (port, told), say(port, word(1, 3)):
        assert attend(port, 1) == told.result() == (FIRST, SECOND)
    with first(count=3, timeout_s=1.0) as (port, told), say(port, word(1, 3)), say(port, word(1, 3)):
        assert "launchers 2 did not come" in str(told.result())


def test_two_that_take_themselves_for_the_same_are_named() -> None:
    """Two nodes with one --node-rank: the third never comes, and that is why."""
    with first(count=3, timeout_s=1.0) as (port, told), say(port, word(1, 3)):
        other = create_connection((FIRST, port), 1, source_address=("127.0.0.3", 0))
        with other:
            other.sendall(word(1, 3))
            assert "launcher 1 came from 127.0.0.1 and from 127.0.0.3" in str(told.result())


ANSWERS = (
    b"[" * 100_000 + b"\n",
    b"\xff\x00\n",
    b"1\n",
    b'{"a": 1}\n',
    b'["\x1b[31m", "b"]\n',
    b"9" * 100_000 + b"\n",
)


@pytest.mark.parametrize("text", ANSWERS, ids=range(len(ANSWERS)))
def test_an_answer_of_somebody_else_is_none(text: bytes) -> None:
    """Another program at the master's port: asked again until the time is over; nothing of it is shown."""
    with create_server((FIRST, 0)) as server, ThreadPoolExecutor(1) as pool:
        server.settimeout(5.0)
        told = pool.submit(attend, server.getsockname()[1], 1, timeout_s=0.6)
        with suppress(TimeoutError):
            while not told.done():
                guest, _ = server.accept()
                with guest, suppress(OSError):
                    guest.recv(1000)
                    guest.sendall(text)
                server.settimeout(0.3)
        what = str(told.result())
    assert "nobody has answered there" in what and "\x1b" not in what


@pytest.mark.parametrize("address", ["::1", "127.0.0.1"])
def test_a_master_has_the_addresses_that_its_name_has(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Of IPv6 alone, too. The resolver is a fake: this machine has no such name, and may not be given one."""
    resolve = getaddrinfo
    monkeypatch.setattr(
        "socket.getaddrinfo", lambda host, *more: resolve(address if host == "master" else host, *more)
    )
    port = Host().free_port()
    meetings = [Meeting("master", port, member, 2, member, 2, 20.0) for member in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(meet, meetings)) == [("master", address)] * 2


TOKEN = "0123456789abcdef" * 2


def attend_with(token_file: Path, port: int, member: int, timeout_s: float = 20.0) -> tuple[str, ...] | str:
    """Return what one of two launchers with a token is told, or what it says."""
    try:
        return meet(Meeting(FIRST, port, member, 2, member, 2, timeout_s, token_file=str(token_file)))
    except LauncherError as error:
        return error.problems[0].what


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """Return the file of a job's token."""
    path = tmp_path / "token"
    path.write_text(TOKEN)
    return path


def test_with_a_token_only_those_who_know_it_are_believed(token_file: Path) -> None:
    """A stranger who says that it is node 1 is none of the job, whatever it sends."""
    port = Host().free_port()
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(attend_with, token_file, port, 0)
        for text in (word(1, 2), word(1, 2)[:-2] + b', "challenge": "a", "proof": "b"}\n'):
            with say(port, text) as stranger:
                assert b"challenge" in stranger.makefile("rb").readline()
        with say(port, word(1, 2)):
            assert attend_with(token_file, port, 1) == told.result() == (FIRST, SECOND)


def test_an_environment_holds_a_token_too(token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the same for all launchers of a job, whichever way each has it."""
    monkeypatch.setenv("LAUNCHER_TOKEN", TOKEN)
    with first(timeout_s=20.0) as (port, told):
        assert attend_with(token_file, port, 1) == told.result() == (FIRST, SECOND)


@pytest.mark.parametrize("other", ["another token of the job", None])
def test_launchers_with_different_tokens_say_so(token_file: Path, tmp_path: Path, other: str | None) -> None:
    """Both: the first names who came, the other what it looks for."""
    different = tmp_path / "different"
    different.write_text(other or "")
    port = Host().free_port()
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(attend_with, token_file, port, 0, 1.5)
        came = attend_with(different, port, 1, 1.0) if other else attend(port, 1, timeout_s=1.0)
        assert "nobody has answered there" in came and ("with the job's token" in came) == bool(other)
        assert f"{SECOND} came without the job's token" in str(told.result())


def test_a_first_launcher_without_the_token_is_not_the_first(token_file: Path) -> None:
    """It waits for a word, and the other for a challenge, as long as both have time."""
    with first(timeout_s=1.5) as (port, told):
        came = attend_with(token_file, port, 1, 1.0)
        assert "nobody has answered there with the job's token" in came
        assert "launchers 1 did not come" in str(told.result())


def test_an_answer_without_the_token_is_none(token_file: Path) -> None:
    """A stranger at the master's port sends a launcher nowhere."""
    with create_server((FIRST, 0)) as server, ThreadPoolExecutor(1) as pool:
        server.settimeout(5.0)
        told = pool.submit(attend_with, token_file, server.getsockname()[1], 1, 0.6)
        with suppress(TimeoutError):
            while not told.done():
                guest, _ = server.accept()
                with guest, suppress(OSError):
                    guest.sendall(b'{"challenge": "00"}\n')
                    guest.recv(1000)
                    guest.sendall(b'{"hosts": ["6.6.6.6", "6.6.6.7"], "proof": "00"}\n')
                server.settimeout(0.3)
        assert "nobody has answered there with the job's token" in str(told.result())
