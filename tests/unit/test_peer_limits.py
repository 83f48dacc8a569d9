"""What nodes with the key can fill on others, memory and log, has limits; dropped lines are counted."""

from __future__ import annotations

import itertools
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.channel.acceptor import NAMED_MAX, Acceptor, Arrival, TurnedAway
from launcher.channel.connection import listen
from launcher.cluster.client import CoordinatorClient
from launcher.cluster.coordinator import Coordinator
from launcher.cluster.join import Join
from launcher.cluster.members import LEAVING_MAX, MESSAGES_MAX
from launcher.cluster.messages import MachineNotice, Waiting
from launcher.cluster.settings import Shape
from launcher.core.budget import ENTRIES_MAX, LINES_MAX, LINES_OF_NODE, Quota, find_busiest, network_of
from launcher.core.supervision import Restarts
from launcher.core.version import __version__
from launcher.core.wire import pack, parse
from launcher.failure.arbiter import RANK
from launcher.hang.job import JobEvidence
from launcher.hang.model import Hung, Look, Looked, Quiet
from launcher.job.commands import News
from launcher.job.events import Received, Silent
from launcher.job.state import Phase
from launcher.mpi.head import Head
from launcher.mpi.lead import ServedJob
from launcher.mpi.protocol import Briefing, Orphaned, RankEnded, Started
from launcher.mpi.reports import RANKS_MAX
from launcher.process.loop import Loop
from launcher.recovery.history import KEPT_MAX, History
from launcher.remote.hub import Gate
from tests.process.hubs import ADDRESS, KEY, exited, failed, make_join
from tests.saying import keep
from tests.unit.test_verdict import dead, judge

FLOOD = 100_000
FEW_LINES = 4 * LINES_MAX
"""More than a quota prints while a test runs, and far less than the flood."""


class Line:
    """A connection without a socket: keeps the number of what was sent."""

    has_unsent, limit_bytes = False, 0

    def __init__(self) -> None:
        self.is_open, self.sent = True, 0
        self.hear: Callable[[Any], None] = lambda message: None
        self.lose: Callable[[str], None] = lambda why: None

    def send(self, message: object) -> None:
        """Count a message."""
        self.sent += 1

    send_encoded = send

    def redirect(self, hear: Callable[[Any], None], lose: Callable[[str], None]) -> None:
        """Take who hears."""
        self.hear, self.lose = hear, lose

    def read(self) -> None:
        """Read nothing."""

    def close(self) -> None:
        """Close it on our side."""
        self.is_open = False

    def hang_up(self) -> None:
        """Close it on the other side."""
        if self.is_open:
            self.is_open = False
            self.lose("closed by the other side")


class Hub:
    """Node 0 without a thread, and what it has said."""

    def __init__(self, count: int, rule: Restarts | None = None, **more: Any) -> None:
        self.said: list[str] = []
        self.told: list[object] = []
        listening, port = listen(ADDRESS, (0,))
        self.loop = Loop(keep(self.said))
        self.shape = Shape(
            0, count, count, ADDRESS, (port,), **{"lost_after_s": 3600.0, "grace_s": 1.0, **more}
        )
        self.history = History("", keep(self.said))

        self.hub = Coordinator(
            listening,
            KEY,
            self.shape,
            parse(Join, make_join(0, count, host="node0")),
            self.loop,
            keep(self.said),
            self.told.append,
            lambda attempt: {"master_port": 6200 if attempt else 6105},
            lambda ranks, take: take({}),
            lambda: self.history,
            rule,
        )
        self._sessions = (f"{number:x}" for number in itertools.count(1 << 60))

    def join(self, rank: int, **more: object) -> Line:
        """Let a new launcher join as a node."""
        line = Line()
        said = make_join(rank, self.shape.node_count, **{"session": next(self._sessions), **more})
        self.hub._admit(line, "10.0.0.9", said)  # type: ignore[arg-type]
        return line

    def fail(self) -> None:
        """Let the attempt fail and another one follow."""
        count = self.shape.node_count
        self.hub.hear(0, failed(RANK, 1, 1, what="x", rank=0, pid=1, code=1))
        self.hub.hear(0, exited(1))
        for index in range(1, count):
            self.hub.hear(index, exited(143))


