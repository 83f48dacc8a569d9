"""Checks that mpirun starts the requested number of ranks on each node."""

from __future__ import annotations

import time

from launcher.mpi.events import make_misplaced

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.failure.arbiter import Event
    from launcher.mpi.nodes import Node
    from launcher.mpi.protocol import Started

COUNT_S = 60.0
"""Seconds that all ranks may take to start, counted from the first."""
LOOK_AROUND_S = 0.5
"""Seconds between the first wrong rank and the message, so that it counts the ranks that follow."""


class Counting:
    """Counts the ranks that start, and ends the job if they are not those that were requested.

    An mpirun that does not follow the hostfile runs all ranks on one node, and reports success.

    Attributes:
        due: When `fire` has something to do.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        per_node: int,
        is_ending: Callable[[], bool],
        fail: Callable[[Event], None],
    ) -> None:
        """Begin with an attempt.

        Args:
            nodes: The nodes of the job.
            per_node: Number of ranks that were requested on each.
            is_ending: Whether the job ends anyway.
            fail: Takes the failure.
        """
        self.due: float | None = None
        self._nodes, self._per_node, self._is_ending, self._fail = nodes, per_node, is_ending, fail
        self._sizes: set[int] = set()
        self._is_wrong = self._has_said = False

    def note(self, started: Started) -> None:
        """Count a rank that has started."""
        self._sizes.add(started.size)
        count = self._count()
        too_many = any(len(node.started) > self._per_node for node in self._nodes)
        if (too_many or self._sizes != {self._wanted}) and not self._is_wrong:
            self._is_wrong = True
            self.due = time.monotonic() + LOOK_AROUND_S
        elif count == 1 and self.due is None:
            self.due = time.monotonic() + COUNT_S
        elif count >= self._wanted and not self._is_wrong:
            self.due = None

    @property
    def _wanted(self) -> int:
        return self._per_node * len(self._nodes)

    def _count(self) -> int:
        return sum(len(node.started) for node in self._nodes)

    def fire(self, now: float) -> None:
        """End the job if ranks are wrong, or if some are late and the job is not ending anyway."""
        self.due = None
        if self._is_wrong or not self._is_ending():
            late = "" if self._is_wrong else f" within {COUNT_S:g} s"
            self._complain(late)

    def check_all(self, *, succeeded: bool) -> None:
        """Check the ranks when the job has ended.

        Wrong ranks are then the cause of a failure. If mpirun reports success, ranks may still be missing.
        """
        count = self._count()
        if not self._has_said and (self._is_wrong or (succeeded and count != self._wanted)):
            self._complain("")

    def _complain(self, late: str) -> None:
        what = (
            f"{self._wanted} ranks were requested on {len(self._nodes)} nodes, {self._per_node} on each; "
            f"{describe_places(self._nodes)}{late}"
        )
        self._has_said = True
        self._fail(make_misplaced(what))


def describe_places(nodes: Sequence[Node]) -> str:
    """Return e.g. ``8 started, all on node0`` or ``3 started (2 on node0, 1 on node1)``."""
    counts = {node.host: len(node.started) for node in nodes if node.started}
    total = sum(counts.values())
    if len(counts) == 1 and total > 1:
        return f"{total} started, all on {next(iter(counts))}"
    places = ", ".join(f"{count} on {host}" for host, count in list(counts.items())[:20])
    return f"{total} started" + (f" ({places})" if places else "")
