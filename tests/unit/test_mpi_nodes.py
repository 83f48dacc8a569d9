"""What the head of an mpirun job makes of its nodes: their reports are events of the controller."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.cluster.join import Join
from launcher.cluster.settings import Shape
from launcher.core.errors import NotReady
from launcher.core.model import Restarts
from launcher.core.version import __version__
from launcher.failure.arbiter import KILLED, LOST, MISPLACED, ORPHANED, RANK, STARTER, Event, find_first_event
from launcher.job import commands, events
from launcher.job.settings import BEAT_S
from launcher.mpi.nodes import KILL_S, Node, Nodes, ServedJob
from launcher.mpi.protocol import Briefing, CannotServe, Cleared, JobOver, RankEnded
from launcher.mpi.reports import Reports
from launcher.process.loop import Loop
from launcher.remote.hub import LOST_S, Gate

HOSTS = ("a", "b")


def told(*kinds: str) -> list[Event]:
    """Return events of these kinds, one a second."""
    return [Event(index, kind, index * 10**9, index + 1) for index, kind in enumerate(kinds)]


@pytest.mark.parametrize(
    ("kinds", "first"),
    [
        ((KILLED, ORPHANED, LOST), LOST),
        ((KILLED, ORPHANED, RANK), KILLED),
        ((RANK, LOST), RANK),
        ((RANK, LOST, MISPLACED), MISPLACED),
        ((KILLED, MISPLACED, STARTER, RANK), STARTER),
    ],
)
def test_what_explains_what(kinds: tuple[str, ...], first: str) -> None:
    """A lost node explains killed ranks, misplaced ranks all else, and mpirun's own end even that."""
    found = find_first_event(told(*kinds), {})
    assert found is not None and found.kind == first


def test_failed_ranks_of_a_node_are_events_as_far_as_they_can_come_first() -> None:
    """Asked for, then of its own accord, then a thousand more: two events, and the second one is first."""
    found: list[Event] = []
    ending = SimpleNamespace(begun=True, released=False, passed_on=(), check=lambda: None)
    node = Node(1, "b")
    reports = Reports([node], 2000, ending, found.append, lambda number: None)  # type: ignore[arg-type]
    reports.take(node, RankEnded(0, 0, 143, -15, asked=15, pid=1))
    for number in range(1, 1000):
        reports.take(node, RankEnded(number, 0, 7, 7, pid=number + 1))
    assert [(one.asked, one.status) for one in found] == [(True, 143), (False, 7)]
    first = find_first_event(found, {})
    assert first is not None and first.facts is not None and first.facts["rank"] == 1


class Played:
    """The nodes of a job of two, without a socket to the other one."""

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        self.done: list[commands.Command] = []
        self.sent: list[object] = []
        self.loop = Loop(lambda text, event: self.said.append(text))
        job = ServedJob(Shape(0, 2, 2, "a", (), HOSTS, grace_s=1.0), Briefing("ab12"))
        gate = Gate(HOSTS, HOSTS, (), str(folder / "rsh"), b"")
        self.nodes = Nodes(
            job, gate, self.loop, None, lambda text, event: self.said.append(text),  # type: ignore[arg-type]
            lambda node, message: None, self.done.append, Restarts(most=3),
        )  # fmt: skip
        self.nodes._hub.send = lambda index, message: self.sent.append(message)  # type: ignore[method-assign]
        self.nodes._ranks.obey = self.hear_own  # type: ignore[method-assign]
        self.serves = True

    @property
    def phase(self) -> str:
        """What the job is doing."""
        return str(self.nodes.state.phase.value)

    def hear_own(self, message: object) -> None:
        """Answer for the ranks of node 0."""
        if isinstance(message, Briefing):
            self.nodes._hear(0, Cleared() if self.serves else CannotServe("no folder"))

    def join(self, version: str = __version__) -> None:
        """Let node 1 connect."""
        self.nodes._join(1, Join(1, "one", host="b", launcher=version))

    def start(self) -> None:
        """Let both nodes join."""
        self.nodes.gather(lambda: 15, lambda: None)
        self.join()
        self.nodes._hear(1, Cleared())
        assert self.phase == "running"

    def end_attempt(self) -> None:
        """Report that the ranks of both nodes have ended."""
        for index in range(2):
            self.nodes.feed(events.Exited(index, 1, self.nodes.attempt))


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    """Yield the nodes of a job."""
    found = Played(tmp_path)
    yield found
    found.nodes._hub.close()


