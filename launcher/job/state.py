"""The state of a job: its rules, its phase, its nodes, the attempt that runs, and the wait for the next one.

A node is found by its index among all nodes, with the spare ones. One node holds a rank: `State.holders`.
All times are seconds of the monotonic clock of the launcher that decides.
"""

from __future__ import annotations

from launcher.core.frozen import Enum, frozen
from launcher.core.model import NODE
from launcher.core.supervision import GRACE_S, Restarts
from launcher.job.settings import HEAL_S, QUIET_S, SLACK_S, STARTER_S, find_given_up_s, find_lease_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.failure.arbiter import Event
    from launcher.failure.model import Verdict
    from launcher.job.commands import EndAttempt, EndJob, Stop
    from launcher.job.row import FrozenRow
    from launcher.recovery.policy import FailedAttempt


class Phase(Enum):
    """What a job is doing."""

    GATHERING = "gathering"
    RUNNING = "running"
    STOPPING = "stopping"
    BETWEEN = "between attempts"
    OVER = "over"


class Link(Enum):
    """How a node can be heard."""

    OPEN = "open"
    SILENT = "silent"
    CLOSED = "closed"
    ENDED = "ended"


@frozen
class Job:
    """What does not change about a job.

    Attributes:
        node_count: Number of nodes that take part.
        spare_count: Number of nodes that wait to take the place of a lost one.
        grace_s: Seconds between SIGTERM and SIGKILL.
        lost_after_s: Seconds for which a link may be down.
        roll_call_s: Time limit of the roll call.
        member: What has a launcher of its own: a node, or a rank; the texts call it so.
        keep_going: Whether the other nodes go on after a failure or a lost node.
        restarts: What the user allows after a failure.
        seed: Seed for the random part of waits.
        serves: Whether the other nodes serve node 0, which starts their ranks: the end of a connection is the
            loss of its node, and what a lost launcher has left has its grace, so that the one in its place
            is not ready before it has looked.
    """

    node_count: int
    spare_count: int = 0
    grace_s: float = GRACE_S
    lost_after_s: float = 10.0
    roll_call_s: float = 900.0
    member: str = NODE
    keep_going: bool = False
    restarts: Restarts = Restarts()
    seed: str = ""
    serves: bool = False

    @property
    def given_up_s(self) -> float:
        """Seconds after the last message until a node, or node 0, counts as lost."""
        return find_given_up_s(self.lost_after_s)

    @property
    def end_s(self) -> float:
        """Seconds beside the grace and the loss of a node, after which it is decided how an attempt ended."""
        return STARTER_S if self.serves else SLACK_S

    @property
    def closed_s(self) -> float:
        """Seconds after the end of a connection until its node counts as lost."""
        return 0.0 if self.serves else self.lost_after_s

    @property
    def lease_s(self) -> float:
        """Seconds from an answered heartbeat until everything on that node must have ended."""
        return find_lease_s(self.lost_after_s, self.grace_s)


NEVER = -1e9, -1e9
"""No silence."""


@frozen
class Node:
    """A launcher as node 0 knows it.

    Attributes:
        session: Random name that tells it from an earlier launcher with the same index.
        rank: The rank that it holds; None for a spare node.
        host: Name of its host.
        described: Its host and addresses.
        link: How it can be heard.
        heard: When it was heard last, if it cannot be heard any more.
        since: When its connection was closed, or `heard`.
        why: How its connection has ended, in words.
        has_exited: Whether its connection was closed, as by the end of its launcher.
        quiet: From when to when it could not be heard, the last time that it was heard again, or was lost so.
        part: The attempt in which it took part last; -1 for none.
        ended: Status of its processes in this attempt; None while they run.
        is_lost: Whether it was lost in this attempt.
        is_ready: Whether it is ready for the next attempt.
        health: What its health command found, empty if nothing; None before its answer.
        is_held: Whether processes that survive SIGKILL keep it from taking part again.
        has_left: Whether it has given node 0 up, or knows how the job ended.
        record: The verdict on its processes.
    """

    session: str
    rank: int | None
    host: str = ""
    described: str = ""
    link: Link = Link.OPEN
    heard: float = 0.0
    since: float = 0.0
    why: str = ""
    has_exited: bool = False
    quiet: tuple[float, float] = NEVER
    part: int = -1
    ended: int | None = None
    is_lost: bool = False
    is_ready: bool = False
    health: str | None = None
    is_held: bool = False
    has_left: bool = False
    record: Verdict | None = None

    def find_quiet(self, now: float) -> tuple[float, float]:
        """Return from when to when it was not heard, but perhaps for a moment; it is away now."""
        begin, end = self.quiet
        return begin if self.heard - end <= QUIET_S + HEAL_S else self.heard, now


