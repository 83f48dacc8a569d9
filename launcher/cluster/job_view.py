"""The job as one of its nodes knows it: the attempt that runs, and what node 0 has decided."""

from __future__ import annotations

from launcher.agent.agent import Place
from launcher.core.frozen import replace
from launcher.core.messages import Garbled
from launcher.core.model import NODE
from launcher.identity.seats import find_rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.cluster.messages import Again, Over, Refuse, Start, Stop
    from launcher.cluster.settings import Shape

RUN = "run"
"""In the values of the start signal: the name of the run."""
RUN_LENGTH = 64


class Attempt:
    """One attempt of the job on this node, from the moment when it is awaited.

    Attributes:
        number: 0 for the first.
        agreed: Values from the start signal; None before it.
        stop: What stops the attempt, once node 0 has told.
        again: The attempt that follows, once node 0 has told.
        has_begun: Whether the processes have been started, or are about to be.
        has_failed: Whether this node has reported an event that ends the attempt.
        has_told_end: Whether this node has reported how its processes ended.
    """

    def __init__(self, number: int | None = None) -> None:
        """Await an attempt; ``number``: None for the first that starts."""
        self.number = number or 0
        self._is_any = number is None
        self.agreed: Mapping[str, object] | None = None
        self.stop: Stop | None = None
        self.again: Again | None = None
        self.has_begun = self.has_failed = self.has_told_end = False

    def awaits(self, start: Start) -> bool:
        """Whether a start signal is that of this attempt, and the first one."""
        return self.agreed is None and (self._is_any or start.attempt == self.number)

    def take(self, start: Start) -> None:
        """Take the values of the start signal."""
        self.number, self.agreed = start.attempt, start.agreed
        self.stop = self.again = None  # what a spare node has heard of earlier attempts


class JobView:
    """The job as this node knows it; the parts of `ClusterNode` share it.

    Attributes:
        shape: The job, and this node's place in it.
        attempt: The attempt that runs or is awaited.
        agreed_last: Values from the start signal with which our processes were made last; None before.
        refusal: Why the job does not start, once node 0 has told.
        over: How the job has ended, once node 0 has decided, or is lost.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.attempt = Attempt()
        self.agreed_last: Mapping[str, object] | None = None
        self.refusal: Refuse | None = None
        self.over: Over | None = None

    @property
    def has_news(self) -> bool:
        """Whether node 0 has told whether an attempt starts."""
        return any(one is not None for one in (self.attempt.agreed, self.refusal, self.over))

    @property
    def is_attempt_over(self) -> bool:
        """Whether node 0 has told what follows the attempt."""
        return self.over is not None or self.attempt.again is not None

    def take_start(self, start: Start) -> Place | None:
        """Take part in an attempt, unless the signal came twice or this node is a spare one.

        Returns:
            The place of this node in the job; None if it stays as it is.

        Raises:
            Garbled: The signal gives places to nodes that the job does not have.
        """
        shape = self.shape
        if not self.attempt.awaits(start):
            return None
        rank = find_rank(shape.index, shape.node_count, read_seats(start.agreed, shape))
        if rank is None:
            return None
        self.attempt.take(start)
        if shape.member != NODE:
            return None
        self.shape = replace(shape, node_rank=rank, is_spare=False)
        return Place(rank, shape.world_size)


def name_run(agreed: Mapping[str, object]) -> str:
    """Return the name of the run, as the start signal has it; empty from a node 0 that does not tell it."""
    told = agreed.get(RUN)
    return told if isinstance(told, str) and len(told) <= RUN_LENGTH and told.isalnum() else ""


def read_seats(agreed: Mapping[str, object], shape: Shape) -> dict[int, int]:
    """Return the ranks of nodes that took the place of others, by index, as the start signal has them.

    Raises:
        Garbled: A node or a place that the job does not have, or two nodes with one place.
    """
    told = agreed.get("seats", {})
    indices = {str(index): index for index in range(shape.node_count + shape.spare_count)}
    ranks = range(shape.node_count)
    if not isinstance(told, dict) or not all(index in indices for index in told):
        raise Garbled("seats of nodes that are none of the job")
    if not all(type(rank) is int and rank in ranks for rank in told.values()):
        raise Garbled("seats that are none of the job")
    if len(set(told.values())) < len(told):
        raise Garbled("a seat of two nodes")
    return {indices[index]: rank for index, rank in told.items()}
