"""What happens to a job: the input of `launcher.job.controller.step`.

``node`` is an index among all nodes. What a node says of itself is a message on the channel to node 0.
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.wire import message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.wire import Line, NodeRank, Signal, Status
    from launcher.failure.arbiter import Event
    from launcher.failure.model import Verdict
    from launcher.job.commands import Refusal


class JobEvent:
    """What happens to a job."""


@frozen
class Joined(JobEvent):
    """A launcher has called, or calls again.

    Attributes:
        session: Random name that distinguishes it from another launcher with this index.
        begun: Whether it has heard that the job has started.
        attempt: The attempt that it ran last; -1 for none.
        refusal: Why it cannot take part: another version, command or number of nodes; None if it can.
        host: Name of its host.
        described: Its host and addresses.
        free_at: Until when processes of a launcher that it replaces may run (monotonic seconds); 0 for none.
    """

    node: int
    session: str
    begun: bool = False
    attempt: int = -1
    refusal: Refusal | None = None
    host: str = ""
    described: str = ""
    free_at: float = 0.0


@frozen
class Disconnected(JobEvent):
    """The connection of a node has ended.

    Attributes:
        heard: When it was heard last.
        has_exited: Whether the other side has closed it, as by the end of that launcher.
        why: How it has ended, in words.
    """

    node: int
    heard: float
    has_exited: bool = False
    why: str = ""


@frozen
class Killed(JobEvent):
    """The launcher of a node was killed, and its watchdog has ended all that it had started."""

    node: int


@frozen
class Silent(JobEvent):
    """A node has missed a heartbeat; ``heard``: when it was heard last."""

    node: int
    heard: float


@frozen
class Heard(JobEvent):
    """A node that was silent is heard again."""

    node: int


@message
class Failed(JobEvent):
    """Something on a node ends the attempt: a process has failed, or could not be started.

    Attributes:
        event: What has failed; its node is an index, as in all events here.
        left_ms: Time until the platform takes the node back, milliseconds; None if it does not.
    """

    node: NodeRank
    event: Event
    attempt: int
    left_ms: int | None = None


@message
class Exited(JobEvent):
    """All processes of a node have ended.

    Attributes:
        status: Exit status of the node.
        record: The verdict on its processes; None if none has failed.
        progressed: Whether it saw progress; None if it does not watch for it.
        is_held: Whether a process survives SIGKILL.
    """

    node: NodeRank
    status: Status
    attempt: int
    record: Verdict | None = None
    progressed: bool | None = None
    is_held: bool = False


@message
class Received(JobEvent):
    """A node's launcher received a signal to stop; ``name``: the signal's name."""

    node: NodeRank
    number: Signal
    name: Line = ""


@message
class Ready(JobEvent):
    """Nothing of the last attempt is left on a node.

    Attributes:
        attempt: The attempt for which it is ready; 0 before the first, and from a spare node.
        unhealthy: What the health command found.
        is_held: Whether it cannot take part, because a process survives SIGKILL.
    """

    node: NodeRank
    attempt: int
    unhealthy: Line = ""
    is_held: bool = False


@frozen
class Unable(JobEvent):
    """The next attempt cannot start; ``why``: the reason, e.g. that there is no port for it."""

    node: int
    why: str


@frozen
class Probed(JobEvent):
    """The hosts of the missing nodes were probed, as `Probe` asks.

    Attributes:
        described: The missing nodes, with what is known about each.
        lines: How the nodes that are here differ.
        or_else: What else to try; empty for what helps most jobs.
    """

    described: str
    lines: tuple[str, ...] = ()
    or_else: str = ""


@frozen
class Refused(JobEvent):
    """The job must not start, as another launcher that is node 0 too has found."""

    refusal: Refusal


@message
class Left(JobEvent):
    """A node leaves: it knows how the job ended, or was asked to end while it waited as a spare one."""

    node: NodeRank


@frozen
class Tick(JobEvent):
    """Time has passed."""
