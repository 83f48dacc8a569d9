"""Messages between the nodes and the coordinator: one frozen type for each, beside `launcher.job.events`.

Those about a hang are in `launcher.hang.model`. On the channel a message is a JSON object with its name under
``"is"``. A message that arrives is checked by the types of its fields (`launcher.core.wire`); an invalid one
ends its connection.
"""

from __future__ import annotations

from launcher.core.wire import message
from launcher.failure.arbiter import Event
from launcher.failure.model import Verdict
from launcher.hang.model import Hung, Look, Looked, Quiet, Seen
from launcher.job.commands import News, Stop
from launcher.job.events import Exited, Failed, Left, Ready, Received

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.core.wire import Line, NodeRank, Raw, Seconds, Status, Word


# --- from a node to the coordinator


@message
class Reply:
    """A node's answer to a question of the coordinator."""

    number: int
    answer: object


@message
class MachineNotice:
    """A preemption notice of a cloud for this node.

    Attributes:
        kind: One of `launcher.preemption.events`.
        what: Description.
        left_ms: Time until this node is preempted.
    """

    kind: Line
    what: Line
    left_ms: int


# --- in both directions


@message
class Beat:
    """Heartbeat of a node, and node 0's answer to it.

    Attributes:
        sent: When it was sent, by the monotonic clock of the node, seconds.
    """

    sent: Seconds = 0.0


@message
class Ask:
    """A question to all nodes, or the same passed on to one of them.

    Attributes:
        number: Number of the question, chosen by the side that asks.
        what: One of `launcher.cluster.questions.PACES`.
        threads: Whether stacks should include all threads.
        native: Whether stacks should include C functions.
        argv: Command line of a program to run.
        limit_s: Seconds that it may take.
        nodes: The nodes that are asked; empty for all.
    """

    number: int
    what: Line
    threads: bool = False
    native: bool = False
    argv: tuple[Raw, ...] = ()
    limit_s: Seconds = 0.0
    nodes: tuple[NodeRank, ...] = ()


# --- from the coordinator to a node


@message
class Welcome:
    """The node is admitted; three times, from which it computes the clock offset."""

    asked_ns: int
    heard_ns: int
    answered_ns: int


@message
class Busy:
    """The coordinator belongs to another job, or has started the job without this node."""

    why: Line


@message
class Waiting:
    """The coordinator waits for other nodes."""

    what: Line


@message
class Start:
    """All nodes are here; they use the same values, see `launcher.cluster.agreed`.

    Attributes:
        attempt: Attempt of the job, 0 for the first.
        master_port: Port of the rendezvous; None for the one that each node knows.
        run: Name of the run; None if it has none.
        seats: The ranks of nodes that took the place of others, by index.
        hosts: The addresses of all nodes, packed; None if they know them.
    """

    attempt: int = 0
    master_port: int | None = None
    run: Word | None = None
    seats: Mapping[str, NodeRank] = {}
    hosts: object = None


@message
class Refuse:
    """The job does not start: the status, a table of the differences, and the problem."""

    status: Status
    lines: tuple[Line, ...]
    code: Line
    what: str
    where: str
    fix: str


@message
class Passed:
    """The answer of a node, for the node that asked.

    Attributes:
        number: Number of the question.
        node: The node that answered; None if this is not about one node.
        answer: The answer.
        why: Why there is no answer.
        note: Remark about the question as a whole.
        over: Whether this is the last message about the question.
    """

    number: int
    node: NodeRank | None = None
    answer: object = None
    why: Line = ""
    note: Line = ""
    over: bool = False


@message
class NodeNotice:
    """A `MachineNotice` of a node, sent to all nodes."""

    by: NodeRank
    notice: MachineNotice


@message
class First:
    """The event that came first.

    Attributes:
        event: The event.
        host: Host of its node.
        ago_ns: Its age when the coordinator sent this ...
        wall_ns: ... and the wall clock at that time, nanoseconds since 1970.
    """

    event: Event
    host: str
    ago_ns: int
    wall_ns: int


@message
class Over:
    """How the job has ended.

    Attributes:
        status: Status of the job.
        first: The event that came first; None if nothing has failed.
        record: The verdict of its node, if known.
        also: Descriptions of what else has failed of its own accord.
        why: Why no other attempt follows; empty if none was allowed.
        leaves: Whether only this node leaves. The job goes on without it, and its processes have not failed:
            they were killed for that.
        is_stopped: Whether only a signal has kept another attempt from following.
    """

    status: Status
    first: First | None = None
    record: Verdict | None = None
    also: tuple[Line, ...] = ()
    why: Line = ""
    leaves: bool = False
    is_stopped: bool = False


@message
class Again:
    """An attempt has failed, and another one follows.

    Attributes:
        attempt: The next attempt, 1 for the second.
        over: How the job would have ended without it.
        why: The restart, in words for the log.
        run: Name of the run.
    """

    attempt: int
    over: Over
    why: Line
    run: Line = ""


FROM_NODE = (Failed, Received, Exited, Ready, Left, Quiet, Looked, Reply, MachineNotice, Beat, Ask)
FROM_COORDINATOR = (
    *(Welcome, Busy, Waiting, Start, Refuse, Look, Hung, Stop, News, Seen, Over, Again),
    *(Passed, NodeNotice, Beat, Ask),
)