@frozen
class Attempt:
    """The attempt that runs, or ran last.

    Attributes:
        number: 0 for the first.
        began: When it was started.
        open: Number of nodes that have neither ended nor been lost.
        events: What has failed, in the order of the reports.
        first_at: When the first report came.
        stop: The order to stop, once sent.
        held: A failure that only follows from another, and until when that other one is awaited.
        decide_by: When it is decided even if nodes have not ended.
        progressed: Whether any node saw progress; None if none watches for it.
        after: How the job would have ended without it; None for the first.
    """

    number: int
    began: float
    open: int
    events: tuple[Event, ...] = ()
    first_at: float | None = None
    stop: Stop | None = None
    held: tuple[float, Event] | None = None
    decide_by: float | None = None
    progressed: bool | None = None
    after: EndJob | None = None


@frozen
class Pause:
    """The wait for the next attempt.

    Attributes:
        again: What all nodes were sent.
        not_before: When the attempt may start at the earliest: by then nothing of the last one runs.
        closed: The same for nodes whose connection was closed and that have not said that they end, by index:
            it may be the end of what is between them and us. A successor shows that they have ended.
        ready: Number of ranks whose holder is ready.
        until: Until when each rank is waited for, if that is not `until_all`.
        hosts: The host that had each rank.
        until_all: Until when the nodes are waited for.
    """

    again: EndAttempt
    not_before: float
    ready: int
    until_all: float
    until: Mapping[int, float] = {}
    hosts: Mapping[int, str] = {}
    closed: Mapping[int, float] = {}

    @property
    def starts_at(self) -> float:
        """When the attempt may start at the earliest."""
        return max((self.not_before, *self.closed.values()))


@frozen
class State:
    """A job.

    Attributes:
        job: What does not change.
        phase: What the job is doing.
        began: When node 0 began.
        nodes: The launchers by index; None for one that is not here.
        holders: The index of the node that holds each rank; None for none.
        missing: Number of ranks that no node holds.
        seats: The ranks of the nodes that have the place of another one, by index.
        away: Indices of the nodes that are silent or whose connection is closed.
        unhealthy: Until when a spare node is awaited for an unhealthy one, by its index.
        is_told: Whether the job was asked to end by a signal.
        left: How nodes have left again that had joined before the start, by index.
        is_probing: Whether the roll call has taken too long, and the hosts of the missing nodes are probed.
        attempt: The attempt that runs, or ran last; None before the first.
        pause: The wait for the next attempt; None while there is none.
        failed: The attempts that have failed.
        over: How the job has ended.
        leave_by: Until when nodes can hear that.
        due: When to call again if nothing happens; None for never.
    """

    job: Job
    phase: Phase
    began: float
    nodes: FrozenRow[Node | None]
    holders: FrozenRow[int | None]
    missing: int
    seats: Mapping[int, int] = {}
    away: frozenset[int] = frozenset()
    unhealthy: Mapping[int, float] = {}
    is_told: bool = False
    left: Mapping[int, str] = {}
    is_probing: bool = False
    attempt: Attempt | None = None
    pause: Pause | None = None
    failed: tuple[FailedAttempt, ...] = ()
    over: EndJob | None = None
    leave_by: float | None = None
    due: float | None = None

    @property
    def attempt_number(self) -> int:
        """Number of the attempt that runs, or ran last; 0 before the first."""
        return 0 if self.attempt is None else self.attempt.number
