"""Whatever comes to node 0's control port: no fault of ours, no job disturbed, memory bounded, counted."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.channel.acceptor import NAMED_MAX, PENDING_MAX
from launcher.channel.frames import FRAME_LIMIT_BYTES, PREAMBLE, Calling
from launcher.cluster.connect import REFUSED, ConnectAttempt
from launcher.cluster.messages import FROM_COORDINATOR, Over, Start
from launcher.core.wire import LINE_LENGTH, pack, unpack
from launcher.core.wire import render as render_message
from launcher.preemption.events import ANNOUNCED
from launcher.process.loop import Loop
from tests.fuzz.frames import seal
from tests.process.flooding import flood as flooded
from tests.process.hubs import ADDRESS, KEY, WAIT_S, Caller, LiveHub, exited, live_hub, make_join
from tests.process.looking import wait_for
from tests.unit.test_verdict import dead, judge

QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
"""Some seconds for each test, on a machine that is busy with others."""
TEXT = st.text(st.characters(exclude_categories=()), max_size=40)
NUMBERS = st.one_of(st.integers(-3, 5), st.integers(), st.just(10**4000), st.floats(), st.booleans())
LEAVES = st.one_of(st.none(), NUMBERS, TEXT)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
)
KINDS = st.sampled_from(
    [
        *("join", "beat", "failed", "received", "exited", "left", "ask", "reply", "machinenotice", "start"),
        *("over", ""),
    ]
)
NAMES = ("rank", "session", "mono_ns", "kind", "at_ns", "status", "what", "asked", "called", "code", "pid")
MORE = (
    *("node", "event", "attempt", "facts", "local_rank", "number", "name", "record", "body", "host"),
    *("addresses", "settings", "node_count", "x"),
)
EVENT = {
    "node": 1,
    "kind": "rank",
    "at_ns": 1,
    "status": 1,
    "what": "it exited",
    "facts": {"rank": 1, "local_rank": 0, "pid": 7, "code": 1},
}
GOOD: dict[str, dict[str, object]] = {
    "failed": {"node": 1, "attempt": 0, "event": EVENT},
    "received": {"node": 1, "number": 15, "name": "SIGTERM"},
    "exited": {"node": 1, "status": 1, "attempt": 0, "record": None},
    "ask": {"number": 1, "what": "x"},
    "reply": {"number": 1, "answer": None},
    "machinenotice": {"kind": ANNOUNCED, "what": "x", "left_ms": 1},
}
"""What nodes say, so that not all is refused for what is missing."""


@st.composite
def messages(draw: st.DrawFn) -> dict[str, object]:
    """Return something like a message of a node."""
    kind = draw(KINDS)
    base = dict(GOOD.get(kind, {})) if draw(st.booleans()) else {}
    changed = draw(st.dictionaries(st.sampled_from(NAMES + MORE), VALUES, max_size=4))
    return {**base, **changed, "is": kind}


def render(message: object) -> bytes:
    """Return a message as the JSON of a frame, with whatever Python's own would not write."""
    return json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")[:FRAME_LIMIT_BYTES]


def say_raw(caller: Caller, data: bytes) -> None:
    """Send bytes in a frame whose seal is right."""
    with contextlib.suppress(OSError):
        caller.socket.sendall(seal(caller.sealed, data))


@pytest.fixture(scope="module")
def hub() -> Iterator[LiveHub]:
    """Return a node 0 whose job runs: its other node has said hello."""
    with live_hub(2) as live:
        member = Caller(live.port)
        member.say(make_join(1, 2))
        member.hear("start")
        yield live
        # The job is as it was: the same node, still let in, still heard.
        assert live.faults == []
        member.say({"is": "beat", "sent": 1.5})
        assert member.hear("beat")["sent"] == 1.5
        assert sorted(live.hub.members.by_index) == [0, 1]
        assert live.hub.members.by_index[1].connection is not None
        assert live.told == [pack(Start(master_port=6105))]
        member.socket.close()


