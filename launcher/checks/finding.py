"""What a check says: one frozen value per thing that was looked at, and how its words are made."""

from __future__ import annotations

from launcher.core.frozen import frozen

OK, WARNING, PROBLEM = "ok", "warning", "problem"
LEVELS = (OK, WARNING, PROBLEM)
"""From good to bad, in the order in which they are printed."""


@frozen
class Finding:
    """One thing that was looked at.

    Attributes:
        check: Name of the check, as in the table of `launcher.checks`.
        level: One of `LEVELS`. A problem makes a job fail, hang or crawl; a warning may.
        what: What was looked at, e.g. ``"/dev/shm"``.
        expected: What it should be; empty where it is.
        found: What it is.
        fix: What to type or to set where we run; empty where nothing is wrong.
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


def ok(check: str, what: str, found: str) -> Finding:
    """Return a finding that asks for nothing."""
    return Finding(check, OK, what, "", found, "")


def render_count(count: int, one: str, many: str = "") -> str:
    """Return e.g. ``1 GPU``, ``2 GPUs``."""
    return f"{count} {one if count == 1 else many or one + 's'}"
