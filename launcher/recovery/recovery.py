"""Records a job's failed attempts, the decisions after them, and bad nodes.

It belongs to the launcher that decides for the job: the only one, or that of node 0.
"""

from __future__ import annotations

import time

from launcher.core.errors import EXIT_NOT_READY
from launcher.recovery.history import History
from launcher.recovery.policy import Decision, FailedAttempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.log import Say
    from launcher.core.supervision import Restarts


class Recovery:
    """Remembers the failed attempts and the decisions about restarts.

    Attributes:
        history: The failed attempts.
        decision: The latest decision; None before the first.
    """

    def __init__(self, rule: Restarts, say: Say, run: str = "") -> None:
        self.history = History(rule.attempts_file, say, run)
        self.decision: Decision | None = None

    def note(self, attempt: FailedAttempt, found: Decision) -> None:
        """Remember a failed attempt, and what was decided to follow from it."""
        self.history.add(attempt)
        self.decision = found
        self.history.record(found)

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
        assert self.decision is not None  # noqa: S101 - there was an attempt
        return self.decision.describe()
