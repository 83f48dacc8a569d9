"""Which process of a node had a cause of its own, where the one that ended first has only lost a peer."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.run.causes import SIGNALS, Cause, ended_by, quote
from launcher.run.last_words import read_words_of
from launcher.run.symptoms import find_symptoms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.run.verdict import Death

OTHERS_MAX = 32
"""Processes whose last words are read when the first one has only lost a peer."""


def find_own_cause(others: Sequence[Death], first_ended_ns: int) -> Cause | None:
    """Return the cause that another process of this node had, where the first one has only lost a peer.

    A process that raises an exception may take longer to end than those that lose it: its connections
    are closed first. Never raises.

    Args:
        others: The processes that ended after the first.
        first_ended_ns: When the first one ended.
    """
    for death in sorted(others, key=lambda death: death.ended_ns)[:OTHERS_MAX]:
        try:
            cause = _own_cause(death)
        except Exception:  # noqa: S112 - what cannot be read is no cause
            continue
        if cause is not None:
            later = f"{(death.ended_ns - first_ended_ns) / 1e9:.3f} s later"
            what = (
                f"rank {death.rank} on this node, which ended {later}, has a cause of its own: {cause.what}"
            )
            return Cause(cause.code, what, cause.fix, cause.retryable)
    return None


def _own_cause(death: Death) -> Cause | None:
    number = ended_by(death.code)
    if number is not None and death.asked is None and number in SIGNALS:
        return SIGNALS[number]
    words = read_words_of(death)
    symptoms = list(find_symptoms(words))
    for symptom, line in symptoms:
        if not symptom.consequence and symptom.code != "interrupted":
            return Cause(symptom.code, f"{symptom.meaning}: {quote(line)}", symptom.fix, symptom.retryable)
    # A handler may raise something for the signal that stopped it: that is no cause.
    if (
        symptoms
        or not words.exception
        or any(word in words.exception.lower() for word in ("signal", "sigterm"))
    ):
        return None
    return Cause("python-exception", quote(words.exception), "its own log has the traceback", False)
