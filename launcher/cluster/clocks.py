"""Clocks of two nodes: the offset between the monotonic ones, and how far the wall clocks are apart.

Monotonic clocks are never set and have arbitrary starts. Their offset follows from four readings, all in
nanoseconds: asked, heard, answered, received.

Source: RFC 5905, section 8 (offset and delay of an exchange; the one with the least delay is the most exact).
"""

from __future__ import annotations

from launcher.cluster.consistency import CLOCK_S
from launcher.core.frozen import frozen
from launcher.failure.arbiter import LATENESS_NS


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


def read_clock(offset: Offset | None, at_ns: int) -> tuple[int, int]:
    """Return a time of our monotonic clock by the coordinator's, and its maximum error."""
    if offset is None:
        return at_ns, LATENESS_NS
    return at_ns + offset.add_ns, offset.delay_ns // 2 + LATENESS_NS


def compare_clocks(told_wall_ns: int | None, heard_wall_ns: int) -> float | None:
    """Return how many seconds a node's wall clock is ahead of ours; None if unknown.

    The message is some milliseconds old when it is read, so a difference below a quarter of `CLOCK_S` counts
    as 0.

    Args:
        told_wall_ns: Its wall clock when it sent its first message; None if unknown.
        heard_wall_ns: Ours when that was heard.
    """
    if told_wall_ns is None:
        return None
    ahead = (told_wall_ns - heard_wall_ns) / 1e9
    return 0.0 if abs(ahead) < CLOCK_S / 4 else ahead
