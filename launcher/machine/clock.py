"""The clock, and whether anything keeps it right.

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
"""More than struct timex has anywhere; all zero it asks, and changes nothing."""


@frozen
class Clock:
    """What the clock says, in seconds since 1970, and whether it is kept right; None if unknown."""

    now_s: float
    is_synchronized: bool | None


def read_clock(host: Host) -> Clock:
    """Return the clock of this machine; of a container, that of the machine under it."""
    marked = MARK in host.list_folder(TIMESYNC)
    return Clock(time.time(), True if marked else _ask_kernel())


def _ask_kernel() -> bool | None:
    import ctypes

    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(STRUCT_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != TIME_ERROR
