"""The exchange of addresses without a control channel: whoever else comes to that port disturbs nobody."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from random import Random
from socket import IPPROTO_TCP, SO_LINGER, SOL_SOCKET, TCP_NODELAY, create_connection, create_server, socket
from threading import Event, Thread

import pytest

from launcher.channel.frames import PREAMBLE, Answering, Calling, Sealed, at_port, make_key, name_job
from launcher.cluster import client
from launcher.cluster.address_exchange import meet
from launcher.cluster.agreed import pack_hosts, read_hosts
from launcher.cluster.join import Join
from launcher.cluster.messages import Start
from launcher.core.errors import LauncherError
from launcher.core.model import Meeting
from launcher.core.version import __version__
from launcher.core.wire import pack
from launcher.machine.host import Host

WAIT_S = 3.0
FIRST, SECOND = "127.0.77.2", "127.0.0.1"
"""Where the first of them listens; where all others come from."""


def connect(port: int, source: str = SECOND) -> socket:
    """Return a connection to the first launcher, as soon as it listens."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return create_connection((FIRST, port), 1, source_address=(source, 0))
        except OSError:
            assert time.monotonic() < deadline, "nobody listens"
            time.sleep(0.01)


def attend(
    port: int,
    member: int,
    count: int = 2,
    timeout_s: float = WAIT_S,
    environ: Mapping[str, str] | None = None,
    token_file: str = "",
) -> tuple[str, ...] | str:
    """Return what one launcher is told, or what it says."""
    try:
        meeting = Meeting(FIRST, port, member, count, member, count, timeout_s, token_file)
        return meet(meeting, environ or {})
    except LauncherError as error:
        return error.problems[0].what


@contextmanager
def first(
    count: int = 2, timeout_s: float = WAIT_S, **more: str
) -> Iterator[tuple[int, Future[tuple[str, ...] | str]]]:
    """Start the first launcher of a job; give its port, and what it is told."""
    port = Host().free_port()
    with ThreadPoolExecutor(1) as pool:
        yield port, pool.submit(attend, port, 0, count, timeout_s, **more)  # type: ignore[arg-type]


def say(port: int, text: bytes) -> socket:
    """Say something to the first launcher, and stay."""
    peer = connect(port)
    with suppress(OSError):
        peer.sendall(text)
    return peer


class ScriptedPeer:
    """A launcher that has the key, and says what a test wants."""

    def __init__(self, port: int, said: Mapping[str, object], source: str = SECOND) -> None:
        self.socket = connect(port, source)
        self.socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        calling = Calling(at_port(make_key(None, name_job({}, port)), port))
        self.socket.sendall(calling.call)
        while calling.sealed is None:
            data = self.socket.recv(4096)
            assert data, "it has hung up"
            self.socket.sendall(calling.feed(data))
        self.sealed: Sealed = calling.sealed
        self.socket.sendall(self.sealed.pack(said))

    def hear(self) -> list[dict[str, object]]:
        """Return what it is told, until the first one hangs up."""
        heard: list[dict[str, object]] = []
        with suppress(OSError):
            while data := self.socket.recv(4096):
                heard += self.sealed.feed(data)
        return heard

    def __enter__(self) -> ScriptedPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def word(member: int, count: int, session: str = "", host: str | None = None) -> dict[str, object]:
    """Return what a launcher says."""
    session = session or f"{member:x}"
    return pack(Join(member, session, node=member, host=host, launcher=__version__, node_count=count))


def drip(peer: socket, stop: Event) -> None:
    """Send a byte now and then, never a line."""
    with suppress(OSError):
        while not stop.wait(0.2):
            peer.send(b"l")


GARBAGE = (
    *(b"", b"GET / HTTP/1.1\r\n\r\n"),
    b"[" * 100_000 + b"\n",
    PREAMBLE + bytes(100_000),
    *(b"\xff\x00\n", b'{"job": [2, 2], "member": 1, "node": 1}\n', PREAMBLE),
)


@pytest.mark.parametrize("text", GARBAGE, ids=range(len(GARBAGE)))
def test_a_stranger_holds_up_nobody(text: bytes) -> None:
    """Silent, or with something that is no word: the launchers meet beside it."""
    with first() as (port, told), say(port, text):
        began = time.monotonic()
        assert attend(port, 1) == told.result() == (FIRST, SECOND)
        assert time.monotonic() - began < WAIT_S


MALFORMED: tuple[dict[str, object], ...] = (
    {},
    {"is": "join"},
    {**word(1, 2), "rank": -1},
    {**word(1, 2), "rank": "1"},
    {**word(1, 2), "rank": 10**4000},
    {**word(1, 2), "node": True},
    {**word(1, 2), "session": 7},
    {**word(1, 2), "is": "welcome"},
)


@pytest.mark.parametrize("said", MALFORMED, ids=range(len(MALFORMED)))
def test_a_launcher_that_says_what_cannot_be_is_refused(said: dict[str, object]) -> None:
    """It has the key, and its connection ends; the job goes on."""
    with first() as (port, told), ScriptedPeer(port, said) as peer:
        assert peer.hear() == []
        assert attend(port, 1) == told.result() == (FIRST, SECOND)


