"""What the head of an mpirun job makes of its nodes: their reports are events of the controller."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.channel.connection import CLOSED, listen
from launcher.cluster.join import Join
from launcher.cluster.messages import Again, Busy, Over, Refuse
from launcher.cluster.settings import Shape
from launcher.core.errors import NotReady
from launcher.core.frozen import replace
from launcher.core.supervision import Restarts
from launcher.core.version import __version__
from launcher.core.wire import name_of, pack
from launcher.failure.arbiter import KILLED, LOST, MISPLACED, ORPHANED, RANK, STARTER, Event, find_first_event
from launcher.job import events
from launcher.job.commands import Stop
from launcher.mpi import lead, local
from launcher.mpi.lead import KILL_S, Lead, ServedJob
from launcher.mpi.protocol import Briefing, RankEnded
from launcher.mpi.ranks import MpiNode
from launcher.mpi.reports import Reports
from launcher.process.loop import Loop
from launcher.recovery.history import History
from launcher.remote.hub import Gate
from tests.saying import keep

HOSTS = ("a", "b")
SAME = Join(1, "one", host="b", launcher=__version__)
LATER = Join(1, "later", host="b", launcher=__version__)
MOVED = Join(1, "later", host="c", launcher=__version__)


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
    ending = SimpleNamespace(begun=True, released=False, passed_on=(), started=0, check=lambda: None)
    node = MpiNode(1, "b")
    reports = Reports([node], 2000, ending, found.append, lambda number: None)  # type: ignore[arg-type]
    reports.take(node, RankEnded(0, 0, 143, -15, asked=15, pid=1))
    for number in range(1, 1000):
        reports.take(node, RankEnded(number, 0, 7, 7, pid=number + 1))
    assert [(one.asked, one.status) for one in found] == [(True, 143), (False, 7)]
    first = find_first_event(found, {})
    assert first is not None and first.facts is not None and first.facts["rank"] == 1


class Line:
    """A connection without a socket, and what was sent on it."""

    has_unsent, limit_bytes = False, 0

    def __init__(self) -> None:
        self.is_open, self.sent = True, list[dict[str, Any]]()
        self.hear: Callable[[Any], None] = lambda message: None
        self.lose: Callable[[str], None] = lambda why: None

    def send(self, message: dict[str, Any]) -> None:
        """Keep a message."""
        self.sent.append(message)

    def send_encoded(self, encoded: bytes) -> None:
        """Keep a message that is encoded."""
        self.sent.append(json.loads(encoded))

    def redirect(self, hear: Callable[[Any], None], lose: Callable[[str], None]) -> None:
        """Take who hears."""
        self.hear, self.lose = hear, lose

    def read(self) -> None:
        """Read nothing."""

    def close(self) -> None:
        """Close it on our side."""
        self.is_open = False

    def find(self, kind: type) -> list[dict[str, Any]]:
        """Return the messages of a type that were sent."""
        return [one for one in self.sent if one["is"] == name_of(kind)]


class Led(Lead):
    """Node 0, and what it was told; its own ranks have ended at once."""

    def __init__(self, job: ServedJob, gate: Gate) -> None:
        super().__init__(job, None, gate)  # type: ignore[arg-type]
        self.done: list[object] = []

    def deliver(self, message: object) -> None:
        """Answer for the ranks of node 0."""
        self.done.append(message)
        if isinstance(message, Again):
            self.channel.hear(0, events.Ready(0, message.attempt))


class Played:
    """Node 0 of a job of two, without a socket to the other one."""

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        self.loop = Loop(keep(self.said))
        job = ServedJob(
            Shape(0, 2, 2, "a", (), HOSTS, lost_after_s=15.0, grace_s=1.0, serves=True),
            Briefing("ab12", grace_s=1.0),
            {"A": "1", "B": None},
        )
        gate = Gate(HOSTS, HOSTS, (), str(folder / "rsh"), b"k", listen("127.0.0.1", (0,))[0])
        self.lead = Led(job, gate)
        group = SimpleNamespace(helpers=None, reap=lambda: None, start_watchdog=lambda *_: None)
        self.lead.attach(
            SimpleNamespace(  # type: ignore[arg-type]
                loop=self.loop,
                say=keep(self.said),
                group=group,
                watch=SimpleNamespace(restarts=Restarts(most=3)),
            )
        )
        outcomes = SimpleNamespace(
            history=History("", keep(self.said)), exit_status=lambda status, verdict: status
        )
        self.lead.parts = SimpleNamespace(outcomes=outcomes, clean_up=None)  # type: ignore[assignment]
        self.lead._guard = SimpleNamespace(dismiss=lambda: None)  # type: ignore[assignment]
        self.line = Line()

    @property
    def phase(self) -> str:
        """What the job is doing."""
        return str(self.lead.channel.state.phase.value)

    def find(self, kind: type) -> Any:
        """Return the last message of a type for node 0 itself."""
        return [one for one in self.lead.done if isinstance(one, kind)][-1]

    def join(self, join: Join = SAME) -> None:
        """Let the other node connect."""
        self.line = Line()
        self.lead.channel._admit(self.line, "b", pack(join))  # type: ignore[arg-type]

    def be_ready(self, attempt: int) -> None:
        """Let the other node report that nothing of the last attempt is left there."""
        self.line.hear(pack(events.Ready(1, attempt)))

    def start(self) -> None:
        """Let both nodes join."""
        self.join()
        assert self.phase == "running"

    def end_attempt(self) -> None:
        """Report that the ranks of both nodes have ended."""
        self.lead.end_all(1)


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    """Yield the nodes of a job."""
    found = Played(tmp_path)
    monkeypatch.setattr(lead, "CLOSE_S", 0.0)
    yield found
    found.lead.close()
    found.loop.close()


def test_a_node_has_the_facts_and_all_variables_before_the_start(played: Played) -> None:
    """The programs that start its ranks follow on the same connection."""
    played.start()
    told = [one["is"] for one in played.line.sent]
    assert told == ["welcome", "variable", "variable", "briefing", "start"]
    assert played.line.find(Briefing)[0]["node_rank"] == 1


def test_a_head_that_cannot_have_ranks_waits_for_nobody(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own reason, at once."""

    def fail(job: str) -> None:
        raise OSError(30, "Read-only file system", "/dev/shm")

    monkeypatch.setattr(local, "make_folder", fail)
    with pytest.raises(NotReady, match="no directory for them: /dev/shm: Read-only file system"):
        played.lead.gather()


