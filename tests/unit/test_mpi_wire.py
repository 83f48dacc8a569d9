"""What head, nodes and ranks say to each other, where it is not what it should be."""

from __future__ import annotations

import json
import os
import socket
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.channel import lines as wire
from launcher.channel.connection import read_peer
from launcher.core.frozen import replace
from launcher.core.wire import Garbled, pack, render, unpack
from launcher.core.wire import parse as parse_message
from launcher.failure.model import Cause, Verdict
from launcher.failure.record import render_json
from launcher.failure.report import render_text
from launcher.mpi import folder as job_folder
from launcher.mpi.folder import SOCKET, find_socket, folder_name, make_folder
from launcher.mpi.protocol import FROM_HEAD, FROM_NODE, FROM_RANK, Briefing, RankEnded, Started
from launcher.mpi.ranks import MpiNode
from launcher.mpi.reports import describe_places, explains, make_rank_event
from launcher.process.spawn import Child, Process
from tests.unit.test_verdict import OOM, PEER, SECRET, TRACEBACK, dead, judge

# --- lines


def test_a_message_is_one_line_whatever_it_holds() -> None:
    """Line ends of a traceback, of Unicode too, never end a message."""
    text = "one\ntwo\r\u2028three\x00\udcfe"
    packed = wire.pack({"text": text})
    assert packed.count(b"\n") == 1 and packed.isascii()
    assert list(wire.Lines().feed(packed)) == [{"text": text}]


GARBLED = [
    b"Welcome to node1!\n",
    b"[1, 2]\n",
    b'"text"\n',
    b"null\n",
    b"7\n",
    b"{'a': 1}\n",
    b'{"a": 1} x\n',
    b'\xff\xfe{"a": 1}\n',
    b'{"a": "\xff"}\n',
    b"[" * 100_000 + b"\n",
    b'{"a": ' * 100_000 + b"\n",
    b'{"a": ' + b"9" * 5000 + b"}\n",
    b"\x1b[2J\n",
]


@pytest.mark.parametrize("data", GARBLED, ids=lambda data: repr(data[:12]))
def test_what_is_no_object_is_refused(data: bytes) -> None:
    """A login's greeting, other JSON, other bytes, nested deeply: one kind of error, short and printable."""
    with pytest.raises(Garbled) as caught:
        list(wire.Lines().feed(b'{"is": "ready"}\n' + data))
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400


