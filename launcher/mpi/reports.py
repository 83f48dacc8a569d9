"""Turns the nodes' reports about ranks into events of the job, and counts the ranks.

The head's clock serves all nodes: an event has the time at which the head received it.
"""

from __future__ import annotations

import time

from launcher.core.errors import EXIT_NOT_READY, EXIT_UNTRUSTED
from launcher.core.frozen import replace
from launcher.core.redact import printable
from launcher.core.signal import signal
from launcher.failure.arbiter import FOLLOW_LOSS, KILLED, MISPLACED, ORPHANED, RANK, Event
from launcher.failure.model import Cause, End
from launcher.failure.verdict import describe_end
from launcher.mpi.protocol import Abandoned, Gone, Orphaned, RankEnded, Started

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.failure.model import Verdict
    from launcher.mpi.ranks import MpiNode, RanksTarget
    from launcher.process.spawn import Process

RANKS_MAX = 1024
"""Ranks of a node that are counted beyond those that the job has: a faulty mpirun may start all on one."""
COUNT_S = 60.0
"""Seconds that all ranks may take to start, counted from the first."""
LOOK_AROUND_S = 0.5
"""Seconds between the first wrong rank and the message, so that it counts the ranks that follow."""
UNKNOWING = (0, 9, 137, 205, 255)
"""Exit statuses of an mpirun that only knows that a rank was killed or a node was lost."""
FOLLOWS_NS = 1_000_000_000
"""Nanoseconds by which an event may precede the reported end of a killed mpirun that caused it.

The kernel closes the descriptors of mpirun before it reports the end to us: its daemons can react earlier.
"""
WATCH_FOR_KILLS = "check that node for the kernel's OOM killer (dmesg) and for anything that kills processes"


