"""Recovery of one job: after each failed attempt it decides, waits and records.

It belongs to the launcher that decides for the job: the only one, or that of node 0.
"""

from __future__ import annotations

import random
import time

from launcher.core.errors import EXIT_NOT_READY
from launcher.core.frozen import replace
from launcher.failure.model import Verdict
from launcher.recovery.history import History
from launcher.recovery.policy import Decision, FailedAttempt, decide

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.core.log import Say
    from launcher.core.model import Restarts


class Recovery:
    """Decides about restarts, and remembers the attempts.

    Attributes:
        history: The failed attempts.
        decision: The latest decision; None before the first.
    """

    def __init__(self, rule: Restarts, say: Say, run: str = "") -> None:
        self.history = History(rule.attempts_file, say, run)
        self.decision: Decision | None = None
        self._rule = rule

    def decide(self, attempt: FailedAttempt, veto: str = "") -> Decision:
        """Return what follows from a failed attempt.

        Args:
            attempt: The attempt.
            veto: Why no restart is possible here, whatever the policy says; empty for no reason.
        """
        self.history.add(attempt)
        found = decide(self._rule, self.history.failed, random.random())  # noqa: S311 - only for jitter
        if veto and found.restarts:
            found = Decision(False, veto)
        self.decision = found
        self.history.record(found)
        return found

    def note_node(self, cause: str, what: str, node: int, host: str, machine: str) -> None:
        """Remember what is wrong with a node although no attempt has failed there, for the last screen."""
        now_ns = time.time_ns()
        noted = FailedAttempt(0, now_ns, now_ns, EXIT_NOT_READY, what, cause, node=node, host=host,
                              machine=machine)  # fmt: skip
        self.history.noted.append(noted)

    def give_up(self, why: str) -> None:
        """Note that a restart that was decided does not take place."""
        self.decision = Decision(False, why)
        self.history.record(self.decision, again=True)

    def describe(self) -> str:
        """Return the latest decision as a line for the log."""
        found = self.decision
        assert found is not None  # noqa: S101 - there was an attempt
        if not found.restarts:
            return f"no restart: {found.why}"
        wait = f" in {found.wait_s:.1f} s" if found.wait_s else ""
        return f"{found.why}{wait}{f'; {found.note}' if found.note else ''}"


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