@pytest.mark.slow
def test_launchers_of_another_size_are_told_so() -> None:
    """One that was started with another --nnodes: as in the roll call of a job, all are told."""
    with first(count=3, timeout_s=1.5) as (port, told):
        came = str(attend(port, 1, count=2, timeout_s=1.0))
        assert came == told.result()
        assert came.startswith("the nodes cannot work together, because they differ in: number of nodes")


@pytest.mark.slow
def test_one_that_never_ends_its_word_is_not_waited_for() -> None:
    """It sends a byte now and then: the time is over when it is over."""
    stop = Event()
    with first(timeout_s=1.5) as (port, told), connect(port) as peer:
        dripping = Thread(target=drip, args=(peer, stop))
        dripping.start()
        try:
            assert "1 of 2 nodes did not join within 1.5 s: node 1" in str(told.result(timeout=4.0))
        finally:
            stop.set()
            dripping.join()


@pytest.mark.slow
def test_it_listens_at_the_address_of_the_cluster_alone() -> None:
    """Not at another one of this machine."""
    with first(timeout_s=1.0) as (port, _), connect(port), pytest.raises(ConnectionRefusedError):
        create_connection(("127.0.0.1", port), 1)


def reset(peer: socket) -> None:
    """End a connection as the kernel of a killed process does when words are unread."""
    peer.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


@pytest.mark.slow
@pytest.mark.parametrize("leave", [reset, socket.close])
def test_a_launcher_that_came_and_died_is_missed(leave: Callable[[socket], None]) -> None:
    """It does not count any more: the others are not told of a node that is gone."""
    with first(count=3, timeout_s=1.0) as (port, told):
        leave(ScriptedPeer(port, word(1, 3)).socket)
        with ScriptedPeer(port, word(2, 3)):
            assert "1 of 3 nodes were lost within 1 s: node 1: it had joined, and " in str(told.result())


@pytest.mark.slow
def test_a_launcher_that_comes_again_is_the_same() -> None:
    """One that is started anew is heard; what it had before is dead."""
    # Its predecessor has gone.
    with first(count=3) as (port, told):
        ScriptedPeer(port, word(1, 3)).socket.close()
        with ScriptedPeer(port, word(2, 3), "127.0.0.3"):
            assert attend(port, 1, 3) == told.result() == (FIRST, SECOND, "127.0.0.3")
    # What it had before is dead, as far as it knows.
    with (
        first(count=3, timeout_s=1.0) as (port, told),
        ScriptedPeer(port, word(1, 3)) as before,
        ScriptedPeer(port, word(1, 3)),
    ):
        assert [one["is"] for one in before.hear()] == ["welcome"]
        assert "1 of 3 nodes did not join within 1 s: node 2" in str(told.result())


@pytest.mark.slow
def test_two_that_take_themselves_for_the_same_are_named() -> None:
    """Two nodes with one --node-rank: as in the roll call of a job, all are told, and both are named."""
    with first(count=3, timeout_s=5.0) as (port, told), ScriptedPeer(port, word(1, 3)) as known:
        with ScriptedPeer(port, word(1, 3, "ab", host="twin"), "127.0.0.3") as twin:
            refusals = [one for one in (*known.hear(), *twin.hear()) if one["is"] == "refuse"]
        assert len(refusals) == 2
        for what in (*(one["what"] for one in refusals), told.result()):
            assert what == "two nodes claim to be node 1: None (127.0.0.1), and twin (127.0.0.3)"


ANSWERS = (b"[" * 100_000 + b"\n", b"\xff\x00\n", b'["\x1b[31m", "b"]\n', bytes(64), os.urandom(100_000))


@pytest.mark.slow
@pytest.mark.parametrize("text", ANSWERS, ids=range(len(ANSWERS)))
@pytest.mark.parametrize("environ", [{}, {"LAUNCHER_TOKEN": "0123456789abcdef"}], ids=["", "token"])
def test_an_answer_of_something_else_is_none(text: bytes, environ: dict[str, str]) -> None:
    """Another program at the master's port: asked again until the time is over; nothing of it is shown."""
    with create_server((FIRST, 0)) as server, ThreadPoolExecutor(1) as pool:
        server.settimeout(5.0)
        told = pool.submit(attend, server.getsockname()[1], 1, 2, 0.6, environ)
        with suppress(TimeoutError):
            while not told.done():
                peer, _ = server.accept()
                with peer, suppress(OSError):
                    peer.recv(1000)
                    peer.sendall(text)
                server.settimeout(0.3)
        what = str(told.result())
    assert f"node 0 has sent no addresses within 0.6 s: {FIRST} port" in what and "\x1b" not in what


