"""What another node's clock says, from four readings: asked, heard, answered, heard back.

All four are monotonic clocks, in nanoseconds, which are never set and begin anywhere.

Source: RFC 5905, section 8 (offset and delay of an exchange; the one with the least delay is the truest).
"""

from __future__ import annotations

from launcher.core.frozen import frozen


@frozen
class Offset:
    """What to add to our monotonic clock for the coordinator's; wrong by ``delay_ns / 2`` at most."""

    add_ns: int = 0
    delay_ns: int = 0


def measure(asked_ns: int, heard_ns: int, answered_ns: int, back_ns: int) -> Offset:
    """Return the offset by one exchange.

    Args:
        asked_ns: When we asked, by our clock.
        heard_ns: When the coordinator heard it, by the coordinator's.
        answered_ns: When it answered, by the coordinator's.
        back_ns: When the answer was here, by ours.
    """
    delay_ns = (back_ns - asked_ns) - (answered_ns - heard_ns)
    return Offset(((heard_ns - asked_ns) + (answered_ns - back_ns)) // 2, max(0, delay_ns))


def better(known: Offset | None, new: Offset) -> Offset:
    """Return the one that came about more quickly."""
    return new if known is None or new.delay_ns <= known.delay_ns else known
