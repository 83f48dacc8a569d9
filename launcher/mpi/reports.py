"""What the nodes report of the ranks in one attempt: what has failed becomes an event of the job."""

from __future__ import annotations

import time

from launcher.core.frozen import replace
from launcher.core.signal import signal
from launcher.failure.arbiter import RANK
from launcher.mpi.counting import Counting
from launcher.mpi.events import make_orphaned, make_rank_event
from launcher.mpi.protocol import Abandoned, Gone, Orphaned, RankEnded, Started

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.failure.arbiter import Event
    from launcher.failure.model import Verdict
    from launcher.mpi.ending import RanksTarget
    from launcher.mpi.nodes import Node

RANKS_MAX = 1024
"""Ranks of a node that are counted beyond those that the job has: a faulty mpirun may start all on one."""


class Reports:
    """The reports of an attempt.

    Attributes:
        ends: How each rank has ended, and when we heard of it (monotonic nanoseconds); by rank.
        counting: Checks the ranks that start.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        per_node: int,
        ending: RanksTarget,
        fail: Callable[[Event], None],
        on_signalled: Callable[[int], None],
    ) -> None:
        """Begin with an attempt.

        Args:
            nodes: The nodes of the job.
            per_node: Number of ranks that were requested on each.
            ending: The end of the ranks.
            fail: Takes what has failed.
            on_signalled: Takes a signal that was only forwarded, and of which a rank has died.
        """
        self.ends: dict[int, tuple[RankEnded, int]] = {}
        self.counting = Counting(nodes, per_node, lambda: ending.begun, fail)
        self._ending, self._fail, self._on_signalled = ending, fail, on_signalled
        self._least: dict[int, tuple[bool, bool]] = {}
        """Whether the failures of a node were all asked for, and all only follow from others; by node."""
        self._most = per_node * len(nodes) + RANKS_MAX

    def take(self, node: Node, message: object) -> None:
        """Take a message from a node."""
        match message:
            case Started() | RankEnded() if (
                message.pid not in node.started and len(node.started) >= self._most
            ):
                pass  # it names ranks that it cannot have
            case Started() if message.pid not in node.started:
                node.started[message.pid] = message.rank
                self.counting.note(message)
            case RankEnded() if message.pid not in node.ended:
                self._note_end(node, message)
            case Gone() if node.runs(message.pid):
                # After the release mpirun kills the remaining ranks if one has failed
                asked = int(signal.SIGKILL) if self._ending.released else None
                self._note_end(node, killed(node, message.pid, asked))
            case Abandoned() if node.runs(message.pid) and not self._ending.released:
                event = make_rank_event(node, killed(node, message.pid))
                what = f"mpirun ended rank {node.started[message.pid]} on {node.host}"
                self._fail(replace(event, what=what))
            case Orphaned():
                self._fail(make_orphaned(node, message.daemon))

    def _note_end(self, node: Node, end: RankEnded) -> None:
        """Note the end of a rank; a failure ends the attempt."""
        node.started.setdefault(end.pid, end.rank)
        node.ended.add(end.pid)
        self.ends[end.rank] = end, (at_ns := time.monotonic_ns())
        if end.asked in self._ending.passed_on and end.status == 128 + (end.asked or 0):
            self._on_signalled(end.asked or 0)
        if not (end.status and self._note_failure(make_rank_event(node, end))):
            self.ends[end.rank] = replace(end, verdict=None), at_ns  # a long one, of which nothing is shown
        self._ending.check()

    def _note_failure(self, event: Event) -> bool:
        """Pass on the failure of a rank, unless an earlier one of its node comes before it in any case."""
        order, least = (event.asked, event.follows), self._least.get(event.node)
        if event.kind == RANK and least is not None and order >= least:
            return False
        if event.kind == RANK:
            self._least[event.node] = order
        self._fail(event)
        return True

    def find_verdict(self, first: Event | None) -> Verdict | None:
        """Return the verdict of the rank whose failure this is; None if there is none."""
        facts = {} if first is None else first.facts or {}
        end = self.ends.get(facts.get("rank", -2))
        return None if end is None else end[0].verdict


def killed(node: Node, pid: int, asked: int | None = None) -> RankEnded:
    """Return the end of a rank that has not reported one: its wrapper was killed."""
    return RankEnded(node.started[pid], -1, status=137, code=-signal.SIGKILL, asked=asked, pid=pid)