def test_a_line_without_an_end_is_refused_in_time() -> None:
    """Somebody who never ends a line gets no more than a MiB of our memory; a long verdict fits."""
    lines, piece = wire.Lines(), b"x" * wire.READ_BYTES
    with pytest.raises(Garbled, match=str(wire.LINE_LIMIT_BYTES)):
        for _ in range(wire.LINE_LIMIT_BYTES // wire.READ_BYTES + 1):
            list(lines.feed(piece))
    longest = {"verdict": "x" * (wire.LINE_LIMIT_BYTES - 100)}
    assert list(wire.Lines().feed(wire.pack(longest))) == [longest]


def test_what_stands_before_a_bad_line_is_heard() -> None:
    """As if the line had come later: where a pipe cuts is chance."""
    heard = wire.Lines().feed(b'{"is": "ready"}\nWelcome!\n')
    assert next(heard) == {"is": "ready"}
    with pytest.raises(Garbled):
        next(heard)


def test_a_line_in_small_pieces_takes_no_more_than_its_size() -> None:
    """Each piece had been kept as an object of its own, of 50 bytes and more."""
    lines = wire.Lines()
    tracemalloc.start()
    try:
        for _ in range(1 << 16):
            list(lines.feed(os.urandom(2).replace(b"\n", b"x")))
        assert tracemalloc.get_traced_memory()[0] < 1 << 18
    finally:
        tracemalloc.stop()


# --- messages

STARTED: dict[str, object] = {"is": "started", "rank": 0, "size": 2, "local_rank": 0, "pid": 7}
ENDED: dict[str, object] = {"is": "rankended", "rank": 0, "local_rank": 0, "status": 1, "code": 1, "pid": 7}
VALUES_OF: tuple[tuple[tuple[type, ...], dict[str, object], str, tuple[object, ...]], ...] = (
    (FROM_RANK, STARTED, "rank", (-2, "0", 0.0, True, None, 10**30, [0])),
    (FROM_RANK, STARTED, "size", (-2, "2", 1 << 25)),
    (FROM_NODE, ENDED, "status", (256, -1, "1", 1.5, None, 10**4000)),
    (FROM_NODE, ENDED, "code", (-65, 256, "SIGKILL")),
    (FROM_NODE, ENDED, "asked", (0, 65, "15")),
    (FROM_NODE, ENDED, "verdict", ({}, [], "x", {"first": None})),
    (FROM_NODE, ENDED, "why", (1, None, ["x"])),
    (FROM_NODE, {"is": "gone"}, "pid", ("x", 1.0, 1 << 70)),
    (FROM_NODE, {"is": "cannotserve"}, "why", (1, None)),
    (FROM_HEAD, {"is": "variable", "name": "A", "value": "b"}, "value", (1, ["x"])),
    (FROM_HEAD, {"is": "jobover"}, "status", (256, -1, "0", None)),
    (FROM_HEAD, {"is": "passon"}, "number", (0, 65, -9, "9", 10**30)),
    (FROM_HEAD, {"is": "briefing"}, "grace_s", (-1, "30", float("nan"), 1e300, True)),
    (FROM_HEAD, {"is": "briefing"}, "variables", ([], "x", {"A": 1}, {"A": ["x"]})),
    (FROM_HEAD, {"is": "briefing"}, "node_rank", ("0", -2, 1.0)),
)
MALFORMED: tuple[tuple[tuple[type, ...], dict[str, object]], ...] = (
    *((kinds, {**good, name: value}) for kinds, good, name, values in VALUES_OF for value in values),
    *((FROM_NODE, {key: ENDED[key] for key in ENDED if key != name}) for name in ENDED if name != "pid"),
    (FROM_HEAD, {"is": "passon"}),
    (FROM_HEAD, {"is": "jobover"}),
    (FROM_HEAD, {"is": ["jobover"], "status": 0}),
    (FROM_HEAD, STARTED),
    (FROM_RANK, {"is": "jobover", "status": 0}),
    (FROM_NODE, {}),
)


@pytest.mark.parametrize(("kinds", "packed"), MALFORMED, ids=range(len(MALFORMED)))
def test_a_message_that_is_none_is_refused(kinds: tuple[type, ...], packed: dict[str, object]) -> None:
    """Out of range, of another type, without a field, or of the other direction: one kind of error."""
    with pytest.raises(Garbled):
        unpack(packed, kinds)


def test_messages_arrive_as_they_were_sent() -> None:
    """Variables too, whatever bytes they have: a secret among them is the rank's, and not shown."""
    variables = {"LONG": "\udcff\x1b[2J", "TOKEN": SECRET, "GONE": None}
    sent = (
        Briefing("ab12", 0, 2, "10.0.0.4", 6105, 1.5, True, variables, "/a\nb", "/proc/1/fd/0"),
        RankEnded(3, 1, 137, -9, 15, verdict=judge(dead(3, -9)), pid=7),
        Started(-1, -1, -1, 7),
    )
    (*arrived,) = wire.Lines().feed(b"".join(wire.pack(pack(one)) for one in sent))
    assert [unpack(one, (*FROM_HEAD, *FROM_NODE)) for one in arrived] == [*sent]


# --- folders


@pytest.mark.parametrize("job", ["", "..", "../x", "a/b", "a.b", "a b", "ä", "a" * 65, "a\n", "a\0"])
def test_a_name_that_is_no_jobs_makes_no_path(job: str) -> None:
    """It stands on a command line, where anybody could have changed it."""
    with pytest.raises(Garbled):
        folder_name(job)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in which jobs have theirs."""
    monkeypatch.setattr(job_folder, "FOLDERS", (str(tmp_path / "missing"), str(tmp_path)))
    return tmp_path


def test_a_socket_is_found_in_a_folder_that_is_only_ours(base: Path) -> None:
    """Not in one that others can write or read, nor behind a link that somebody has put there."""
    assert find_socket("ab12") is None
    folder = base / folder_name("ab12")
    folder.mkdir(mode=0o700)
    assert find_socket("ab12") == f"{folder}/{SOCKET}"
    for mode in (0o750, 0o701, 0o777):
        folder.chmod(mode)
        assert find_socket("ab12") is None, oct(mode)
    folder.chmod(0o700)
    folder.rename(base / "elsewhere")
    folder.symlink_to(base / "elsewhere")
    assert find_socket("ab12") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_not_believed(base: Path) -> None:
    """In /tmp anybody can make one of that name before us."""
    folder = base / folder_name("ab12")
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    assert find_socket("ab12") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_nobody_takes_all_names_of_a_folder(base: Path) -> None:
    """The name of the job stands on its command line: who reads it there can be first everywhere."""
    taken = base / folder_name("ab12")
    for name in (taken, base / f"{taken.name}-0"):
        name.mkdir(mode=0o700)
        os.chown(name, 65534, 65534)
    folder = make_folder("ab12")
    assert find_socket("ab12") == f"{folder}/{SOCKET}"
    assert make_folder("ab12") == folder, "another launcher of the job finds it too"
    assert find_socket("ab1") is None


def test_who_is_at_the_other_end_is_the_kernels_word() -> None:
    """Pid and user, not what is said."""
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert read_peer(one) == (os.getpid(), os.geteuid())


# --- verdicts


def parse(record: object) -> Verdict | None:
    """Return a record as a verdict, None if it is none."""
    try:
        return parse_message(Verdict, record)
    except Garbled:
        return None


def travel(record: object) -> object:
    """Return a record as it arrives."""
    (message,) = wire.Lines().feed(wire.pack({"verdict": record}))
    return message["verdict"]


def test_a_verdict_arrives_as_it_was_given() -> None:
    """To the letter."""
    verdict = judge(
        dead(2, -9, stderr=f"epoch 3\ntoken {SECRET}\n{TRACEBACK}"),
        [dead(0, 1, 0.8)],
        [OOM, PEER, Cause("killed", "größe 漢字", "fix")],
        told="SIGTERM",
        leftovers=["pid 12 (python)"],
    )
    arrived = travel(render(verdict))
    assert isinstance(arrived, dict)
    assert parse(arrived) == verdict
    assert SECRET not in json.dumps(arrived)


EVIL = "\x1b[2J\x1b]0;owned\x07\r\u202egnp.exe\n\x9b31m\udcff"


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the way to every value in a record, lists and objects too."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def changed(path: tuple[str | int, ...], value: object) -> dict[str, object]:
    """Return a record with one value in place of what it has there."""
    record: dict[str, object] = json.loads(json.dumps(FULL))
    *way, last = path
    inner: object = record
    for key in way:
        inner = inner[key]  # type: ignore[index]
    inner[last] = value  # type: ignore[index]
    return record


FULL = json.loads(
    json.dumps(
        render(
            judge(dead(2, -9, stderr=f"epoch 3\n{TRACEBACK}"), [], [OOM, PEER], leftovers=["pid 12 (python)"])
        )
    )
)
VALUES = [
    EVIL,
    f"x {SECRET}",
    None,
    True,
    -1,
    10**30,
    1.5,
    float("nan"),
    float("inf"),
    [],
    [EVIL],
    {EVIL: EVIL},
]


@pytest.mark.parametrize("path", list(places(FULL)), ids=lambda path: ".".join(map(str, path)))
def test_no_record_gets_the_better_of_the_head(path: tuple[str | int, ...]) -> None:
    """Whatever stands in one place: refused, or shown without what a terminal obeys, and without secrets."""
    for value in VALUES:
        verdict = parse(changed(path, value))
        if verdict is None:
            continue
        for text in (render_text(verdict), render_json(verdict)):
            assert all(line.isprintable() for line in text.splitlines()), (path, value)
            assert SECRET not in text


@pytest.mark.parametrize("name", FULL)
def test_a_record_without_one_of_its_keys_is_refused(name: str) -> None:
    """None of them has a value of its own."""
    assert parse({key: value for key, value in FULL.items() if key != name}) is None


def test_what_is_there_besides_is_not_looked_at() -> None:
    """Not as a keyword of ours, nor as anything else."""
    assert parse({**FULL, EVIL: EVIL, "__class__": 1}) == parse(FULL) is not None


# --- nodes in words


def nodes(*states: tuple[str, int]) -> list[MpiNode]:
    """Return nodes by (host, ranks that have started)."""
    found = []
    for index, (host, started) in enumerate(states):
        node = MpiNode(index, host)
        node.started = {100 * index + rank: rank for rank in range(started)}
        found.append(node)
    return found


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ((), "0 started"),
        ((0, 0), "0 started"),
        ((1, 0), "1 started (1 on a)"),
        ((4, 0), "4 started, all on a"),
        ((0, 4), "4 started, all on b"),
        ((2, 1), "3 started (2 on a, 1 on b)"),
    ],
)
def test_where_ranks_have_started(counts: tuple[int, ...], said: str) -> None:
    """All on one node is what an mpirun does that does not see its hosts."""
    listed = nodes(*((host, count) for host, count in zip("abc", counts, strict=False)))
    assert describe_places(listed) == said


def test_ranks_on_a_thousand_nodes_are_one_line() -> None:
    """Not a node more than a person reads."""
    assert len(describe_places(nodes(*((f"node{i}", 2) for i in range(1000))))) < 400


SILENT = RankEnded(2, 0, 137, -9)
KNOWN_WHY = RankEnded(2, 0, 137, -9, verdict=judge(dead(2, -9)))


@pytest.mark.parametrize(
    ("code", "after_s", "end", "explained"),
    [
        (-9, 0.2, SILENT, True),
        (-9, 0.2, KNOWN_WHY, True),
        # What a killed mpirun had open is closed before anybody is told that it has ended.
        (-9, -0.01, SILENT, True),
        (-9, -0.01, KNOWN_WHY, False),
        (-9, -30.0, SILENT, False),
        (15, -0.1, SILENT, True),
        (137, -0.1, SILENT, False),
        (15, -0.1, KNOWN_WHY, False),
    ],
)
def test_whether_the_end_of_mpirun_explains_that_of_a_rank(
    code: int, after_s: float, end: RankEnded, explained: bool
) -> None:
    """A rank that was killed without a word follows mpirun that was killed, though we hear of it first."""
    ended_ns = 1_700_000_000_000_000_000
    event = replace(make_rank_event(MpiNode(1, "b"), end), at_ns=ended_ns + int(after_s * 1e9))
    mpirun = Process(Child(0, 0, ("mpirun",), {}), 1)
    mpirun.code, mpirun.ended_ns = code, ended_ns
    assert explains(mpirun, event) is explained
