"""What ends a job that mpirun has started, and whether it follows from the end of mpirun itself."""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.signal import signal
from launcher.failure import arbiter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.failure.model import Cause
    from launcher.mpi.messages import RankEnded
    from launcher.mpi.node import Node

NODE_LOST, DAEMON_LOST, MISCOUNTED = "node-lost", "daemon-lost", "rank-count"
"""Codes of what is no rank's end."""
KILLED = (0, 9, 137, 205, 255)
"""Status of an mpirun that knows no more than that a rank was killed, or a node lost."""
FOLLOWS_NS = 1_000_000_000
"""The kernel closes what a killed mpirun had open before it tells us of the end: daemons can be quicker."""


@frozen
class Event:
    """Something that ends a job: a rank that has failed, a node that is lost, or a wrong shape.

    Attributes:
        node: Where.
        at_ns: When the head heard of it, nanoseconds since 1970: one clock for all nodes.
        end: What is known of the end of a rank; None if it is no rank's.
        cause: Why, if it is no rank's.
        status: What it makes the job's status.
    """

    node: Node | None
    at_ns: int
    status: int
    end: RankEnded | None = None
    cause: Cause | None = None

    @property
    def asked(self) -> bool:
        """Whether the rank has ended by a signal that was sent to make it end."""
        if self.end is None or self.end.asked is None:
            return False
        return self.end.code == 0 or self.end.asked in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)

    @property
    def code(self) -> str:
        """Of its cause; empty for a rank."""
        return self.cause.code if self.cause is not None else ""

    @property
    def may_follow(self) -> bool:
        """Whether it may be what mpirun does when it loses a node: it kills its daemons and ranks on all."""
        return self.code == DAEMON_LOST or (self.cause is None and self._is_silent)

    @property
    def only_follows(self) -> bool:
        """Whether the verdict of a rank only tells of a failure elsewhere."""
        verdict = self.end.verdict if self.end is not None else None
        return verdict is not None and bool(verdict.causes) and all(one.consequence for one in verdict.causes)

    @property
    def _is_silent(self) -> bool:
        """Whether a rank was killed together with its launcher, which could not say anything."""
        end = self.end
        if end is None or self.asked:
            return False
        return end.code == -signal.SIGKILL and end.verdict is None and not end.why


def find_first(events: Sequence[Event]) -> Event | None:
    """Return what came first, and of its own accord.

    Ranks on the wrong nodes are why anything else went wrong, and a lost node is why ranks were killed.
    """
    codes = {event.code for event in events}

    def follows(event: Event) -> bool:
        if MISCOUNTED in codes:
            return event.code != MISCOUNTED
        return event.only_follows or (event.may_follow and NODE_LOST in codes)

    return arbiter.find_first(events, follows)


def explains(code: int, status: int, ended_ns: int, event: Event) -> bool:
    """Return whether an end of mpirun that was not asked for explains an event, rather than following it.

    Args:
        code: How mpirun ended: 0 to 255, or -n by signal n.
        status: The same as a shell has it.
        ended_ns: When, nanoseconds since 1970.
        event: What the head has heard of a rank or a node.
    """
    if code < 0:
        return event.at_ns > ended_ns - (FOLLOWS_NS if event.may_follow else 0)
    # MPI_Abort: its status is mpirun's; what was asked to end after that does not say why
    return status not in KILLED and (event.may_follow or (event.asked and event.at_ns > ended_ns))
