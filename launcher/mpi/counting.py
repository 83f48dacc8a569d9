"""Checks that mpirun starts the requested number of ranks on each node."""

from __future__ import annotations

import time

from launcher.core.errors import EXIT_UNTRUSTED
from launcher.failure.model import Cause
from launcher.mpi.events import MISCOUNTED, MpiEvent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.mpi.head import Head
    from launcher.mpi.messages import Started
    from launcher.mpi.node import Node

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

    def __init__(self, head: Head) -> None:
        self.due: float | None = None
        self._head = head
        self._sizes: set[int] = set()
        self._is_wrong = self._has_said = False

    def note(self, started: Started) -> None:
        """Count a rank that has started."""
        job, nodes = self._head.job, self._head.sessions.nodes
        self._sizes.add(started.size)
        count = self._head.ranks_started()
        too_many = any(len(node.started) > job.per_node for node in nodes)
        if (too_many or self._sizes != {job.world_size}) and not self._is_wrong:
            self._is_wrong = True
            self.due = time.monotonic() + LOOK_AROUND_S
        elif count == 1 and self.due is None:
            self.due = time.monotonic() + COUNT_S
        elif count >= job.world_size and not self._is_wrong:
            self.due = None

    def fire(self, now: float) -> None:
        """End the job if ranks are wrong, or if some are late and the job is not ending anyway."""
        self.due = None
        if self._is_wrong or not self._head.ending.begun:
            late = "" if self._is_wrong else f" within {COUNT_S:g} s"
            self._complain(late)

    def check_all(self, *, succeeded: bool) -> None:
        """Check the ranks when the job has ended.

        Wrong ranks are then the cause of a failure. If mpirun reports success, ranks may still be missing.
        """
        count = self._head.ranks_started()
        if not self._has_said and (self._is_wrong or (succeeded and count != self._head.job.world_size)):
            self._complain("")

    def _complain(self, late: str) -> None:
        job, nodes = self._head.job, self._head.sessions.nodes
        what = (
            f"{job.world_size} ranks were requested on {len(nodes)} nodes, {job.per_node} on each; "
            f"{describe_places(nodes)}{late}"
        )
        self._has_said = True
        fix = "check mpirun's host options (launcher plan) and its configuration files"
        event = MpiEvent(
            None, time.time_ns(), EXIT_UNTRUSTED, cause=Cause(MISCOUNTED, what, fix, retryable=False)
        )
        self._head.begin_end(event, what)


def describe_places(nodes: Sequence[Node]) -> str:
    """Return e.g. ``8 started, all on node0`` or ``3 started (2 on node0, 1 on node1)``."""
    counts = {node.host: len(node.started) for node in nodes if node.started}
    total = sum(counts.values())
    if len(counts) == 1 and total > 1:
        return f"{total} started, all on {next(iter(counts))}"
    places = ", ".join(f"{count} on {host}" for host, count in list(counts.items())[:20])
    return f"{total} started" + (f" ({places})" if places else "")
