"""The control channel without a network: handshake, frames, policy, clocks, who came first, keys, texts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.channel.acceptor import NAMED_MAX, TurnedAway
from launcher.channel.frames import (
    FRAME_LIMIT_BYTES,
    PREAMBLE,
    SEAL_BYTES,
    Answering,
    Calling,
    HandshakeFailed,
    Sealed,
    make_key,
    name_job,
    read_token,
)
from launcher.cluster import messages
from launcher.cluster.clocks import Offset, better, measure
from launcher.cluster.connect import answer_s
from launcher.cluster.consistency import compare, read_rules, render_table
from launcher.cluster.facts import read_facts
from launcher.cluster.join import Join, read_identity
from launcher.cluster.members import Member, Members
from launcher.cluster.outcome import make_over
from launcher.cluster.reach import find_address
from launcher.cluster.settings import Shape
from launcher.core import wire
from launcher.core.errors import NotReady, Problem, UsageError
from launcher.core.shorten import ROOM_BYTES, fit, fit_all
from launcher.core.supervision import Restarts
from launcher.core.wire import FACTS_KEPT, Garbled, parse, render
from launcher.failure.arbiter import (
    EVENTS_OF_NODE,
    LOST,
    RANK,
    SILENT_NS,
    Event,
    find_also,
    find_first_event,
    is_new,
)
from launcher.failure.model import Cause, Verdict
from launcher.hang.model import Collective, GroupRecord, RankRecord
from launcher.job import commands
from launcher.job.events import Exited, Failed, Ready
from launcher.job.refusals import describe_missing, node_0_missing, nodes_missing
from launcher.machine.host import Host
from launcher.machine.process import find_children
from launcher.options.flags import FRAMEWORKS
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay
from launcher.process.loop import Loop
from launcher.process.stop import Stopper
from tests.saying import keep
from tests.unit.test_verdict import OOM, dead, judge

OOM_WORDS = "RuntimeError: CUDA out of memory\n"
KEY, OTHER = make_key(b"a token of sixteen", "1"), make_key(b"another of sixteen", "1")
MS = 1_000_000


def connect(hub_key: bytes = KEY, caller_key: bytes = KEY) -> tuple[Sealed, Sealed]:
    """Return both ends of a connection, the hub's and the caller's, after a handshake."""
    answering, calling = Answering(hub_key), Calling(caller_key)
    proof = calling.feed(answering.feed(calling.call))
    assert calling.feed(answering.feed(proof)) == b""
    assert answering.sealed is not None and calling.sealed is not None
    return answering.sealed, calling.sealed


def hear(sealed: Sealed, data: bytes) -> list[dict[str, object]]:
    """Return the messages in some bytes."""
    return list(sealed.feed(data))


# --- handshake and frames


def test_two_with_one_key_understand_each_other_and_no_other() -> None:
    """In both directions, and in order; another key is noticed by each."""
    # In both directions, and in order.
    hub, caller = connect()
    assert hear(hub, caller.pack({"a": 1}) + caller.pack({"b": 2})) == [{"a": 1}, {"b": 2}]
    assert hear(caller, hub.pack({"c": 3})) == [{"c": 3}]
    # Each by the proof of the other.
    answering, calling = Answering(KEY), Calling(OTHER)
    proof = calling.feed(answering.feed(calling.call))
    with pytest.raises(HandshakeFailed, match="another token"):
        answering.feed(proof)
    impostor = Answering(OTHER)
    calling = Calling(KEY)
    calling.feed(impostor.feed(calling.call))
    with pytest.raises(HandshakeFailed, match="another token"):
        calling.feed(bytes(32))


def test_a_caller_without_the_key_hears_nothing_that_is_made_of_it() -> None:
    """A nonce, which is another one each time: no guess at a token can be tried against it."""
    nonces = {Answering(key).feed(PREAMBLE + bytes(32)) for key in (KEY, KEY, OTHER)}
    assert len(nonces) == 3 and {len(nonce) for nonce in nonces} == {32}
    for call in (PREAMBLE + bytes(32), PREAMBLE + bytes(32 + 31)):
        assert len(Answering(KEY).feed(call)) == 32
    with pytest.raises(HandshakeFailed, match="another token"):
        Answering(KEY).feed(PREAMBLE + bytes(32 + 32))


def test_a_proof_is_good_for_one_connection_and_side() -> None:
    """Who has listened cannot say the same again, and a hub cannot be answered with its own."""
    # Who has listened cannot say the same again.
    first, second, calling = Answering(KEY), Answering(KEY), Calling(KEY)
    proof = calling.feed(first.feed(calling.call))
    second.feed(calling.call)
    with pytest.raises(HandshakeFailed):
        second.feed(proof)
    # The two sides prove themselves in different words, and a hub that hears its own nonce has one more.
    first, second, calling = Answering(KEY), Answering(KEY), Calling(KEY)
    nonce = first.feed(calling.call)
    reflected = second.feed(PREAMBLE + nonce)
    proof = first.feed(calling.feed(nonce))
    with pytest.raises(HandshakeFailed):
        second.feed(proof)
    fresh, caller = Answering(KEY), Calling(KEY)
    fresh.feed(caller.call)
    with pytest.raises(HandshakeFailed):
        fresh.feed(proof)
    assert reflected != nonce


def test_frames_that_are_changed_end_a_connection() -> None:
    """Repeated, reordered, sent back; too long ones before they have come."""
    # The counter, and a key for each direction.
    for attack in ("repeat", "reorder", "reflect", "change"):
        hub, caller = connect()
        first, second = caller.pack({"n": 1}), caller.pack({"n": 2})
        tried = {
            "repeat": first + first,
            "reorder": second,
            "reflect": hub.pack({"n": 1}),
            "change": first[:-1] + b"]",
        }
        with pytest.raises(Garbled):
            hear(hub, tried[attack])
    # Four bytes are enough to know.
    hub, caller = connect()
    with pytest.raises(Garbled, match="expected 1048576 at most"):
        hear(hub, (FRAME_LIMIT_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(ValueError, match="a message of"):
        caller.pack({"n": "x" * FRAME_LIMIT_BYTES})


@given(st.binary(max_size=300), st.integers(0, 300), st.integers(0, 7))
def test_no_change_of_a_sealed_stream_is_taken_for_a_message(noise: bytes, place: int, bit: int) -> None:
    """Messages before the change are heard; from there on nothing, whatever it was."""
    hub, caller = connect()
    sent = [{"n": index} for index in range(8)]
    data = bytearray(b"".join(caller.pack(message) for message in sent))
    place %= len(data)
    data[place] ^= 1 << bit
    heard = []
    with contextlib.suppress(Garbled):
        for message in hub.feed(bytes(data) + noise):
            heard.append(message)
    frame = 4 + SEAL_BYTES + len(b'{"n":0}')
    assert heard == sent[: place // frame]
    assert len(hub._buffer) <= FRAME_LIMIT_BYTES + len(data) + len(noise)


@pytest.mark.parametrize(
    "more",
    [
        *({"rank": rank} for rank in (-1, "1", 1 << 21, True)),
        *({"session": session} for session in ("", "a b", "a" * 33, 7)),
        {"is": "hi"},
    ],
)
def test_a_hello_without_a_node_is_none(more: dict[str, object]) -> None:
    """Nothing else of it is read."""
    with pytest.raises(Garbled):
        read_identity({"is": "join", "rank": 1, "session": "a", **more})


@pytest.mark.parametrize(
    "more",
    [
        *({"node_count": "2"}, {"wall_ns": 1.5}, {"gpu_count": 10**30}, {"host": 7}),
        *({"addresses": "10.0.0.4"}, {"addresses": [None]}, {"settings": []}, {"settings": {"A": 1}}),
    ],
)
def test_a_hello_with_a_value_of_another_kind_is_none(more: dict[str, object]) -> None:
    """One kind of error, whichever it is."""
    with pytest.raises(Garbled):
        parse(Join, {"rank": 1, "session": "a", **more})


def test_a_hello_is_kept_in_bounds_and_without_secrets() -> None:
    """However often a node comes; it is shown on all nodes."""
    # However often a node comes with new ones, and however many it has.
    for index in range(FACTS_KEPT + 10):
        wire.fact(f"text {index}")
    assert len(wire._facts) <= FACTS_KEPT
    settings = {f"NAME{index}": "x" for index in range(999)}
    many = parse(Join, {"rank": 1, "session": "a", "settings": settings})
    assert len(many.settings) == wire.FACTS_MAX
    # It is shown on all nodes.
    hello = {"rank": 1, "session": "ab", "host": "\x1b[31mevil", "command": "x --password hunter2hunter2"}
    kept = parse(Join, hello)
    assert kept.host == "\\x1b[31mevil"
    assert "hunter2" not in str(kept.command)


# --- clocks


@given(st.integers(-(10**15), 10**15), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**7))
def test_an_offset_is_wrong_by_half_of_the_delay_at_most(
    true_ns: int, there_ns: int, back_ns: int, work_ns: int
) -> None:
    """However uneven the two ways are."""
    asked = 5
    heard = asked + there_ns + true_ns
    found = measure(asked, heard, heard + work_ns, asked + there_ns + work_ns + back_ns)
    assert found.delay_ns == there_ns + back_ns
    assert abs(found.add_ns - true_ns) <= found.delay_ns // 2 + 1


# --- policy


@pytest.mark.parametrize("rule", read_rules(), ids=lambda rule: rule.key)
def test_each_rule_finds_the_odd_one_out(rule: Any) -> None:
    """By the value that most have, and with the level of the rule."""
    hellos = {f"node {i}": {rule.key: "new" if i == 2 else "old"} for i in range(4)}
    (found,) = compare(hellos)
    assert found.is_problem == (rule.level == "problem")
    assert found.groups == (("old", ("node 0", "node 1", "node 3")), ("new", ("node 2",)))
    assert render_table([found])[1:3] == ["    old  node 0, node 1, node 3", "  > new  node 2"]


@pytest.mark.parametrize(("ahead_s", "differs"), [(1.9, False), (2.1, True)])
def test_clocks_may_differ_by_two_seconds(ahead_s: float, differs: bool) -> None:
    assert bool(compare({f"node {i}": {"clock_ahead_s": ahead_s * (i == 2)} for i in range(3)})) == differs


@pytest.mark.parametrize(("over", "why", "expected"), [("moved", "", "moved"), ("", "spent", "spent")])
def test_the_end_of_a_job_has_one_reason(over: str, why: str, expected: str) -> None:
    """That of the controller, or why no attempt follows."""
    message = make_over(commands.EndJob(1, why=over), why)
    assert isinstance(message, messages.Over) and message.why == expected


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_nodes_of_one_job_say_the_same_of_their_settings(framework: str) -> None:
    """What tells nodes apart is not compared: every job of several nodes would begin with a warning."""
    said = []
    for node in ("0", "1"):
        asked = {"nnodes": "2", "node_rank": node, "nproc_per_node": "2", "master_addr": "10.0.0.4"}
        options = read_options({**asked, "framework": framework, "engine": "process"}, {})
        plan = plan_job({}, replay({}), options, ("./train",))
        said.append({"settings": read_facts(plan, ("./train",), replay({}), {})["settings"]})
    assert compare({"node 0": said[0], "node 1": said[1]}) == []


def test_what_differs_is_named_once_and_problems_first() -> None:
    """Settings are warnings; what follows from a problem is not said beside it."""
    # Facts that a node does not know differ from nothing.
    hellos: dict[str, Mapping[str, object]] = {
        "node 0": {"torch": "2.13.0", "nccl": None, "settings": {"A": "1"}},
        "node 1": {"torch": "2.13.0", "nccl": "2.27"},
    }
    assert compare(hellos) == []
    # A warning: variables may be spelled differently and mean the same.
    (found,) = compare({"a": {"settings": {"MASTER_ADDR": "x"}}, "b": {"settings": {"MASTER_ADDR": "y"}}})
    assert (found.rule.title, found.is_problem) == ("MASTER_ADDR", False)
    # Variables differ because the number of nodes does; who reads it looks for the one thing to mend.
    hellos = {
        "a": {"node_count": 2, "settings": {"WORLD_SIZE": "2"}},
        "b": {"node_count": 3, "settings": {"WORLD_SIZE": "3"}},
    }
    assert [item.rule.key for item in compare(hellos)] == ["node_count"]
    # What stops the job is read first.
    hellos = {"a": {"driver": "1", "torch": "1"}, "b": {"driver": "2", "torch": "2"}}
    assert [item.rule.key for item in compare(hellos)] == ["torch", "driver"]
    # Node 0's may be the wrong one.
    hellos = {f"node {i}": {"clock_ahead_s": 0.0 if i == 0 else 90.0} for i in range(3)}
    (found,) = compare(hellos)
    assert not found.is_problem
    assert found.groups == (("as most", ("node 1", "node 2")), ("-90.0 s", ("node 0",)))


def test_a_node_that_is_missing_is_named_with_all_that_is_known() -> None:
    """Its host, what a look at it has told, and who else was at the door."""
    said = describe_missing(
        "node", [1, 2, 3], ("a", "b", "c"), {1: "down"}, {"c": "has another token", "d": "noise"}, shown=2
    )
    assert said == ("node 1 (b): down; node 2 (c): has another token; 1 more; turned away d: noise")


@pytest.mark.parametrize("reason", ["has another token, or is of another job", "nothing listens there"])
def test_who_has_another_token_is_told_of_tokens_first(reason: str) -> None:
    """On both sides, and only where the handshake has failed."""
    for problem in (
        nodes_missing("node", 1, 2, 5.0, f"node 1: {reason}"),
        node_0_missing("node", 5.0, reason),
    ):
        assert problem.fix.startswith("the same LAUNCHER_TOKEN or --token-file") == ("token" in reason)


# --- who came first


def fail(node: int, at_ms: int, *, status: int = 1, asked: bool = False) -> Event:
    """Return the failure of a rank."""
    return Event(node, RANK, at_ms * MS, status, asked=asked)


def record(*, consequence: bool) -> Verdict:
    """Return a verdict with one cause."""
    return judge(dead(0, 1), causes=[Cause("one", "what", "fix", None, consequence)])


def first_of(*events: Event, **records: Verdict) -> Event | None:
    """Return which of these events came first; ``records``: the verdicts of nodes, e.g. ``n0``."""
    return find_first_event(events, {int(name[1:]): found for name, found in records.items()})


def test_a_lost_node_is_the_first_if_it_was_lost_before() -> None:
    """Others lose their peers by it; what platforms end after a failure is not the first."""
    # It is missed ten seconds after its last word, which was the earlier.
    first = first_of(fail(0, 1000), Event(1, LOST, 500 * MS, 75), n0=record(consequence=True))
    assert first is not None and (first.node, first.status) == (1, 75)
    # Platforms end the containers of a job that has failed.
    for at_ms, status in ((1000, 3), (9000, 75)):
        lost = Event(1, LOST, 900 * MS, 75, SILENT_NS)
        first = first_of(fail(0, at_ms, status=3), lost, n0=record(consequence=False))
        assert first is not None and first.status == status
    # The moment of that is known: its launcher was killed, and a rank elsewhere failed a little later.
    events, records = (fail(0, 1000, status=3), Event(1, LOST, 900 * MS, 75)), {0: record(consequence=False)}
    assert find_first_event(events, records) == events[1]
    assert find_also(events[1], events, records) == [(events[0], False)]
    # Only the first of its ranks are kept, but the job would wait for it for ever.
    kept: list[Event] = []
    for rank in range(20):
        event = Event(1, RANK, rank, 1, facts={"rank": rank})
        kept += [event] if is_new(event, kept) else []
    assert len(kept) == EVENTS_OF_NODE and is_new(Event(1, LOST, 20, 75), kept)


def test_two_failures_whose_order_the_clocks_cannot_tell_are_both_named() -> None:
    """Each is known within some milliseconds."""
    one, other, later = (
        Event(node, RANK, at_ms * MS, status, 20 * MS)
        for node, at_ms, status in ((0, 1000, 1), (1, 1030, 2), (2, 1100, 3))
    )
    events = (later, other, one)
    assert find_first_event(events, {}) == one
    assert find_also(one, events, {}) == [(other, True), (later, False)]


def test_the_earliest_failure_is_the_first() -> None:
    """In node 0's time; not who was asked to end, nor who has only lost its peers, nor what only follows."""
    # Times are node 0's.
    assert first_of(fail(2, 200), fail(1, 100, status=9)) == fail(1, 100, status=9)
    assert not is_new(fail(1, 50), (fail(2, 200), fail(1, 100)))
    # SIGTERM from us is no failure of its own.
    assert first_of(fail(0, 100, asked=True)) == fail(0, 100, asked=True)
    assert first_of(fail(0, 100, asked=True), fail(1, 300)) == fail(1, 300)
    # A process closes its connections some time before it ends.
    records = {"n0": record(consequence=True), "n1": record(consequence=False)}
    assert first_of(fail(0, 100), fail(1, 150), **records) == fail(1, 150)
    # The node's verdict may be still to come.
    events = Event(0, RANK, 100 * MS, 1, follows=True), fail(1, 400)
    assert find_first_event(events, {}) == events[1] and find_also(events[1], events, {}) == []