class Reports:
    """The reports of one attempt after the other, and whether the ranks are those that were requested.

    An mpirun that does not follow the hostfile runs all ranks on one node, and reports success.

    Attributes:
        ends: How each rank has ended, and when we heard of it (monotonic nanoseconds); by rank.
        due: When `fire` has something to do.
    """

    def __init__(
        self,
        nodes: Sequence[MpiNode],
        per_node: int,
        ending: RanksTarget,
        fail: Callable[[Event], None],
        on_signalled: Callable[[int], None],
    ) -> None:
        """Begin with the first attempt.

        Args:
            nodes: The nodes of the job.
            per_node: Number of ranks that were requested on each.
            ending: The end of the ranks.
            fail: Takes what has failed.
            on_signalled: Takes a signal that was only forwarded, and of which a rank has died.
        """
        self._nodes, self._per_node, self._wanted = nodes, per_node, per_node * len(nodes)
        self._ending, self._fail, self._on_signalled = ending, fail, on_signalled
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Forget the attempt before."""
        self.ends: dict[int, tuple[RankEnded, int]] = {}
        self.due: float | None = None
        self._least: dict[int, tuple[bool, bool]] = {}
        """Whether the failures of a node were all asked for, and all only follow from others; by node."""
        self._sizes: set[int] = set()
        """The world sizes according to the ranks."""
        self._is_wrong = self._has_said = False

    def take(self, node: MpiNode, message: object) -> None:
        """Take a message from a node."""
        match message:
            case Started() | RankEnded() if (
                message.pid not in node.started and len(node.started) >= self._wanted + RANKS_MAX
            ):
                pass  # it names ranks that it cannot have
            case Started() if message.pid not in node.started:
                node.started[message.pid] = message.rank
                self._sizes.add(message.size)
                self._count()
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
                daemon = f"mpirun's daemon on {node.name_in_full}, pid {message.daemon}"
                what = f"{daemon}, has ended before its ranks"
                cause = Cause(ORPHANED, what, WATCH_FOR_KILLS, retryable=True)
                at_ns = time.monotonic_ns()
                self._fail(Event(node.index, ORPHANED, at_ns, EXIT_NOT_READY, what=what, cause=cause))

    def _note_end(self, node: MpiNode, end: RankEnded) -> None:
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

    def describe_others(self, first: Event, told: str | None) -> tuple[End, ...]:
        """Return how all ranks but the one that failed first have ended; see `describe_end` for ``told``."""
        own = None if first.facts is None else first.facts["rank"]
        others = (end for rank, end in sorted(self.ends.items()) if rank != own)
        return tuple(
            End(
                end.rank, end.local_rank, end.pid, end.code,
                printable(describe_end(end.code, end.asked, told, heard=False)), at_ns - first.at_ns,
            )
            for end, at_ns in others
        )  # fmt: skip

    # --- the number of ranks

    def _count(self) -> None:
        """Look at the ranks that have started."""
        count = self._ending.started
        too_many = any(len(node.started) > self._per_node for node in self._nodes)
        if (too_many or self._sizes != {self._wanted}) and not self._is_wrong:
            self._is_wrong = True
            self.due = time.monotonic() + LOOK_AROUND_S
        elif count == 1 and self.due is None:
            self.due = time.monotonic() + COUNT_S
        elif count >= self._wanted and not self._is_wrong:
            self.due = None

    def fire(self, now: float) -> None:
        """End the job if ranks are wrong, or if some are late and the job is not ending anyway."""
        self.due = None
        if self._is_wrong or not self._ending.begun:
            self._complain("" if self._is_wrong else f" within {COUNT_S:g} s")

    def check_all(self, *, succeeded: bool) -> None:
        """Check the ranks when the job has ended.

        Wrong ranks are then the cause of a failure. If mpirun reports success, ranks may still be missing.
        """
        are_wrong = self._is_wrong or (succeeded and self._ending.started != self._wanted)
        if are_wrong and not self._has_said:
            self._complain()

    def _complain(self, late: str = "") -> None:
        """End the job, because mpirun has not started the requested ranks."""
        what = (
            f"{self._wanted} ranks were requested on {len(self._nodes)} nodes, {self._per_node} on each; "
            f"{describe_places(self._nodes)}{late}"
        )
        fix = "check mpirun's host options (launcher plan) and its configuration files"
        cause = Cause(MISPLACED, what, fix, retryable=False)
        at_ns, self._has_said = time.monotonic_ns(), True
        self._fail(Event(0, MISPLACED, at_ns, EXIT_UNTRUSTED, what=what, cause=cause, called="mpirun"))


def describe_places(nodes: Sequence[MpiNode]) -> str:
    """Return e.g. ``8 started, all on node0`` or ``3 started (2 on node0, 1 on node1)``."""
    counts = {node.host: len(node.started) for node in nodes if node.started}
    total = sum(counts.values())
    if len(counts) == 1 and total > 1:
        return f"{total} started, all on {next(iter(counts))}"
    places = ", ".join(f"{count} on {host}" for host, count in list(counts.items())[:20])
    return f"{total} started" + (f" ({places})" if places else "")


def killed(node: MpiNode, pid: int, asked: int | None = None) -> RankEnded:
    """Return the end of a rank that has not reported one: its wrapper was killed."""
    return RankEnded(node.started[pid], -1, status=137, code=-signal.SIGKILL, asked=asked, pid=pid)


def make_rank_event(node: MpiNode, end: RankEnded) -> Event:
    """Return the event that a rank has failed."""
    asked = end.asked is not None and (
        end.code == 0 or end.asked in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
    )
    # Killed together with its wrapper, which could not report anything
    is_silent = end.code == -signal.SIGKILL and end.verdict is None and not (end.why or asked)
    causes = () if end.verdict is None else end.verdict.causes
    facts = {"rank": end.rank, "local_rank": end.local_rank, "pid": end.pid, "code": end.code}
    return Event(
        node.index,
        KILLED if is_silent else RANK,
        time.monotonic_ns(),
        end.status,
        asked=asked,
        follows=bool(causes) and all(one.consequence for one in causes),
        what=f"rank {end.rank} on {node.host} {describe_end(end.code, None, None, heard=False)}",
        cause=None if end.verdict is not None else find_cause(end.why),
        facts=facts if end.verdict is None else {**facts, "pid": end.verdict.first.pid},
    )


def find_cause(why: str) -> Cause:
    """Return the cause of a rank's end without a verdict; ``why``: why it could not start."""
    if why:
        return Cause("rank-refused", why, "its own error message has the fix", retryable=False)
    return Cause(KILLED, "its launcher ended without a report, as after SIGKILL", WATCH_FOR_KILLS)


def explains(mpirun: Process, event: Event) -> bool:
    """Whether the end of mpirun explains an event: it was killed before, or has killed the ranks.

    Args:
        mpirun: Its process, which has ended.
        event: The event of a rank or a node.
    """
    if mpirun.passed_on is not None:
        return False  # we have asked it to end
    may_follow, ended_ns = event.kind in FOLLOW_LOSS, mpirun.ended_ns
    if (mpirun.code or 0) < 0:
        return event.at_ns > ended_ns - (FOLLOWS_NS if may_follow else 0)
    # MPI_Abort: mpirun has its status. Ranks that were asked to end after that do not tell the cause.
    return mpirun.status not in UNKNOWING and (may_follow or (event.asked and event.at_ns > ended_ns))
