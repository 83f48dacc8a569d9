"""Restart policy: whether a job starts again after a failed attempt, and after how long. Pure.

docs/restarts.md has the same rules as a table. The first rule that applies decides.
"""

from __future__ import annotations

from launcher.core.frozen import frozen, replace
from launcher.core.wire import message
from launcher.failure.model import OWN_LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.core.supervision import Restarts
    from launcher.core.wire import Line, NodeRank, Status
    from launcher.failure.model import Verdict

IDLE_MAX = 3
"""Number of attempts in a row without progress after which there is no other."""
ALIKE_MAX = 3
"""Number of attempts in a row that fail alike, without a sign of progress, after which there is no other."""
QUICK_S = 60.0
"""An attempt that lasted less is a quick failure: the next one but one waits before it starts."""
JITTER = 0.5
"""A wait is at least this share of its length, so that many jobs do not start at the same moment."""


@message
class FailedAttempt:
    """One failed attempt, as the record keeps it.

    Attributes:
        number: 0 for the first.
        started_ns: When its processes were started, nanoseconds since 1970.
        ended_ns: When it failed, nanoseconds since 1970.
        status: Exit status that it would have given the job.
        what: What failed, without the cause.
        cause: Code of the cause; empty if unknown.
        detail: The cause in words; empty if unknown.
        retryable: Whether a restart can help; None if unknown.
        node: Rank of the node where it failed; None if unknown.
        host: Name of that node's host.
        machine: The platform and its name of that node; empty if unknown.
        progressed: Whether the job made progress; None if that is not watched.
    """

    number: int
    started_ns: int
    ended_ns: int
    status: Status
    what: Line = ""
    cause: Line = ""
    detail: Line = ""
    retryable: bool | None = None
    node: NodeRank | None = None
    host: Line = ""
    machine: Line = ""
    progressed: bool | None = None

    @property
    def lasted_s(self) -> float:
        """Seconds from the start to the failure."""
        return max(0, self.ended_ns - self.started_ns) / 1e9

    @property
    def rank(self) -> str:
        """What failed, e.g. ``rank 3``, ``node 2`` or ``mpirun``; empty if unknown."""
        words = self.what.split()[:2]
        return " ".join(words[:1] if words[1:] == ["on"] else words)

    @property
    def stood(self) -> bool:
        """Whether it shows no progress: none was seen, or a quick failure if nothing watches for it."""
        return self.progressed is False or (self.progressed is None and self.lasted_s < QUICK_S)

    def is_like(self, other: FailedAttempt) -> bool:
        """Whether the same rank of the same host failed for the same cause."""
        return bool(self.rank) and (self.rank, self.host, self.kind) == (other.rank, other.host, other.kind)

    @property
    def kind(self) -> str:
        """The cause, or the exit status where the cause is unknown: budgets count by this."""
        return self.cause or f"status {self.status}"


@frozen
class Decision:
    """What follows from a failed attempt.

    Attributes:
        restarts: Whether the job starts again.
        why: The reason, for the log and the record.
        wait_s: Seconds to wait before the restart.
        note: What else is worth knowing; empty for nothing.
    """

    restarts: bool
    why: str
    wait_s: float = 0.0
    note: str = ""

    def describe(self) -> str:
        """Return the decision as a line for the log."""
        if not self.restarts:
            return f"no restart: {self.why}"
        wait = f" in {self.wait_s:.1f} s" if self.wait_s else ""
        return f"{self.why}{wait}{f'; {self.note}' if self.note else ''}"