# --- verdicts


def test_a_verdict_arrives_as_it_was_sent_or_shortened() -> None:
    """With how other processes ended; it fits into a frame, with the last lines."""
    # With how the other processes of its node ended.
    verdict = judge(dead(2, 1, stderr=OOM_WORDS), others=[dead(3, -15)], causes=[OOM])
    record = json.loads(json.dumps(render(fit(verdict))))
    assert parse(Verdict, record) == verdict
    # Lines of its end are kept.
    noise = "".join(f"{index:06d} {chr(0x1F600) * 300}\n" for index in range(200))
    verdict = judge(dead(2, 1, stderr=noise), others=[dead(rank, -15) for rank in range(3, 500)])
    record = render(fit(verdict))
    assert len(json.dumps(record)) <= ROOM_BYTES
    parsed = parse(Verdict, json.loads(json.dumps(record)))
    assert parsed is not None and parsed.first == verdict.first
    assert parsed.stderr[-1].startswith("000199")


def test_records_of_many_ranks_fit_together_and_keep_the_group_that_waits() -> None:
    """Each rank keeps its share; the groups that wait are its last."""
    done = [GroupRecord(str(index), recent=(Collective(1, "x" * 200, True),)) for index in range(63)]
    records = [RankRecord(rank, "nccl", (*done, GroupRecord("63", enqueued=7))) for rank in range(256)]
    kept = fit_all(records)
    assert len(json.dumps([render(one) for one in kept])) <= 2 * ROOM_BYTES
    assert [(one.rank, one.groups[-1].enqueued) for one in kept] == [(rank, 7) for rank in range(256)]
    assert fit_all(records[:1]) == tuple(records[:1])


