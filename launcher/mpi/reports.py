"""Turns the nodes' reports about ranks into events of the job, and makes the verdict.

The head's clock serves all nodes: an event has the time at which the head received it.
"""

from __future__ import annotations

import time

from launcher.cluster.outcome import read_verdict
from launcher.core.errors import EXIT_NOT_READY, EXIT_UNTRUSTED
from launcher.core.frozen import replace
from launcher.core.redact import printable
from launcher.core.signal import signal
from launcher.failure.arbiter import FOLLOW_LOSS, KILLED, MISPLACED, ORPHANED, RANK, STARTER, Event
from launcher.failure.model import Cause, End
from launcher.failure.verdict import describe_end
from launcher.mpi.protocol import Abandoned, Gone, Orphaned, RankEnded, Started

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.cluster.messages import Over
    from launcher.cluster.settings import Shape
    from launcher.failure.model import Verdict
    from launcher.mpi.ending import RanksTarget
    from launcher.mpi.nodes import MpiNode

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
    """The reports of an attempt.

    Attributes:
        ends: How each rank has ended, and when we heard of it (monotonic nanoseconds); by rank.
        counting: Checks the ranks that start.
    """

    def __init__(
        self,
        nodes: Sequence[MpiNode],
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

    def take(self, node: MpiNode, message: object) -> None:
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


def killed(node: MpiNode, pid: int, asked: int | None = None) -> RankEnded:
    """Return the end of a rank that has not reported one: its wrapper was killed."""
    return RankEnded(node.started[pid], -1, status=137, code=-signal.SIGKILL, asked=asked, pid=pid)


class Counting:
    """Counts the ranks that start, and ends the job if they are not those that were requested.

    An mpirun that does not follow the hostfile runs all ranks on one node, and reports success.

    Attributes:
        due: When `fire` has something to do.
    """

    def __init__(
        self,
        nodes: Sequence[MpiNode],
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


def describe_places(nodes: Sequence[MpiNode]) -> str:
    """Return e.g. ``8 started, all on node0`` or ``3 started (2 on node0, 1 on node1)``."""
    counts = {node.host: len(node.started) for node in nodes if node.started}
    total = sum(counts.values())
    if len(counts) == 1 and total > 1:
        return f"{total} started, all on {next(iter(counts))}"
    places = ", ".join(f"{count} on {host}" for host, count in list(counts.items())[:20])
    return f"{total} started" + (f" ({places})" if places else "")


# --- events


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


def make_orphaned(node: MpiNode, daemon: int) -> Event:
    """Return the event that mpirun's daemon on a node has ended before the ranks there."""
    what = f"mpirun's daemon on {node.name_in_full}, pid {daemon}, has ended before its ranks"
    cause = Cause(ORPHANED, what, WATCH_FOR_KILLS, retryable=True)
    return Event(node.index, ORPHANED, time.monotonic_ns(), EXIT_NOT_READY, what=what, cause=cause)


def make_misplaced(what: str) -> Event:
    """Return the event that mpirun has not started the requested ranks."""
    fix = "check mpirun's host options (launcher plan) and its configuration files"
    cause = Cause(MISPLACED, what, fix, retryable=False)
    return Event(0, MISPLACED, time.monotonic_ns(), EXIT_UNTRUSTED, what=what, cause=cause, called="mpirun")


def explains(code: int, status: int, ended_ns: int, event: Event) -> bool:
    """Whether the end of mpirun explains an event, rather than follows from it.

    Args:
        code: mpirun's exit code: 0 to 255, or -n for signal n; we have not asked it to end.
        status: The same as a shell reports it.
        ended_ns: When it ended, monotonic nanoseconds.
        event: The event of a rank or a node.
    """
    may_follow = event.kind in FOLLOW_LOSS
    if code < 0:
        return event.at_ns > ended_ns - (FOLLOWS_NS if may_follow else 0)
    # MPI_Abort: mpirun has its status. Ranks that were asked to end after that do not tell the cause.
    return status not in UNKNOWING and (may_follow or (event.asked and event.at_ns > ended_ns))


# --- the verdict


def judge(
    over: Over,
    ends: Mapping[int, tuple[RankEnded, int]],
    shape: Shape,
    *,
    attempt: int,
    started_ns: int,
    started_mono_ns: int,
    told: str | None,
) -> Verdict | None:
    """Return the verdict on the whole job; None if nothing has failed.

    Args:
        over: How the attempt has ended.
        ends: How each rank has ended, and when the head heard of it (monotonic nanoseconds); by rank.
        shape: The job.
        attempt: Number of the attempt, 0 for the first.
        started_ns: When mpirun was started, nanoseconds since 1970.
        started_mono_ns: The same by the monotonic clock.
        told: Name of the signal by which the head was told to end; None if it was not.
    """
    verdict = read_verdict(over, None, shape, started_ns, attempt)
    first = None if over.first is None else over.first.event
    if verdict is None or first is None or first.kind == STARTER:
        return verdict
    own = None if first.facts is None else first.facts["rank"]
    others = tuple(_end(*ends[rank], first.at_ns, told) for rank in sorted(ends) if rank != own)
    ended_ns = started_ns + first.at_ns - started_mono_ns
    changed = replace(verdict, ended_ns=ended_ns, started_ns=started_ns, node_rank=first.node)
    return replace(changed, others=others, told=told)


def _end(end: RankEnded, at_ns: int, zero_ns: int, told: str | None) -> End:
    words = printable(describe_end(end.code, end.asked, told, heard=False))
    return End(end.rank, end.local_rank, end.pid, end.code, words, at_ns - zero_ns)