def call(port: int) -> socket.socket:
    """Return a connection of somebody without the key."""
    return socket.create_connection((ADDRESS, port), WAIT_S)


@QUICK
@given(st.lists(st.one_of(st.binary(max_size=200), st.just(PREAMBLE), st.just(bytes(32))), max_size=6))
def test_bytes_at_the_door_disturb_nothing(hub: LiveHub, pieces: list[bytes]) -> None:
    """Garbage, halves of a handshake, and hanging up in the midst of one."""
    with call(hub.port) as caller, contextlib.suppress(OSError):
        for piece in pieces:
            caller.sendall(piece)
    assert hub.faults == []


@QUICK
@given(st.lists(st.one_of(st.binary(max_size=64), messages().map(render)), max_size=6), st.integers(0, 4))
def test_frames_of_who_has_the_key_disturb_nothing(hub: LiveHub, frames: list[bytes], rank: int) -> None:
    """The job has begun: a further node, or a second one with a rank, is told that it comes too late."""
    caller = Caller(hub.port)
    caller.say({**make_join(rank, 2), "session": "another"})
    for frame in frames:
        say_raw(caller, frame)
    caller.drain()
    assert hub.faults == []


@settings(parent=QUICK, max_examples=40)
@given(st.lists(st.one_of(st.binary(max_size=64), messages().map(render)), min_size=1, max_size=8))
def test_frames_of_a_node_of_the_job_are_no_fault_of_ours(frames: list[bytes]) -> None:
    """A node that was taken over can end its job. It cannot make node 0 fail, nor keep it from an end."""
    with live_hub(2) as live:
        caller = Caller(live.port)
        caller.say(make_join(1, 2))
        caller.hear("start")
        for frame in frames:
            say_raw(caller, frame)
        caller.drain()
        last = Caller(live.port)
        last.say(make_join(1, 2))
        last.say({"is": "exited", "node": 1, "status": 0, "attempt": 0})
        last.hear("start")
        live.hear_own(exited(0))
        assert last.hear("over")
        assert live.faults == []
        last.socket.close()


@settings(parent=QUICK, max_examples=40)
@given(st.lists(st.tuples(st.dictionaries(st.sampled_from(NAMES + MORE), VALUES, max_size=5), st.booleans())))
def test_hellos_before_the_start_are_no_fault_of_ours(hellos: list[tuple[dict[str, object], bool]]) -> None:
    """Refused, or a reason not to start; and some hang up at once."""
    with live_hub(3) as live:
        for more, stays in hellos[:6]:
            caller = Caller(live.port)
            say_raw(caller, render({**make_join(1, 3), **more}))
            if not stays:
                linger = struct.pack("ii", 1, 0)
                caller.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)  # a reset, not an end
            caller.socket.close()
        wait_for(lambda: len(live.hub.acceptor) == 0, "all are read")
        assert live.faults == []
        assert set(live.hub.members.by_index) - {0, 1, 2} == set() or live.told