class Impostor:
    """Something with the key of a job without a token, that answers with what is no list of addresses."""

    def __init__(self, *said: Mapping[str, object]) -> None:
        self.said, self.server = said, create_server((FIRST, 0))
        self.server.settimeout(5.0)
        self.port = self.server.getsockname()[1]

    def answer(self) -> None:
        """Answer one launcher."""
        peer, _ = self.server.accept()
        answering = Answering(at_port(make_key(None, name_job({}, self.port)), self.port))
        with peer, suppress(OSError):
            while answering.sealed is None:
                peer.sendall(answering.feed(peer.recv(4096)))
            for one in self.said:
                peer.sendall(answering.sealed.pack(one))
            while peer.recv(4096):
                pass


def start(hosts: object) -> dict[str, object]:
    """Return a start signal."""
    return pack(Start(hosts=hosts))


WRONG: tuple[object, ...] = (
    None,
    ["a", "b"],
    "a,b",
    "\x1b[31m",
    *(pack_hosts(one) for one in ([], ["a"], ["a", "b", "c"], ["a", "a"], ["\x1b[31m", "b"])),
    pack_hosts(["a", "x" * (1 << 21)]),
    "AAAA",
)


@pytest.mark.parametrize("hosts", WRONG, ids=range(len(WRONG)))
def test_a_list_that_is_none_is_not_believed(hosts: object) -> None:
    """It has the key, but nothing of it gets into TF_CONFIG or the log; no traceback."""
    impostor = Impostor(start(hosts))
    with impostor.server, ThreadPoolExecutor(1) as pool:
        told = pool.submit(attend, impostor.port, 1, 2, 2.0)
        impostor.answer()
        what = str(told.result())
    assert "the start signal does not have the address of each node: " in what and "\x1b" not in what


def test_more_addresses_than_tensorflow_can_take_fit_into_a_frame() -> None:
    """A variable has 128 KiB at most: TF_CONFIG of 6,900 nodes, of 2,700 by IPv6."""
    random = Random(7)
    short = [str(IPv4Address(10 << 24 | random.getrandbits(24))) for _ in range(6900)]
    long = [str(IPv6Address(0xFD00_1234_5678_9ABC << 64 | random.getrandbits(64))) for _ in range(2700)]
    for hosts in (list(dict.fromkeys(short)), long):
        assert read_hosts(Start(hosts=pack_hosts(hosts)), len(hosts)) == tuple(hosts)
    with pytest.raises(ValueError, match="too many addresses"):
        pack_hosts(os.urandom(16).hex() for _ in range(5000))


TOKEN = "0123456789abcdef" * 2


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """Return the file of a job's token."""
    path = tmp_path / "token"
    path.write_text(TOKEN)
    return path


def test_an_environment_holds_a_token_too(token_file: Path) -> None:
    """It is the same for all launchers of a job, whichever way each has it."""
    with first(timeout_s=20.0, token_file=str(token_file)) as (port, told):
        assert attend(port, 1, environ={"LAUNCHER_TOKEN": TOKEN}) == told.result() == (FIRST, SECOND)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["another token of the job", ""])
def test_launchers_with_different_tokens_say_so(token_file: Path, other: str) -> None:
    """Both: the first names who came, the other what it looks for."""
    with first(timeout_s=1.5, token_file=str(token_file)) as (port, told):
        came = str(attend(port, 1, timeout_s=1.0, environ={"LAUNCHER_TOKEN": other} if other else {}))
        assert "a launcher with another token, or of another job, or something else listens there" in came
        assert "turned away 127.0.0.1: has another token, or is of another job" in str(told.result())


@pytest.mark.slow
def test_launchers_of_two_jobs_are_kept_apart() -> None:
    """By what the platform calls them, as on the control channel."""
    environ = {"SLURM_JOB_ID": "7"}
    port = Host().free_port()
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(attend, port, 0, 2, WAIT_S, environ)
        assert "or of another job" in str(attend(port, 1, timeout_s=0.5, environ={"SLURM_JOB_ID": "8"}))
        assert attend(port, 1, environ=environ) == told.result() == (FIRST, SECOND)


def test_a_launcher_is_one_member_only(capfd: pytest.CaptureFixture[str]) -> None:
    """One that has joined already joins again with another number: it is turned away, and the job goes on."""
    with first(count=3) as (port, told), ScriptedPeer(port, word(2, 3), "127.0.0.3"):
        with ScriptedPeer(port, word(1, 3, "2")) as again:
            assert again.hear() == []
        assert attend(port, 1, 3) == told.result() == (FIRST, SECOND, "127.0.0.3")
    assert "internal launcher error" not in capfd.readouterr().err


def test_a_name_may_resolve_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The container of the first launcher starts late: its name is asked for again, without a fork."""
    answers = iter([(), ("127.0.77.9",), (FIRST,)])
    monkeypatch.setattr(client, "read_address", lambda name: ())
    monkeypatch.setattr(client, "resolve", lambda name: next(answers, (FIRST,)))
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a fork"))
    with first(timeout_s=20.0) as (port, told):
        assert meet(Meeting("node0", port, 1, 2, 1, 2, 20.0), {}) == told.result() == (FIRST, SECOND)
