"""Reads the clock, and whether it is synchronized.

Source: adjtimex(2); systemd-timesyncd.service(8) (/run/systemd/timesync/synchronized).
"""

from __future__ import annotations

import time

from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.machine.host import Host

TIMESYNC = "/run/systemd/timesync"
MARK = "synchronized"
TIME_ERROR = 5
STRUCT_BYTES = 512
"""Larger than struct timex on any platform. A buffer of zeros is a query that changes nothing."""


@frozen
class Clock:
    """The time in seconds since 1970, and whether the clock is synchronized (None if unknown)."""

    now_s: float
    is_synchronized: bool | None


def read_clock(host: Host) -> Clock:
    """Return the state of this node's clock, which containers share; of a snapshot it is unknown."""
    if host.is_recorded():
        return Clock(0.0, None)
    marked = MARK in host.list_folder(TIMESYNC)
    return Clock(time.time(), True if marked else _ask_kernel())


def _ask_kernel() -> bool | None:
    import ctypes

    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(STRUCT_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != TIME_ERROR
