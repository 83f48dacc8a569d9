"""Events that end a job which mpirun has started, and whether the end of mpirun itself explains them."""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.signal import signal
from launcher.failure import arbiter
from launcher.failure.arbiter import NODE_LOST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.failure.model import Cause
    from launcher.mpi.messages import RankEnded
    from launcher.mpi.nodes import Node

DAEMON_LOST, MISCOUNTED = "daemon-lost", "rank-count"
"""Codes of events that are not the end of a rank."""
KILLED = (0, 9, 137, 205, 255)
"""Exit statuses of an mpirun that only knows that a rank was killed or a node was lost."""
FOLLOWS_NS = 1_000_000_000
"""Nanoseconds by which an event may precede the reported end of a killed mpirun that caused it.

The kernel closes the descriptors of mpirun before it reports the end to us: its daemons can react earlier.
"""


@frozen
class MpiEvent:
    """An event that ends a job: a failed rank, a lost node or MPI daemon, or a wrong number of ranks.

    Attributes:
        node: The node; None if it concerns mpirun itself.
        at_ns: When the head received it, by its monotonic clock: one for all nodes, which nobody sets.
        status: The job's status if this event came first.
        end: The reported end of the rank; None if the event is not the end of a rank.
        cause: The cause, if the event is not the end of a rank.
    """

    node: Node | None
    at_ns: int
    status: int
    end: RankEnded | None = None
    cause: Cause | None = None

    @property
    def asked(self) -> bool:
        """Whether the rank has ended because it was sent a signal to end."""
        if self.end is None or self.end.asked is None:
            return False
        return self.end.code == 0 or self.end.asked in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)

    @property
    def code(self) -> str:
        """Code of the cause; empty for the end of a rank."""
        return self.cause.code if self.cause is not None else ""

    @property
    def may_follow(self) -> bool:
        """Whether mpirun may have caused it: when it loses a node, it kills its daemons and ranks on all."""
        return self.code == DAEMON_LOST or (self.cause is None and self._is_silent)

    @property
    def only_follows(self) -> bool:
        """Whether the verdict of the rank only reports a failure elsewhere."""
        verdict = self.end.verdict if self.end is not None else None
        return verdict is not None and bool(verdict.causes) and all(one.consequence for one in verdict.causes)

    @property
    def _is_silent(self) -> bool:
        """Whether the rank was killed together with its wrapper, which could not report anything."""
        end = self.end
        if end is None or self.asked:
            return False
        return end.code == -signal.SIGKILL and end.verdict is None and not end.why


def find_first(events: Sequence[MpiEvent]) -> MpiEvent | None:
    """Return the first event that does not follow from another one; None without events.

    Ranks on the wrong nodes explain all other events, and a lost node explains killed ranks.
    """
    codes = {event.code for event in events}

    def follows(event: MpiEvent) -> bool:
        if MISCOUNTED in codes:
            return event.code != MISCOUNTED
        return event.only_follows or (event.may_follow and NODE_LOST in codes)

    return arbiter.find_first(events, follows)


def explains(code: int, status: int, ended_ns: int, event: MpiEvent) -> bool:
    """Whether the end of mpirun explains an event, rather than follows from it.

    Args:
        code: mpirun's exit code: 0 to 255, or -n for signal n; we have not asked it to end.
        status: The same as a shell reports it.
        ended_ns: When it ended, by the same clock as the event.
        event: The event of a rank or a node.
    """
    if code < 0:
        return event.at_ns > ended_ns - (FOLLOWS_NS if event.may_follow else 0)
    # MPI_Abort: mpirun has its status. Ranks that were asked to end after that do not tell the cause.
    return status not in KILLED and (event.may_follow or (event.asked and event.at_ns > ended_ns))