# --- keys


def test_a_job_and_its_keys_have_one_name() -> None:
    """The same on all nodes; keys depend on the token and on the job."""
    # Whatever nodes may be told differently by mistake is no part of its name.
    one = name_job({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, 6105)
    other = name_job({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}, 6105)
    assert one == other == "7/6105"
    assert name_job({}, 6105, "run5") == "run5/6105"
    # mpirun's own node has the platform's variables, and the others what it carries there
    here, there = {"AZUREML_RUN_ID": "a", "OMPI_COMM_WORLD_RANK": "0"}, {"OMPI_COMM_WORLD_RANK": "1"}
    assert name_job(here, 6105) == name_job(there, 6105) == "6105"
    # Two jobs with one token are still two jobs.
    keys = {make_key(token, job) for token in (None, b"x" * 16, b"y" * 16) for job in ("1", "2")}
    assert len(keys) == 6


def test_a_token_is_read_and_not_shown(tmp_path: Any) -> None:
    """Without its line end; one in place of its file stays out of the log."""
    # As editors and ``openssl rand`` leave one.
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    assert read_token(str(file), {"LAUNCHER_TOKEN": "not this one, but the file"}) == b"0123456789abcdef"
    assert read_token("", {"LAUNCHER_TOKEN": " 0123456789abcdef "}) == b"0123456789abcdef"
    assert read_token("", {}) is None
    # ``launcher run --token X`` is short for ``--token-file X``: X would stay in the log of the job.
    token = "0123456789abcdef" * 4
    with pytest.raises(UsageError) as caught:
        read_token(token, {})
    assert token not in str(caught.value) and "LAUNCHER_TOKEN" in str(caught.value)
    options = read_options({"token_file": token}, {})
    assert token not in options.origins("token_file")[0]


@pytest.mark.parametrize("path", ["/nonexistent/token", "short"])
def test_a_bad_token_is_named_and_not_shown(path: str, tmp_path: Any) -> None:
    """Its length is all that is said of it."""
    if path == "short":
        (tmp_path / "token").write_text("s3cr3t")
        path = str(tmp_path / "token")
    with pytest.raises(UsageError) as caught:
        read_token(path, {})
    assert caught.value.problems[0].code == "bad-token"
    assert "s3cr3t" not in str(caught.value)


# --- plan


def plan(**flags: str | bool) -> Any:
    """Return how the launchers of a job meet."""
    typed = {"nnodes": "2", "node_rank": "0", "master_addr": "10.0.0.4", **flags}
    options = read_options({dest: text for dest, text in typed.items() if text != ""}, {})
    return plan_job({}, replay({"environ": {}}), options, ("true",)).peers


@pytest.mark.parametrize(
    "flags",
    [
        {"peers": False},
        {"nnodes": "1"},
        {"rdzv_backend": "etcd-v2", "rdzv_endpoint": "10.0.0.9:2379", "node_rank": ""},
        {"rdzv_backend": "c10d", "rdzv_endpoint": "10.0.0.4:1234", "nnodes": "1:2"},
    ],
    ids=["off", "one node", "no index", "elastic"],
)
def test_where_they_do_not(flags: dict[str, Any]) -> None:
    """Switched off, alone, or not yet knowing who is who."""
    assert plan(**flags) is None


def test_the_launchers_of_several_nodes_meet_by_default() -> None:
    """At the default port or above it, or the only one that was asked for."""
    # At the default port or one of those above it, never at the master's own.
    peers = plan(master_port="6108")
    assert peers.ports == (6106, 6107, 6109, 6110, 6111, 6112, 6113)
    assert not peers.has_token and not peers.keep_going
    # A firewall may have been opened for it.
    assert plan(control_port="7000").ports == (7000,)
    # After a failure it starts all processes again: the channel only informs.
    assert plan(rdzv_backend="c10d", rdzv_endpoint="10.0.0.4:1234").keep_going


# --- strangers


def test_strangers_are_named_once_and_counted_in_bounded_memory() -> None:
    """A flood fills no log."""
    said: list[str] = []
    strangers = TurnedAway(keep(said))
    for index in range(1000):
        strangers.note(
            "192.0.2.1", f"sent an invalid message: a frame of {index} bytes"
        )  # one kind of reason
        strangers.note(f"10.0.0.{index % 100}", "noise\x1b")
    assert sum("192.0.2.1" in line for line in said) == 1
    assert len(said) == len(strangers.counts) == NAMED_MAX
    strangers.say_summary()
    assert "turned away 2000 connections" in said[-1]
    assert "\x1b" not in "".join(said)


def plan_of_two(flags: Mapping[str, str | bool], command: tuple[str, ...] = ("true",)) -> Any:
    """Return the plan of the first of two nodes."""
    typed: dict[str, str | bool] = {"nnodes": "2", "node_rank": "0", "master_addr": "127.0.77.10", **flags}
    return plan_job({}, Host(), read_options({**typed, "hosts": "127.0.77.10,127.0.77.11"}, {}), command)


def test_node_0_never_listens_where_only_itself_can_call() -> None:
    """Neither if its name is not known yet, nor if it means the loopback here."""

    class Named(Host):
        """A node with one interface and no way out, whose names mean what a test says."""

        def own_addresses(self) -> frozenset[str]:
            return frozenset({"127.0.0.1", "127.0.1.1", "10.0.0.4", "fe80::1", "node0"})

        def hostname(self) -> str:
            return "node0"

        def look_up(self, names: Sequence[str]) -> Mapping[str, frozenset[str]]:
            return {name: frozenset({"127.0.1.1"} if name == "node0" else ()) for name in names}

        def ask_source(self, target: str) -> str | None:
            return "10.0.0.4" if target == "node2" else None

    for master in ("node0", "later"):
        assert find_address(master, ("", "node1", "node2"), Named()) == "10.0.0.4"
    assert find_address("later", (), Named()) == "10.0.0.4"


class Lone(Host):
    """A node with these addresses, no way out, and a name that means its loopback."""

    def __init__(self, *addresses: str) -> None:
        super().__init__("/nonexistent")
        self._addresses = addresses

    def own_addresses(self) -> frozenset[str]:
        return frozenset({"127.0.0.1", "127.0.1.1", "::1", "node0", *self._addresses})

    def hostname(self) -> str:
        return "node0"

    def look_up(self, names: Sequence[str]) -> Mapping[str, frozenset[str]]:
        return {name: frozenset({"127.0.1.1"} if name == "node0" else ()) for name in names}

    def ask_source(self, target: str) -> str | None:
        return None


@pytest.mark.parametrize("master", ["node0", "later"])
def test_a_node_0_without_ipv4_listens_at_its_ipv6_address(master: str) -> None:
    """Never at one that means something on one link only."""
    assert find_address(master, (), Lone("fe80::1", "fd00::4")) == "fd00::4"


def test_a_node_0_that_nobody_else_can_reach_is_an_error() -> None:
    """Its loopback is listened at where the others may be on this machine: they call the same name."""
    assert find_address("node0", (), Lone("fe80::1")) == "127.0.1.1"
    with pytest.raises(NotReady) as caught:
        find_address("later", ("", "node1"), Lone("fe80::1"))
    assert [problem.code for problem in caught.value.problems] == ["no-control-address"]


def test_where_nodes_listen_and_who_decides() -> None:
    """A coordinator that bears losses decides itself; where Horovod meets is no control port."""
    # TensorFlow 2 goes on without a worker; TensorFlow 1 and mirrored workers do not.
    assert plan_of_two({"worker_count": "2", "parameter_server_count": "1"}).peers is None
    assert plan_of_two({"worker_count": "2", "parameter_server_count": "1", "tf1": True}).peers is not None
    assert plan_of_two({"worker_count": "2"}).peers is not None
    # It is the port above MASTER_PORT, which without it is the control port.
    assert plan_of_two({}).peers.ports[0] == 6106
    assert 6106 not in plan_of_two({"framework": "horovod"}).peers.ports
    # Only where each node has its share of the world is that number compared.
    assert read_facts(plan_of_two({"nproc_per_node": "2"}), ("true",), Host(), {})["local_size"] == 2
    uneven = plan_of_two({"worker_count": "3"})
    assert read_facts(uneven, ("true",), Host(), {})["local_size"] is None
    # And node 0 may call itself localhost.
    settings = read_facts(plan_of_two({"framework": "horovod"}), ("true",), Host(), {})["settings"]
    assert isinstance(settings, dict)
    assert "MASTER_PORT" in settings and not {"NODE_RANK", "CROSS_RANK", "OMP_NUM_THREADS"} & set(settings)


def test_a_grace_that_ends_when_nobody_is_left_is_no_news() -> None:
    """The launcher of a node whose processes have ended waits for the other nodes meanwhile."""
    said: list[str] = []
    loop = Loop(keep(said))
    stopper = Stopper(
        0.0, loop, to_group=False, spare=lambda: find_children(os.getpid()),
        before_kill=lambda: said.append("a record"), say=keep(said),
    )  # fmt: skip
    stopper.begin(signal.SIGTERM)
    for _ in range(3):
        stopper.fire(time.monotonic())
    assert stopper.due is not None and said == []


def test_a_node_has_as_long_as_the_page_says() -> None:
    """docs/peers.md: --lost-after and 5 s more; node 0 has more time the more nodes call."""
    # docs/peers.md: --lost-after, and 5 seconds more; its processes end before others may begin.
    shape = Shape(0, 2, 2, "10.0.0.4", (6106,), lost_after_s=10.0, grace_s=30.0)
    assert shape.given_up_s == 15.0
    assert shape.make_job(Restarts(), 1.0).lease_s > shape.given_up_s + shape.grace_s
    # Thousands wait in its queue: who gave up after some seconds would wait in vain again and again.
    assert answer_s(2) < 6
    assert answer_s(16_000) > 29.5  # what it took to let in so many on two busy CPUs
    # Its error is the smaller.
    assert better(Offset(1, 10), Offset(2, 20)) == Offset(1, 10)
    assert better(Offset(1, 10), Offset(2, 5)) == Offset(2, 5)
    assert better(None, Offset(2, 5)) == Offset(2, 5)


def test_a_node_is_not_heard_without_limit() -> None:
    """What it sends is kept or printed; an end is heard all the same, and a large node has many failures."""
    nothing: Any = None
    nodes = Members(nothing, Member(0, {"session": "0"}, "192.0.2.1"), nothing)
    heard = [nodes.may_send(1, Ready) for _ in range(25_000)]
    assert all(heard[:512]) and sum(heard) < 600
    assert nodes.may_send(1, Exited) and nodes.may_send(1, Failed)


@pytest.mark.parametrize(("addresses", "code"), [((), "refused"), (("127.0.0.1",), "no-control-address")])
def test_without_any_address_a_refusing_kernel_is_named(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...], code: str
) -> None:
    """It has not even told us the loopback."""

    class Named(Host):
        def own_addresses(self) -> frozenset[str]:
            return frozenset({"node0", *addresses})

        def hostname(self) -> str:
            return "node0"

        def look_up(self, names: Sequence[str]) -> Mapping[str, frozenset[str]]:
            return dict.fromkeys(names, frozenset[str]())

        def ask_source(self, target: str) -> str | None:
            return None

    refused = NotReady(Problem("refused", "socket is refused", "here", "allow it"))
    monkeypatch.setattr("launcher.cluster.reach.explain", lambda error: refused)
    with pytest.raises(NotReady, match=code):
        find_address("later", (), Named())
    monkeypatch.setattr("launcher.cluster.reach.explain", lambda error: None)
    with pytest.raises(NotReady, match="no-control-address"):
        find_address("later", (), Named())
