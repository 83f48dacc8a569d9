"""One row of the tables: what some words mean."""

from __future__ import annotations

from launcher.core.frozen import frozen


@frozen
class Symptom:
    """What some words mean.

    Attributes:
        code: Stable name, see docs/failures.md.
        patterns: What a line must hold.
        meaning: In words; the line itself is quoted after it.
        fix: What to do.
        retryable: Whether the same command can succeed when started again; None if unknown.
        consequence: The process says only that another one has failed.
        loud: No process writes this unless it is about to end because of it: counts
            outside of the last traceback.
    """

    code: str
    patterns: tuple[str, ...]
    meaning: str
    fix: str
    retryable: bool | None = None
    consequence: bool = False
    loud: bool = False