@pytest.fixture
def make_hub() -> Iterator[Callable[..., Hub]]:
    """Return what makes a node 0, which is closed in the end."""
    made: list[Hub] = []

    def make(*args: Any, **more: Any) -> Hub:
        made.append(Hub(*args, **more))
        return made[-1]

    yield make
    for one in made:
        one.hub.close()
        one.loop.close()


# --- addresses


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8:1:2::5", "2001:db8:1:2:ffff:1:2:3", True),
        ("2001:db8:1:2::5", "2001:db8:1:3::5", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("10.0.0.1", "10.0.0.2", False),
        ("", "", True),
    ],
)
def test_a_caller_is_counted_by_what_it_cannot_change(one: str, other: str, same: bool) -> None:
    """An IPv4 address, or the 64 first bits of an IPv6 address."""
    assert (network_of(one) == network_of(other)) is same


def test_the_busiest_address_of_the_busiest_network_yields() -> None:
    """However many addresses a network has; in a network of our nodes, the flooder goes first."""
    flood = [(network_of(address), address) for address in (f"2001:db8::{n:x}" for n in range(1, 99))]
    node = ("2001:db8:0:1::/64", "2001:db8:0:1::7")
    assert find_busiest([node, node, *flood])[0] == "2001:db8::/64"
    assert find_busiest([*flood, flood[7], node]) == flood[7]


def test_the_acceptor_takes_places_from_the_busiest_network() -> None:
    """One address of another network with two connections keeps them."""
    ours, theirs = socket.socketpair()
    said: list[str] = []
    loop = Loop(keep(said))
    listening, _ = listen(ADDRESS, (0,))
    acceptor = Acceptor(listening, KEY, loop, keep(said), lambda *found: None)
    places = ["2001:db8:0:1::7"] * 2 + [f"2001:db8::{n:x}" for n in range(1, 99)]
    for number, address in enumerate(places):
        acceptor._arrivals[number] = Arrival(ours, address, KEY, 0.0)
    slow = acceptor._find_slow()
    assert slow is not None and slow.address.startswith("2001:db8::")
    acceptor._arrivals.clear()
    acceptor.close()
    loop.close()
    ours.close()
    theirs.close()