def decide(rule: Restarts, attempts: Sequence[FailedAttempt], chance: float = 1.0) -> Decision:
    """Return whether another attempt follows the last of these.

    Args:
        rule: What the user allows.
        attempts: All failed attempts, the oldest first; never empty.
        chance: A random number in 0..1, for the jitter.
    """
    last = attempts[-1]
    if not rule.most:
        return Decision(False, "no restarts are allowed (--restarts N allows them)")
    if last.status in rule.never_status:
        return Decision(False, f"status {last.status} is not restarted (--no-restart-status)")
    if last.retryable is False and not rule.on_any:
        why = f"{last.kind} is not retryable; pass --restart-on any to restart anyway"
        return Decision(False, why)
    counted = count_from(rule, attempts)
    if len(counted) > rule.most:
        used = f"all {rule.most} restarts are" if rule.most > 1 else "the only restart is"
        return Decision(False, f"{used} used (--restarts {rule.most})")
    full = [one.rank for one in counted if one.detail.startswith(OWN_LIMIT) and not one.progressed]
    if last.detail.startswith(OWN_LIMIT) and full.count(last.rank) > 1 and not rule.on_any:
        why = f"{last.rank} needs more than {OWN_LIMIT}, {full.count(last.rank)} times"
        return Decision(False, f"{why}; pass --restart-on any to restart anyway")
    same = sum(one.kind == last.kind for one in counted)
    if rule.per_cause is not None and same > rule.per_cause:
        by = f"by the cause {last.cause}" if last.cause else f"with {last.kind}"
        many = f"{same} attempts failed" if same > 1 else "an attempt failed"
        return Decision(False, f"{many} {by} (--restarts-per-cause {rule.per_cause})")
    alike = attempts[-ALIKE_MAX:]
    if len(alike) == ALIKE_MAX and all(one.stood and one.is_like(last) for one in alike) and not rule.on_any:
        why = f"{last.rank} failed {ALIKE_MAX} times in a row with {last.kind}, without a sign of progress"
        return Decision(False, f"{why}; pass --restart-on any to restart anyway")
    idle = attempts[-IDLE_MAX:]
    if len(idle) == IDLE_MAX and all(one.progressed is False for one in idle):
        flags = ("--progress-file" if rule.progress_file else "",
                 "--progress-pattern" if rule.progress_pattern else "")  # fmt: skip
        why = f"{IDLE_MAX} attempts in a row made no progress ({', '.join(filter(None, flags))})"
        return Decision(False, why)
    note = ""
    if len(counted) == 1 < len(attempts):
        note = (
            f"the last attempt ran for {last.lasted_s:.0f} s, which gave back all restarts "
            f"(--restarts-reset-after {rule.reset_after_s:g})"
        )
    wait_s = find_wait_s(rule, attempts, chance)
    return Decision(True, f"restart {len(counted)} of {rule.most}", wait_s, note)


def count_from(rule: Restarts, attempts: Sequence[FailedAttempt]) -> Sequence[FailedAttempt]:
    """Return the attempts that the budgets count: all since the last one that ran for long enough."""
    long = [
        place
        for place, one in enumerate(attempts)
        if rule.reset_after_s and one.lasted_s >= rule.reset_after_s
    ]
    return attempts[long[-1] :] if long else attempts


def find_wait_s(rule: Restarts, attempts: Sequence[FailedAttempt], chance: float = 1.0) -> float:
    """Return how many seconds the next attempt waits.

    None after an attempt that ran for `QUICK_S` or made progress, and none after the first quick failure.
    Each further one in a row doubles the wait, up to the limit.
    """
    quick = 0
    for one in reversed(attempts):
        if one.lasted_s >= QUICK_S or one.progressed:
            break
        quick += 1
    if quick < 2:
        return 0.0
    longest = min(rule.delay_max_s, rule.delay_s * 2.0 ** min(quick - 2, 32))
    return longest * (JITTER + (1.0 - JITTER) * chance)


def describe_attempt(
    verdict: Verdict | None,
    number: int,
    status: int,
    started_ns: int,
    ended_ns: int,
    progressed: bool | None,
    find_machine: Callable[[int | None], str] = lambda node: "",
) -> FailedAttempt:
    """Return a failed attempt for the policy and the record.

    Args:
        verdict: The verdict on it; None if none could be made.
        number: 0 for the first attempt.
        status: Exit status that it would have given the job.
        started_ns: When its processes were started, nanoseconds since 1970.
        ended_ns: When it ended, if the verdict does not say when it failed.
        progressed: Whether it made progress; None if that is not watched.
        find_machine: Returns the platform's name of a node by its rank; empty if unknown.
    """
    bare = FailedAttempt(number, started_ns, max(ended_ns, started_ns), status, progressed=progressed)
    if verdict is None:
        return bare
    return replace(
        bare,
        ended_ns=max(verdict.ended_ns, started_ns),
        what=verdict.headline,
        cause=verdict.causes[0].code if verdict.causes else "",
        detail=verdict.causes[0].what if verdict.causes else "",
        retryable=verdict.retryable,
        node=verdict.node_rank,
        host=verdict.host_name,
        machine=find_machine(verdict.node_rank),
    )
