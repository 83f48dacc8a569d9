"""What the nodes and the coordinator say to each other: one frozen type for each message.

On the channel a message is a JSON object with its name under ``"is"``. What arrives is checked by the types
of the fields (`launcher.core.messages`): a message that is none ends its connection.
"""

from __future__ import annotations

from launcher.core.messages import message
from launcher.failure.arbiter import Event
from launcher.failure.model import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.core.messages import Line, NodeRank, Signal, Status


# --- from a node to the coordinator


@message
class Failed:
    """Something on this node ends the job, or would without ``--keep-going``.

    Attributes:
        kind: Of the event, see `launcher.failure.arbiter`.
        at_ns: When, by the coordinator's monotonic clock.
        within_ns: How wrong that may be, either way.
        status: What it makes the job's status.
        what: In words.
        asked: Whether that process was asked to end before.
        follows: Whether its last words only tell of a failure elsewhere.
        called: What the process is called if it has no rank.
        left_ms: How long the machine lasts that is taken back.
    """

    kind: Line
    at_ns: int
    status: Status
    within_ns: int = 0
    what: Line = ""
    asked: bool = False
    follows: bool = False
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    code: int | None = None
    called: Line = ""
    left_ms: int | None = None


@message
class Told:
    """The launcher of this node was told to end, by a signal."""

    number: Signal
    name: Line


@message
class Ended:
    """All processes of this node have ended; ``record``: the verdict on them."""

    status: Status
    record: Verdict | None = None


@message
class Looked:
    """What the ranks of this node do, of those that do not just wait; ``count``: of how many."""

    stopped: tuple[Line, ...]
    stuck: tuple[Line, ...]
    busy: tuple[Line, ...]
    count: int


@message
class Reply:
    """What a node says to a question of the coordinator."""

    number: int
    answer: object


@message
class MachineNotice:
    """What a cloud says of the machine of this node.

    Attributes:
        kind: One of `launcher.preemption.events`.
        what: In words.
        left_ms: How long the machine lasts.
    """

    kind: Line
    what: Line
    left_ms: int


@message
class Bye:
    """This node hangs up."""


# --- in both directions


@message
class Beat:
    """Nothing, but that we are there."""


@message
class Ask:
    """A question to all nodes, or the same passed on to one of them.

    Attributes:
        number: Of the question, for the side that asks.
        what: One of `launcher.cluster.questions.PACES`.
        threads: Whether stacks are to be of all threads.
    """

    number: int
    what: Line
    threads: bool = False


# --- from the coordinator to a node


@message
class Welcome:
    """The node is let in; three times by which it measures how far the clocks are apart."""

    asked_ns: int
    heard_ns: int
    answered_ns: int


@message
class Busy:
    """The coordinator is of another job, or the job has begun without this node."""

    why: Line


@message
class Waiting:
    """Other nodes are waited for."""

    what: Line


@message
class Start:
    """All nodes are here; ``agreed``: what all are to have alike."""

    agreed: Mapping[str, object]


@message
class Refuse:
    """The job does not start: the status, a table of nodes that differ, and the problem."""

    status: Status
    lines: tuple[Line, ...]
    code: Line
    what: str
    where: str
    fix: str


@message
class Look:
    """A node hangs: tell what your ranks do."""


@message
class Stop:
    """The job ends because of something on a node.

    Attributes:
        what: In words.
        by: Rank of the node; -1 for this one itself, which has lost the coordinator.
        told: The signal by which that node was told to end.
        left_ms: How long the machine of that node lasts, which is taken back.
    """

    what: Line
    by: int
    told: Signal | None = None
    left_ms: int | None = None


@message
class News:
    """The same with ``--keep-going``: nothing ends."""

    what: Line
    by: int


@message
class Passed:
    """What a node has answered, for the node that has asked.

    Attributes:
        number: Of the question.
        node: The node; None where this is about no node.
        answer: What it says.
        why: Why it says nothing.
        note: What else is to be known.
        over: Nothing more comes.
    """

    number: int
    node: NodeRank | None = None
    answer: object = None
    why: Line = ""
    note: Line = ""
    over: bool = False


@message
class NodeNotice:
    """A `MachineNotice` of a node, for all."""

    by: NodeRank
    notice: MachineNotice


@message
class First:
    """What came first.

    Attributes:
        event: What it was.
        host: Of its node.
        ago_ns: How long ago it was, when the coordinator told of it ...
        wall_ns: ... and the wall clock then, nanoseconds since 1970.
    """

    event: Event
    host: str
    ago_ns: int
    wall_ns: int


@message
class Over:
    """How the job has ended.

    Attributes:
        status: Of the job.
        first: What came first; None where nothing has failed.
        record: The verdict of its node, where that is known.
        also: What else has failed of its own accord, in words.
    """

    status: Status
    first: First | None = None
    record: Verdict | None = None
    also: tuple[Line, ...] = ()


FROM_NODE = (Failed, Told, Ended, Looked, Reply, MachineNotice, Bye, Beat, Ask)
FROM_COORDINATOR = (
    *(Welcome, Busy, Waiting, Start, Refuse, Look, Stop, News, Over, Passed, NodeNotice, Beat, Ask),
)
