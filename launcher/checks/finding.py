"""Findings: one frozen value per checked subject, and helpers for their text."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.core.frozen import frozen

OK, WARNING, PROBLEM = "ok", "warning", "problem"
LEVELS = (OK, WARNING, PROBLEM)
"""Levels from good to bad, in the order in which they are printed."""


@frozen
class Finding:
    """The result for one subject of a check.

    Attributes:
        check: Name of the check, as in the table of `launcher.checks`, which fills it in.
        level: One of `LEVELS`. A problem makes a job fail, hang or run slowly; a warning may.
        what: The subject, e.g. ``"/dev/shm"``.
        expected: Its expected state; empty at level "ok".
        found: Its actual state.
        fix: What to type or to set in our runtime; empty at level "ok".
    """

    check: str
    level: str
    what: str
    expected: str
    found: str
    fix: str

    def __post_init__(self) -> None:
        if self.level not in LEVELS or (self.level == OK) != (self.fix == ""):
            raise ValueError(f"a finding that is {self.level!r} with fix {self.fix!r}")


Findings = Iterator[Finding]
"""What a check yields."""


def ok(what: str, found: str) -> Finding:
    """Return a check's finding that something is as it should be."""
    return Finding("", OK, what, "", found, "")


def warn(what: str, expected: str, found: str, fix: str) -> Finding:
    """Return a check's finding of something that may make a job fail, hang or run slowly."""
    return Finding("", WARNING, what, expected, found, fix)


def fail(what: str, expected: str, found: str, fix: str) -> Finding:
    """Return a check's finding of something that makes a job fail, hang or run slowly."""
    return Finding("", PROBLEM, what, expected, found, fix)


def render_count(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun, e.g. ``1 GPU``, ``2 GPUs``."""
    return f"{count} {one if count == 1 else many or one + 's'}"
