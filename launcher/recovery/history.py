"""The attempts of a job: their record, the decisions after them, and the summary on the last screen.

It belongs to the launcher that decides for the job: the only one, or that of node 0.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, deque
from itertools import groupby

from launcher.core.budget import Latest
from launcher.core.errors import EXIT_NOT_READY
from launcher.core.files import open_own, replace_file
from launcher.core.wire import render
from launcher.recovery.bad_nodes import find_bad, render_bad
from launcher.recovery.policy import Decision, FailedAttempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.core.log import Say
    from launcher.recovery.bad_nodes import BadNode

SCHEMA = 1
SHOWN_MAX = 8
"""Number of lines for failed attempts in the summary, the last ones."""
KEPT_MAX = 1000
"""Number of attempts that are remembered, and of lines that the record keeps."""
LINE_MAX_BYTES = 1 << 16
"""A line of a record is shorter: its texts have limits (`launcher.core.wire`)."""
READ_MAX_BYTES = 1 << 22
"""Bytes of a record that are read, from its end."""
OURS = frozenset(("schema", "number", "status"))
"""Keys of each line of a record."""


class History:
    """The failed attempts of one job.

    Attributes:
        failed: The attempts, the oldest first.
        noted: What is known about nodes beside the attempts: unhealthy, or lost between two attempts.
        shared_hosts: Host names that several nodes have.
        decision: What follows from the last one; None before the first.
    """

    def __init__(self, path: str, say: Say, run: str = "") -> None:
        """Begin without an attempt.

        Args:
            path: Path of the record, one JSON object per line; empty for no record.
            say: Prints one line.
            run: Name of this run, for the record.
        """
        self.failed: list[FailedAttempt] = []
        self.noted: deque[FailedAttempt] = deque(maxlen=KEPT_MAX)
        self.shared_hosts = Latest()
        self.decision: Decision | None = None
        self._path, self._say, self._run = path, say, run
        self._lines: list[str] = []
        self._has_read = False
        self._kinds: Counter[str] = Counter()
        self._first_ns: int | None = None
        self._last_ns = self._failed_ns = 0

    def note(self, attempt: FailedAttempt, decision: Decision) -> None:
        """Remember a failed attempt, its times by the clock as it is set now, and what follows from it."""
        started_ns = time.monotonic_ns() - (time.time_ns() - attempt.started_ns)
        self._first_ns = started_ns if self._first_ns is None else self._first_ns
        self._last_ns = started_ns + int(attempt.lasted_s * 1e9)
        self._kinds[attempt.kind] += 1
        self._failed_ns += max(0, attempt.ended_ns - attempt.started_ns)
        self.failed.append(attempt)
        del self.failed[:-KEPT_MAX]
        self.decision = decision
        self._record(decision)

    def note_node(self, cause: str, what: str, node: int, host: str, machine: str) -> None:
        """Remember what is wrong with a node although no attempt has failed there, for the last screen."""
        now_ns = time.time_ns()
        noted = FailedAttempt(0, now_ns, now_ns, EXIT_NOT_READY, what, cause, node=node, host=host,
                              machine=machine)  # fmt: skip
        self.noted.append(noted)

    def give_up(self, why: str) -> str:
        """Note that a restart that was decided does not take place; return that as a line for the log."""
        self.decision = Decision(False, why)
        self._record(self.decision, again=True)
        return self.decision.describe()

    @property
    def causes(self) -> dict[str, int]:
        """Number of failed attempts by the code of their cause."""
        return dict(self._kinds)

    def _record(self, decision: Decision, *, again: bool = False) -> None:
        """Add the last attempt and what follows from it; a full disk costs the record and not the job.

        Args:
            decision: What follows.
            again: Whether this replaces what was said to follow.
        """
        if not self._path:
            return
        last = self.failed[-1]
        line = {
            "schema": SCHEMA,
            "run": self._run,
            **render(last),
            "seconds": round(last.lasted_s, 6),
            "restarts": decision.restarts,
            "why": decision.why,
            "wait_s": round(decision.wait_s, 3),
        }
        try:
            if not self._has_read:
                self._lines, self._has_read = _read_record(self._path), True
            if again:
                del self._lines[-1:]
            self._lines.append(json.dumps(line, ensure_ascii=False) + "\n")
            del self._lines[:-KEPT_MAX]
            replace_file("".join(self._lines), self._path, makes_folders=True)
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None)
            self._say(
                f"no record of attempts: {self._path}{f': {what}' if what else f' {error}'}",
                "no-attempts-file",
            )
            self._path = ""

    def summarize(
        self, count: int, began_ns: int, started_ns: int, ended_ns: int, status: int, *, is_alone: bool
    ) -> str:
        """Return the lines for the last screen; empty for none.

        Args:
            count: Number of attempts, with the last one.
            began_ns: When the launcher began, monotonic nanoseconds.
            started_ns: When the last attempt started.
            ended_ns: When the job ended.
            status: Exit status of the job.
            is_alone: Whether the job has one node.
        """
        attempts = self._list_attempts(count, began_ns, started_ns, ended_ns, status)
        lines = attempts if count > 1 and self.failed else ()
        return "\n".join((*lines, *render_bad(self.find_bad(is_alone=is_alone))))

    def find_bad(self, *, is_alone: bool) -> list[BadNode]:
        """Return the nodes that the next job should avoid, the worst first; see `nodes.find_bad`."""
        return find_bad((*self.failed, *self.noted), is_alone=is_alone, shared=self.shared_hosts)

    def _list_attempts(
        self, count: int, began_ns: int, started_ns: int, ended_ns: int, status: int
    ) -> Iterator[str]:
        last, failed_count = self.failed[-1], self._kinds.total()
        causes = ", ".join(f"{number} x {kind}" for kind, number in self._kinds.most_common())
        yield f"{count} attempts, {failed_count} failed ({causes}); exit code {status}"
        groups = [list(group) for _, group in groupby(self.failed, lambda one: (one.what, one.kind))]
        shown = groups[-SHOWN_MAX:]
        left_out = failed_count - sum(map(len, shown))
        if left_out:
            yield f"  {left_out} earlier attempt{'s are' if left_out > 1 else ' is'} not shown"
        for group in shown:
            one, many = group[0], len(group) > 1
            which = f"attempts {one.number}-{group[-1].number}" if many else f"attempt {one.number}"
            took = _seconds(sum(each.lasted_s for each in group) / len(group))
            what = f"{one.what} [{one.cause}]" if one.what and one.cause else one.what or one.kind
            yield f"  {which}: {took}{' on average' if many else ''}, {what}"
        final_ns = max(0, ended_ns - started_ns) if last.number < count - 1 else 0
        if last.number < count - 1:
            yield f"  attempt {count - 1}: {_seconds(final_ns / 1e9)}, exit code {status}"
        yield _add_up(
            start=(began_ns if self._first_ns is None else self._first_ns) - began_ns,
            attempts=self._failed_ns + final_ns,
            whole=ended_ns - began_ns,
            after=0 if last.number < count - 1 else ended_ns - self._last_ns,
        )


def _add_up(*, start: int, attempts: int, whole: int, after: int) -> str:
    """Return the line on where the time went; the rounded parts add up to the total."""
    parts = [max(0, part) for part in (start, attempts, whole - start - attempts - after, after)]
    digits = 3 if sum(parts) < 10e9 else 1
    shown = [round(part / 1e9, digits) for part in parts]
    whole_s = sum(shown)
    share = 100.0 * shown[1] / whole_s if whole_s else 100.0
    said = [
        f"{shown[0]:.{digits}f} s start",
        f"{shown[1]:.{digits}f} s in attempts ({share:.1f} %)",
        f"{shown[2]:.{digits}f} s between attempts",
        *([f"{shown[3]:.{digits}f} s after the last"] if shown[3] else []),
    ]
    return f"  time: {whole_s:.{digits}f} s in total: {', '.join(said)}"


def _seconds(time_s: float) -> str:
    """Return a duration, with more decimals if it is short."""
    return f"{time_s:.3f} s" if time_s < 1 else f"{time_s:.1f} s"


def _read_record(path: str) -> list[str]:
    """Return the lines of a record that an earlier run of the job has left; none for a pipe or a device.

    Raises:
        OSError: It cannot be read.
        ValueError: The file is not a record.
    """
    if not os.path.isfile(path):
        return []
    with open(open_own(path), "rb") as file:
        first = file.readline(LINE_MAX_BYTES)  # another file may be large, and have no lines
        size = os.fstat(file.fileno()).st_size
        if size > READ_MAX_BYTES:
            file.seek(size - READ_MAX_BYTES)
            file.readline(LINE_MAX_BYTES)  # the rest of a line
        else:
            file.seek(0)
        lines = file.read(READ_MAX_BYTES).splitlines(keepends=True)[-KEPT_MAX:]
    for line in (first, *lines) if first else ():
        try:
            is_ours = json.loads(line).keys() >= OURS
        except (ValueError, AttributeError, RecursionError):
            is_ours = False
        if not is_ours:
            raise ValueError("has other content; pass another path (--attempts-file)")
    return [line.decode() for line in lines]
