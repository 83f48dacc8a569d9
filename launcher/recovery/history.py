"""The attempts of a job: their record, and the summary on the last screen."""

from __future__ import annotations

import json
from collections import Counter

from launcher.core.files import replace_file
from launcher.core.messages import render
from launcher.recovery.nodes import find_bad, render_bad

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.recovery.policy import Decision, FailedAttempt

SCHEMA = 1
SHOWN_MAX = 8
"""Number of attempts that the summary shows, the last ones."""
KEPT_MAX = 1000
"""Number of attempts that are remembered; the policy and the record need no more."""


class History:
    """The failed attempts of one job.

    Attributes:
        failed: The attempts, the oldest first.
        unhealthy: Nodes that their health command found unhealthy, as attempts that failed there.
    """

    def __init__(self, path: str, say: Callable[[str], None]) -> None:
        """Begin without an attempt.

        Args:
            path: Path of the record, one JSON object per line; empty for no record.
            say: Prints one line.
        """
        self.failed: list[FailedAttempt] = []
        self.unhealthy: list[FailedAttempt] = []
        self._path, self._say = path, say
        self._lines: list[str] = []

    def add(self, attempt: FailedAttempt) -> None:
        """Remember an attempt that has failed."""
        self.failed.append(attempt)
        del self.failed[:-KEPT_MAX]

    def record(self, decision: Decision, *, again: bool = False) -> None:
        """Write the last attempt and what follows from it; a full disk costs the record and not the job.

        Args:
            decision: What follows.
            again: Whether this replaces what was said to follow.
        """
        if not self._path:
            return
        last = self.failed[-1]
        line = {
            "schema": SCHEMA,
            **render(last),
            "seconds": round(last.lasted_s, 6),
            "restarts": decision.restarts,
            "why": decision.why,
            "wait_s": round(decision.wait_s, 3),
        }
        if again:
            del self._lines[-1:]
        self._lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        del self._lines[:-KEPT_MAX]
        try:
            replace_file("".join(self._lines), self._path, makes_folders=True)
        except (OSError, ValueError) as error:
            self._say(f"no record of attempts: {self._path}: {getattr(error, 'strerror', None) or error}")
            self._path = ""

    def summarize(self, count: int, started_ns: int, ended_ns: int, status: int, *, is_alone: bool) -> str:
        """Return the lines for the last screen.

        Args:
            count: Number of attempts, with the last one.
            started_ns: When the last attempt started, nanoseconds since 1970.
            ended_ns: When the job ended.
            status: Exit status of the job.
            is_alone: Whether the job has one node.
        """
        failed = self.failed
        kinds = Counter(one.kind for one in failed)
        causes = ", ".join(f"{number} x {kind}" for kind, number in kinds.most_common())
        attempts = f"{count} attempt{'' if count == 1 else 's'}"
        lines = [f"{attempts}, {len(failed)} failed ({causes}); exit status {status}"]
        for one in failed[-SHOWN_MAX:]:
            lines.append(f"  attempt {one.number}: {one.lasted_s:.1f} s, {one.what or one.kind}")
        spent_s = sum(one.lasted_s for one in failed)
        if failed[-1].number < count - 1:
            last_s = max(0, ended_ns - started_ns) / 1e9
            spent_s += last_s
            lines.append(f"  attempt {count - 1}: {last_s:.1f} s, exit status {status}")
        whole_s = max(spent_s, (ended_ns - failed[0].started_ns) / 1e9)
        share = 100.0 * spent_s / whole_s if whole_s else 100.0
        lines.append(
            f"  time: {whole_s:.1f} s in all, {whole_s - spent_s:.1f} s lost between attempts, "
            f"{share:.1f} % in attempts"
        )
        return "\n".join((*lines, *render_bad(find_bad((*failed, *self.unhealthy), is_alone=is_alone))))