def test_a_record_that_no_frame_holds_keeps_nobody_waiting() -> None:
    """It fits as it comes, and not as it would be passed on: so much of it is passed on as does."""
    with live_hub(2) as live:
        caller = Caller(live.port)
        caller.say(make_join(1, 2))
        caller.hear("start")
        event = {**EVENT, "facts": {"rank": 1, "pid": dead(1, 1).pid}}
        caller.say({**GOOD["failed"], "is": "failed", "event": event})
        record = {
            **render_message(judge(dead(1, 1))),
            "exception": "\u00e9" * (FRAME_LIMIT_BYTES // 2 - 2000),
        }
        say_raw(caller, render({"is": "exited", "node": 1, "status": 1, "attempt": 0, "record": record}))
        live.hear_own(exited(0))
        over = caller.hear("over")
        assert over["status"] == 1 and "\u00e9" in str(over["record"])
        assert live.faults == []
        caller.socket.close()


LOOP_S = 3.0
"""CPU time that one frame may cost node 0, with its way through a socket; its search alone took 30 s."""


def has_ended(live: LiveHub, index: int) -> bool:
    """Whether a node has reported its end."""
    node = live.node(index)
    return node is not None and node.ended is not None


def test_texts_that_take_long_to_search_hold_up_no_node() -> None:
    """A frame full of programs with passwords: all other nodes gave node 0 up."""
    with live_hub(2) as live:
        hostile = Caller(live.port)
        hostile.say(make_join(1, 2))
        hostile.hear("start")
        record = {
            **render_message(judge(dead(1, 1))),
            "stderr": [" -u a:b \u200bcurl -u " * 600] * 60,
            "evidence": [{"ranks": "0", "doing": "", "stack": ["&curl -u \x01" * 30] * 500}],
        }
        frame = render({"is": "exited", "node": 1, "status": 0, "attempt": 0, "record": record})
        began = time.process_time()
        say_raw(hostile, frame)
        wait_for(lambda: has_ended(live, 1), "it is read", deadline_s=WAIT_S)
        assert time.process_time() - began < LOOP_S and live.faults == []
        hostile.socket.close()


def test_stacks_that_take_long_to_compare_hold_up_no_node() -> None:
    """Processes with a hundred threads that share a stack, and words full of passwords."""
    words = [f"curl -u \u200b{number} " * 12 for number in range(1800)]
    places = [[[number + deep, 1, number] for deep in range(20)] for number in range(0, 1700, 25)]
    texts = dict.fromkeys(("command", "state", "call", "kernel", "folder", "means", "why"), 0)
    processes = [
        {**texts, "rank": rank, "pid": 1, "python": True, "threads": [[0, rank % len(places)]] * 101}
        for rank in range(600)
    ]
    with live_hub(2) as live:
        hostile = Caller(live.port)
        hostile.say(make_join(1, 2))
        hostile.hear("start")
        stacks = {"words": words, "stacks": places, "processes": processes}
        frame = render({"is": "looked", "stacks": stacks})
        began = time.process_time()
        say_raw(hostile, frame)
        hostile.say({"is": "exited", "node": 1, "status": 1, "attempt": 0})
        live.hear_own(exited(1))
        assert hostile.hear("over")
        assert time.process_time() - began < LOOP_S and live.faults == []
        hostile.socket.close()


@pytest.mark.parametrize("status", [256, -1, 1.0, True, "0", None])
def test_a_status_that_is_none_ends_the_connection(status: object) -> None:
    """Of 256 a shell would make 0: a success."""
    with live_hub(2) as live:
        caller = Caller(live.port)
        caller.say(make_join(1, 2))
        caller.hear("start")
        caller.say({"is": "exited", "node": 1, "status": status, "attempt": 0})
        with pytest.raises(ConnectionError):
            caller.hear("over")
        node = live.node(1)
        assert node is not None and node.ended is None and live.faults == []


@pytest.mark.parametrize("at_ns", [-(1 << 63), 1 << 63])
def test_a_time_that_cannot_be_keeps_no_node_from_the_end(at_ns: int) -> None:
    """How long ago that was fitted into no message: the others turned the end of the job away as invalid."""
    with live_hub(3) as live:
        liar, other = Caller(live.port), Caller(live.port)
        liar.say(make_join(1, 3))
        other.say(make_join(2, 3))
        other.hear("start")
        liar.say({**GOOD["failed"], "is": "failed", "event": {**EVENT, "at_ns": at_ns}})
        for rank, caller in ((1, liar), (2, other)):
            caller.say({"is": "exited", "node": rank, "status": 1, "attempt": 0})
        live.hear_own(exited(1))
        over = unpack(other.hear("over"), FROM_COORDINATOR)
        assert isinstance(over, Over) and over.first is not None and over.first.event.node == 1
        assert 0 <= over.first.ago_ns <= time.monotonic_ns() and live.faults == []
        liar.socket.close()
        other.socket.close()


@pytest.mark.parametrize("kind", ["lost", "cut-off", "x"])
def test_what_no_node_can_say_of_itself_ends_the_connection(kind: str) -> None:
    """That a node is lost is node 0's to find: a node that says it would not be waited for."""
    with live_hub(2) as live:
        caller = Caller(live.port)
        caller.say(make_join(1, 2))
        caller.hear("start")
        caller.say({**GOOD["failed"], "is": "failed", "event": {**EVENT, "kind": kind}})
        with pytest.raises(ConnectionError):
            caller.hear("over")
        attempt = live.hub.state.attempt
        assert attempt is not None and not attempt.events and live.faults == []


def test_a_refusal_about_all_that_nodes_may_say_fits_into_a_frame() -> None:
    """Nodes that differ in all that they may say hear why."""
    count = 25
    with live_hub(count) as live:
        callers = [Caller(live.port) for _ in range(1, count)]
        for rank, caller in enumerate(callers, 1):
            names = ("torch", "nccl", "command", "fabric", "gpu_kind", "driver", "python", "mpi")
            odd = dict.fromkeys(names, f"{rank % 8}{'z' * 110}")
            caller.say(make_join(rank, count, host="h" + "x" * 198, **odd))
        for caller in callers:
            refusal = caller.hear("refuse")
            assert refusal["code"] == "nodes-differ" and "the nodes differ in" in str(refusal["lines"])
            caller.socket.close()
        assert live.faults == []


def test_one_who_is_gone_before_the_welcome_is_no_node() -> None:
    """Its connection was reset while its hello was on the way; its successor is let in."""
    with live_hub(2) as live:
        for _ in range(20):
            caller = Caller(live.port)
            caller.say(make_join(1, 2))
            linger = struct.pack("ii", 1, 0)
            caller.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            caller.socket.close()
        caller = Caller(live.port)
        caller.say(make_join(1, 2))
        assert caller.hear("start")
        assert live.faults == []
        caller.socket.close()


def test_half_open_slow_and_oversized_ones_are_turned_away_and_counted(hub: LiveHub) -> None:
    """None keeps another out for longer than it may be slow itself."""
    before = hub.hub.acceptor.turned_away.total
    silent = [call(hub.port) for _ in range(PENDING_MAX + 50)]
    slow = [call(hub.port) for _ in range(20)]
    until = time.monotonic() + 2.0
    for byte in PREAMBLE:
        for caller in slow:
            with contextlib.suppress(OSError):
                caller.send(bytes([byte]))
    oversized = Caller(hub.port)
    with contextlib.suppress(OSError):
        oversized.socket.sendall(struct.pack(">I", FRAME_LIMIT_BYTES + 1) + os.urandom(1 << 18))
    oversized.drain()
    wait_for(lambda: time.monotonic() > until, "the slow have been slow")
    late = Caller(hub.port)  # who has the key gets in
    late.drain()
    wait_for(lambda: len(hub.hub.acceptor) == 0, "all have been turned away")
    assert hub.hub.acceptor.turned_away.total - before >= PENDING_MAX
    assert len(hub.hub.acceptor.turned_away.counts) <= NAMED_MAX
    assert any("turned away 127.0.0.1: sent an invalid message: a frame of " in line for line in hub.said)
    for caller in (*silent, *slow):
        caller.close()


def test_silent_callers_leave_descriptors_to_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 0 has few: others still get in, and its own files and processes find some."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 100))
    with live_hub(40) as live, contextlib.ExitStack() as kept:
        for _ in range(60):
            kept.enter_context(call(live.port))
        wait_for(lambda: live.hub.acceptor.turned_away.total >= 30, "others go sooner", deadline_s=4.0)
        assert len(live.hub.acceptor) <= 30, "half of what the other nodes of the job leave"


@pytest.mark.parametrize("source", ["127.0.0.9", ADDRESS])
def test_who_has_the_key_gets_in_while_a_port_is_flooded(source: str) -> None:
    """1,500 connections a second that say nothing, from another address or from that of the node itself."""
    with live_hub(2) as live, flooded((ADDRESS, live.port), 1500, source):
        wait_for(lambda: live.hub.acceptor.turned_away.total > 1000, "others have to go", deadline_s=WAIT_S)
        caller = Caller(live.port)
        caller.say(make_join(1, 2))
        assert caller.hear("start")
        assert len(live.hub.acceptor) <= PENDING_MAX
        assert live.faults == []
        caller.socket.close()


def test_a_flood_grows_no_memory(hub: LiveHub) -> None:
    """Thousands who hang up, and hundreds who prove themselves for ranks that the job has not."""
    flood(hub, 200)
    gc.collect()
    tracemalloc.start()
    try:
        flood(hub, 1000)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 1 << 18
    finally:
        tracemalloc.stop()
    assert hub.faults == []


def test_a_queue_full_of_strangers_is_soon_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half requests from nine addresses come before a node: its turn once came when they timed out."""
    monkeypatch.setattr("launcher.channel.acceptor.FIRST_S", 600.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    strangers, may_go_on = [], threading.Event()
    try:
        with live_hub(2) as live:
            live.do(lambda: may_go_on.wait(WAIT_S))
            for number in range(4000):
                strangers.append(socket.socket())
                strangers[-1].bind((f"127.0.0.{2 + number % 9}", 0))
                strangers[-1].connect((ADDRESS, live.port))
                strangers[-1].send(PREAMBLE[: 1 + number % 9])
            may_go_on.set()
            member = Caller(live.port)
            member.say(make_join(1, 2))
            assert member.hear("start")
            member.drain()
    finally:
        may_go_on.set()
        for one in strangers:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def flood(hub: LiveHub, count: int) -> None:
    """Call often: every fifth has the key."""
    for index in range(count):
        if index % 5:
            call(hub.port).close()
            continue
        caller = Caller(hub.port)
        caller.say({**make_join(index + 2, 2), "host": f"stranger{index}"})
        caller.drain()
    wait_for(lambda: len(hub.hub.acceptor) == 0, "all are gone")


def test_a_note_on_preemption_that_fills_a_frame_is_passed_on_in_short() -> None:
    """With what is put around it on its way it would not fit, and nobody would be told."""
    with live_hub(2) as live:
        caller = Caller(live.port)
        caller.say(make_join(1, 2))
        caller.hear("start")
        notice = {"kind": ANNOUNCED, "what": "\u00e9" * 30_000, "left_ms": 1000, "more": "x"}
        say_raw(caller, render({"is": "machinenotice", **notice}))
        noticed: Any = caller.hear("nodenotice")
        assert noticed["by"] == 1 and sorted(noticed["notice"]) == ["kind", "left_ms", "what"]
        assert 0 < len(noticed["notice"]["what"]) <= LINE_LENGTH
        assert live.faults == []
        caller.socket.close()


def pass_on(listening: socket.socket, port: int) -> None:
    """Pass two connections on to node 0, in both directions."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    with listening.accept()[0] as caller, socket.create_connection((ADDRESS, port), WAIT_S) as callee:
        back = threading.Thread(target=copy, args=(callee, caller))
        back.start()
        copy(caller, callee)
        back.join()


def test_a_program_at_another_port_cannot_pass_connections_on() -> None:
    """Another user has the first port of node 0's machine: the nodes do not take it for node 0."""
    ends: list[str] = []
    with live_hub(2) as hub, socket.create_server((ADDRESS, 0)) as listening:
        port = listening.getsockname()[1]
        thread = threading.Thread(target=pass_on, args=(listening, hub.port))
        thread.start()
        loop = Loop(lambda what, event: None)

        def opened(connection: socket.socket, calling: Calling) -> None:
            connection.close()
            ends.append("opened")

        def is_over() -> bool:
            return bool(ends)

        for place, expected in ((port, REFUSED), (hub.port, "opened")):
            ends.clear()
            attempt = ConnectAttempt(KEY, WAIT_S, loop, opened, lambda why, next_port: ends.append(why))
            attempt.begin(ADDRESS, place)
            loop.turn_until(is_over, WAIT_S)
            assert ends == [expected]
        loop.close()
        thread.join()