def test_a_lost_node_stops_the_attempt_and_takes_part_in_the_next(played: Played) -> None:
    """At once, without the lease of other jobs: it is ready only when nothing is left there."""
    played.start()
    played.line.lose(CLOSED)
    assert played.find(Stop).why == "node 1 (b) is lost: its connection has ended (closed by the other side)"
    played.join()
    assert played.line.find(Busy) and not played.line.is_open and played.phase == "stopping"
    played.end_attempt()
    assert played.phase == "between attempts"
    played.join()
    assert played.line.find(Again)
    played.be_ready(1)
    assert (played.phase, played.lead.attempt) == ("running", 1)
    assert "node 1 (b) is back" in played.said


def test_a_silent_node_is_lost_with_its_streams(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is closed: one that is heard again has to join again."""
    played.start()
    now = time.monotonic()
    played.lead.channel.fire(now + 1.0)
    monkeypatch.setattr(time, "monotonic", lambda: now + 19.0)
    for later in range(2, 40):
        played.lead.channel.fire(now + later * 0.5)
    assert played.phase == "running"
    for later in range(40, 45):
        played.lead.channel.fire(now + later * 0.5)
    assert played.phase == "stopping" and not played.line.is_open
    assert "it sent nothing for 20 s" in played.find(Stop).why


CUT, ENDED = "Connection timed out", CLOSED


@pytest.mark.parametrize(
    ("why", "join", "wait_s"),
    [
        (CUT, SAME, None),
        (CUT, LATER, 22.0),  # a machine of this name, perhaps another one
        (CUT, MOVED, 22.0),
        (ENDED, LATER, None),  # it finds what runs there
        (ENDED, MOVED, 0.0),
    ],
)
def test_ranks_of_a_lost_launcher_have_ended_before_others_start_in_their_place(
    why: str, join: Join, wait_s: float | None, played: Played
) -> None:
    """One that is cut off notices that the head is gone, and then its ranks have their grace."""
    played.start()
    lost_at, (_, node) = time.monotonic(), played.lead.nodes
    played.line.lose(why)
    played.end_attempt()
    played.join(join)
    played.be_ready(1)
    assert (played.phase == "running") == (wait_s is None)
    if wait_s is not None:
        assert node.free_at == pytest.approx(lost_at + wait_s + 1.0 + KILL_S, abs=1.0)
        assert played.lead.channel.state.due == node.free_at


OTHER = replace(SAME, launcher="0.0.1")


def test_a_node_with_another_version_that_comes_back_is_sent_away(played: Played) -> None:
    """The job waits on: the right launcher may still come."""
    played.start()
    played.line.lose(CLOSED)
    played.end_attempt()
    played.join(OTHER)
    (refusal,) = played.line.find(Refuse)
    assert refusal["status"] == 78 and "b (b) has launcher 0.0.1" not in refusal["what"]
    assert played.phase == "between attempts"


def test_a_node_with_another_version_ends_the_roll_call(played: Played) -> None:
    """With both versions by name."""
    played.join(OTHER)
    refusal = played.find(Refuse)
    assert refusal.status == 78 and "node 1 (b) has launcher 0.0.1; node 0 (" in refusal.what


def test_a_job_that_node_0_leaves_is_over_for_all(played: Played) -> None:
    """Whatever ends it there."""
    played.start()
    played.lead.close()
    (over,) = played.line.find(Over)
    assert over["status"] == 75