def test_one_network_does_not_take_all_names() -> None:
    """Of the names in the log another network still gets some."""
    said: list[str] = []
    strangers = TurnedAway(keep(said))
    for number in range(FLOOD // 100):
        strangers.note(f"2001:db8::{number:x}", "another program")
    strangers.note("10.0.0.7", "another program")
    assert len(strangers.counts) <= NAMED_MAX and len(said) <= NAMED_MAX
    assert "turned away 10.0.0.7: another program" in said


# --- the log


def test_lines_beyond_a_limit_are_dropped_and_counted() -> None:
    """A line says how many."""
    said: list[str] = []
    quota = Quota(keep(said), node_count=2)
    for number in range(FLOOD):
        quota(f"line {number}", "node-back")
    most = LINES_MAX + 2 * LINES_OF_NODE
    assert most <= len(said) < most + 50
    quota.say_dropped()
    assert said[-1].endswith("more lines that others caused: too many")
    assert int(said[-1].split()[1]) > FLOOD - len(said) - 50


# --- node 0


@pytest.mark.slow
def test_spare_nodes_that_come_and_go_fill_no_log(make_hub: Callable[..., Hub]) -> None:
    """Each of them says that it is here, and that it has left."""
    one = make_hub(2, spare_count=1)
    for _ in range(FLOOD // 10):
        one.join(2).hear({"is": "left", "node": 2})
    assert len(one.said) < FEW_LINES and len(one.hub.members.by_index) <= 2
    one.hub.close()
    assert "dropped" in one.said[-1]


def test_a_node_that_comes_again_is_counted_once(make_hub: Callable[..., Hub]) -> None:
    """Under another name, sent off, or as a spare one; none fills the log."""
    # The job is refused, and each hears why; some connections are kept until they know it.
    one = make_hub(2)
    lines = [one.join(rank) for rank in range(2, FLOOD // 10)]
    assert len(one.hub.members.by_index) <= 2
    assert sum(line.is_open for line in lines) <= 2 + LEAVING_MAX
    assert all(line.sent for line in lines) and len(one.said) < FEW_LINES
    # A node that comes again under another name is no other node.
    one = make_hub(3)
    for number in range(FLOOD // 100):
        one.join(1, launcher="0", host=f"host{number}").hang_up()
    assert one.hub.state.phase is Phase.OVER and len(one.hub.members.by_index) == 1
    # Each has its answer; a few may still read it.
    one = make_hub(3)
    lines = [one.join(1, begun=True) for _ in range(FLOOD // 10)]
    assert all(line.sent == 1 for line in lines)
    assert sum(line.is_open for line in lines) <= LEAVING_MAX
    for line in lines:
        if line.is_open:
            line.hear(make_join(1, 3))
    assert sorted(one.hub.members.by_index) == [0], "what it says after that is not heard"


@pytest.mark.parametrize("ends", [False, True])
def test_nodes_of_a_job_that_ends_are_not_asked_why_they_hang(
    make_hub: Callable[..., Hub], ends: bool
) -> None:
    """Ranks that write a checkpoint are quiet as well."""
    one = make_hub(2)
    one.join(1)
    if ends:
        one.hub.hear(0, Received(0, signal.SIGTERM))
    for index in (0, 1):
        one.hub.hear(index, Quiet("no output for 10 min"))
    one.hub.fire(time.monotonic())
    assert sum(isinstance(message, Look) for message in one.told) == (not ends)


@pytest.mark.slow
def test_launchers_that_come_back_again_and_again_between_attempts(make_hub: Callable[..., Hub]) -> None:
    """Each has been lost when the next one comes, under another name and with another host."""
    one = make_hub(3, Restarts(most=9, rejoin_timeout_s=3600.0))
    one.join(1)
    one.join(2)
    assert one.hub.state.attempt is not None
    one.fail()
    assert one.hub.state.phase is Phase.BETWEEN
    for number in range(FLOOD // 20):
        for rank in (1, 2):
            one.hub.feed(Silent(rank, -1e5))
            line = one.join(rank, host=f"host{number}", machine=f"m{number}")
            line.hear({"is": "ready", "node": 1, "attempt": 0, "is_held": True})
    assert one.hub.state.phase is Phase.BETWEEN
    history, attempts = one.history, one.hub._attempts
    sizes = [len(found) for found in (attempts._held or (), history.noted, history.shared_hosts)]
    assert all(size <= max(ENTRIES_MAX, KEPT_MAX, FEW_LINES) for size in sizes), sizes
    assert len(one.said) < FEW_LINES
    one.hub.close()
    assert len(one.said) < FEW_LINES
    screen = one.history.summarize(1, 0, 0, 0, 1, is_alone=False)
    assert len(screen) < 10_000 and "more" in screen


def test_unhealthy_spare_nodes_fill_neither_the_log_nor_the_last_screen(make_hub: Callable[..., Hub]) -> None:
    """Each is sent off, and the next one has another session."""
    one = make_hub(2, Restarts(most=9, health_argv=("check",)), spare_count=1)
    for number in range(FLOOD // 20):
        one.join(2, host=f"host{number}").hear(
            {"is": "ready", "node": 1, "attempt": 0, "unhealthy": f"x{number}"}
        )
    assert len(one.hub.members.by_index) <= 2
    assert len(one.history.noted) <= KEPT_MAX and len(one.said) < FEW_LINES


@pytest.mark.slow
def test_the_budget_of_a_node_outlives_its_connection(make_hub: Callable[..., Hub]) -> None:
    """A new launcher of the same node does not bring a new one."""
    one = make_hub(2, keep_going=True)
    line = one.join(1)
    assert one.hub.state.attempt is not None
    heard: list[object] = []
    one.hub.subscribers[MachineNotice] = lambda rank, notice: heard.append(notice)
    notice = {"is": "machinenotice", "kind": "announced", "what": "x", "left_ms": 1}
    for _ in range(FLOOD // 1000):
        for _ in range(200):
            line.hear(notice)
        line.hang_up()
        line = one.join(1)
    assert len(heard) < 2 * MESSAGES_MAX and len(one.said) < FEW_LINES


def test_answers_about_a_hang_are_counted_only_for_the_last_question(make_hub: Callable[..., Hub]) -> None:
    """A node that is quiet and is not, in turn, makes node 0 ask again and again."""
    one = make_hub(2)
    one.join(1)
    evidence: JobEvidence = one.hub.evidence
    for number in range(1, FLOOD // 10):
        evidence.begin_look(float(number))
        for rank in (0, 1):
            evidence.take(rank, Looked({}, number))
            evidence.take(rank, Looked({}, 0))
    assert len(evidence._taken) <= 4


# --- the other nodes


@pytest.mark.slow
def test_a_node_0_that_talks_without_end_fills_no_log() -> None:
    """What it sends and what only prints a line is heard up to a limit."""
    said: list[str] = []
    delivered: list[object] = []
    loop = Loop(keep(said))
    shape = Shape(1, 2, 2, ADDRESS, (1,), lost_after_s=3600.0, grace_s=1.0)
    client = CoordinatorClient(
        KEY,
        shape,
        parse(Join, make_join(1, 2)),
        loop,
        None,  # type: ignore[arg-type]
        keep(said),
        delivered.append,
        lambda: None,
    )
    for number in range(FLOOD // 4):
        client._on_message(pack(Waiting(f"waiting for {number}")))
        client._on_message(pack(News(f"failed {number}", 0)))
        client._on_message(pack(Hung(f"hangs {number}", ())))
    assert len(said) < FEW_LINES and len(delivered) < 2 * FEW_LINES
    client.close()
    assert "dropped" in said[-1]
    loop.close()


# --- mpirun


def test_a_node_that_talks_without_end_fills_neither_memory_nor_log(tmp_path: Path) -> None:
    """Its ranks that cannot be, its events and its signals are kept, and printed, up to a limit."""
    said: list[str] = []
    hosts = ("node0", "node1")
    job = ServedJob(Shape(0, 2, 2, "node0", (), hosts, serves=True), Briefing("job"))
    told: list[int] = []
    runtime = SimpleNamespace(
        say=keep(said),
        on_signal=lambda number, from_terminal: told.append(number),
        forwarder=SimpleNamespace(told=None),
        loop=Loop(keep(said)),
        group=SimpleNamespace(helpers=None, running=()),
        watch=SimpleNamespace(grace_s=1.0, restarts=Restarts()),
        run_id="job",
        started_ns=0,
        at_ns=lambda at_ns: at_ns,
        environ={},
    )
    listening, _ = listen("127.0.0.1", (0,))
    gate = Gate(hosts, hosts, (), str(tmp_path / "rsh"), KEY, listening)
    head = Head(job, None, gate)  # type: ignore[arg-type]
    head.attach(runtime)  # type: ignore[arg-type]
    outcomes = SimpleNamespace(exit_status=lambda status, verdict: status)
    head.parts = SimpleNamespace(outcomes=outcomes)  # type: ignore[assignment]
    line = Line()
    head.channel._admit(line, "10.0.0.9", pack(Join(1, "1", host="node1", launcher=__version__)))  # type: ignore[arg-type]
    head.begin()
    node, verdict = head.nodes[1], judge(dead(1, 1))
    for number in range(FLOOD // 4):
        for one in (
            Started(number, number, 0, number),
            RankEnded(number, 0, 1, 1, verdict=verdict, pid=number),
            Orphaned(number),
            Received(1, 15, "SIGTERM"),
        ):
            line.hear(pack(one))
    sizes = (node.started, node.ended, head.reports.ends, head.failures, head.reports._sizes)
    assert all(len(found) <= 2 * RANKS_MAX for found in sizes)
    verdicts = [end.verdict for end, _ in head.reports.ends.values() if end.verdict is not None]
    assert 1 <= len(verdicts) <= 4  # each may have a megabyte
    assert len(said) < FEW_LINES and len(told) < FEW_LINES
    head.close()
