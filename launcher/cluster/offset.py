"""Offset of another node's monotonic clock, from four readings: asked, heard, answered, received.

All four are nanoseconds of monotonic clocks, which are never set and have arbitrary starts.

Source: RFC 5905, section 8 (offset and delay of an exchange; the one with the least delay is the most exact).
"""

from __future__ import annotations

from launcher.core.frozen import frozen


@frozen
class Offset:
    """Nanoseconds to add to our monotonic clock for the coordinator's, within ``delay_ns / 2``."""

    add_ns: int
    delay_ns: int


def measure(asked_ns: int, heard_ns: int, answered_ns: int, back_ns: int) -> Offset:
    """Return the offset from one exchange.

    Args:
        asked_ns: When we asked, by our clock.
        heard_ns: When the coordinator received it, by its clock.
        answered_ns: When the coordinator answered, by its clock.
        back_ns: When we received the answer, by our clock.
    """
    delay_ns = (back_ns - asked_ns) - (answered_ns - heard_ns)
    return Offset(((heard_ns - asked_ns) + (answered_ns - back_ns)) // 2, max(0, delay_ns))


def better(known: Offset | None, new: Offset) -> Offset:
    """Return the offset of the faster exchange."""
    return new if known is None or new.delay_ns <= known.delay_ns else known