def test_a_node_has_joined_when_ranks_can_start_there(played: Played) -> None:
    """Not when its launcher has connected: the last attempt of another head may still be there."""
    played.nodes.gather(lambda: 15, lambda: None)
    played.join()
    assert played.phase == "gathering" and played.sent[-1] == Briefing("ab12", 1)
    played.nodes._hear(1, CannotServe("no folder for its ranks"))
    assert played.phase == "gathering"
    played.nodes._hear(1, Cleared())
    assert played.phase == "running"


def test_a_head_that_cannot_have_ranks_waits_for_nobody(played: Played) -> None:
    """Its own reason, at once."""
    played.serves = False
    with pytest.raises(NotReady, match="no folder"):
        played.nodes.gather(lambda: None, lambda: None)


def test_a_lost_node_stops_the_attempt_and_takes_part_in_the_next(played: Played) -> None:
    """At once, without the lease of other jobs: it is ready only when nothing is left there."""
    played.start()
    played.nodes._lose(1, "closed", True)
    stop = next(one for one in played.done if isinstance(one, commands.Stop))
    assert stop.why == "node 1 (b) is lost: its connection has ended (closed)"
    played.sent.clear()
    played.join()
    assert not played.sent and played.phase == "stopping"
    played.end_attempt()
    assert played.phase == "between attempts"
    assert isinstance(played.sent[-1], Briefing), "it was here before the attempt had ended"
    played.nodes._hear(1, Cleared())
    assert (played.phase, played.nodes.attempt) == ("running", 1)
    assert "node 1 (b) is back" in played.said


def test_a_fault_of_ours_between_two_attempts_ends_the_job(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes would wait for the next attempt for ever."""

    def fail(attempt: int) -> None:
        raise ValueError("a fault")

    played.start()
    monkeypatch.setattr(played.nodes, "_renew", fail)
    played.nodes._lose(1, "closed", True)
    with pytest.raises(ValueError, match="a fault"):
        played.end_attempt()
    assert played.phase == "over"
    over = played.nodes.state.over
    assert over is not None and over.decision is not None and "a fault" in over.decision.why


SAME = Join(1, "one", host="b", launcher=__version__)
LATER = Join(1, "later", host="b", launcher=__version__)
MOVED = Join(1, "later", host="c", launcher=__version__)
CUT_OFF_S = LOST_S + BEAT_S


@pytest.mark.parametrize(
    ("ended", "here", "wait_s"),
    [
        (False, SAME, None),
        (False, LATER, CUT_OFF_S),  # a machine of this name, perhaps another one
        (False, MOVED, CUT_OFF_S),
        (True, LATER, None),  # it finds what runs there
        (True, MOVED, 0.0),
    ],
)
def test_ranks_of_a_lost_launcher_have_ended_before_others_start_in_their_place(
    ended: bool, here: Join, wait_s: float | None, played: Played
) -> None:
    """One that is cut off notices that the head is gone, and then its ranks have their grace."""
    played.start()
    lost_at, (_, node) = time.monotonic(), played.nodes.all
    played.nodes._lose(1, "gone", ended)
    played.end_attempt()
    played.nodes._join(1, here)
    played.nodes._hear(1, Cleared())
    assert (played.phase == "running") == (wait_s is None)
    if wait_s is not None:
        grace_s = played.nodes._briefing.grace_s
        assert node.free_at == pytest.approx(lost_at + wait_s + grace_s + KILL_S, abs=1.0)
        assert played.nodes.state.due == node.free_at


def test_a_node_with_another_version_that_comes_back_is_sent_away(played: Played) -> None:
    """The job waits on: the right launcher may still come."""
    played.start()
    played.nodes._lose(1, "closed", True)
    played.end_attempt()
    played.join("0.0.1")
    assert played.sent[-1] == JobOver(78)
    assert played.phase == "between attempts"


def test_a_node_with_another_version_ends_the_roll_call(played: Played) -> None:
    """With both versions by name."""
    played.nodes.gather(lambda: 15, lambda: None)
    played.join("0.0.1")
    over = played.nodes.state.over
    assert over is not None and over.refusal is not None and over.status == 78
    assert "b has launcher 0.0.1; a has launcher" in over.refusal.problem.what
