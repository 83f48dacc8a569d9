"""The exchange of addresses before a job: whoever else comes to that port disturbs nobody."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from socket import SO_LINGER, SOL_SOCKET, create_connection, create_server, socket
from threading import Event, Thread

import pytest

from launcher.errors import LauncherError
from launcher.host import Host
from launcher.model import Meeting
from launcher.run.meeting import GUESTS, meet

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
