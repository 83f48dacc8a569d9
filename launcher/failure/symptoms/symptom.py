"""One row of the tables: error messages and their meaning."""

from __future__ import annotations

from launcher.core.frozen import frozen


@frozen
class Symptom:
    """Error messages with one meaning.

    Attributes:
        code: Stable name, see docs/failures.md.
        patterns: Patterns for a line; one must match.
        meaning: The meaning as text; the line itself is quoted after it.
        fix: How to fix it.
        retryable: Whether the same command can succeed when started again; None if unknown.
        consequence: Whether it only shows that another process has failed.
        loud: Whether a process writes it only if it is about to end because of it: then it counts outside of
            the last traceback, too.
    """

    code: str
    patterns: tuple[str, ...]
    meaning: str
    fix: str
    retryable: bool | None = None
    consequence: bool = False
    loud: bool = False
