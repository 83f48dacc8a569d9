"""Checks the clock: if it is wrong, certificates and tokens are refused, and logs of several nodes mislead.

Source: adjtimex(2); systemd-timesyncd.service(8) (/run/systemd/timesync/synchronized); RFC 5280 (validity of
certificates).
"""

from __future__ import annotations

import time

from launcher.checks.case import CheckedNode
from launcher.checks.finding import PROBLEM, WARNING, Finding, ok
from launcher.core.frozen import frozen
from launcher.machine.host import Host

WHAT = "clock"
YEARS = (2025, 2100)
"""Plausible years: this code is newer than the first; a clock without a battery begins in 1970 or 2000."""
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


def look(case: CheckedNode) -> list[Finding]:
    """Check the year and, for several nodes, whether the kernel reports the clock as synchronized."""
    clock = read_clock(case.host)
    fix = "start chronyd or systemd-timesyncd on the machine (chronyc makestep)"
    try:
        year = time.gmtime(clock.now_s).tm_year
    except (OverflowError, OSError, ValueError):
        year = 0
    if not YEARS[0] <= year <= YEARS[1]:
        expected = f"a year from {YEARS[0]} on"
        return [Finding("clock", PROBLEM, WHAT, expected, f"the year {year}", fix)]
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(clock.now_s))
    if clock.is_synchronized is False and case.spans_nodes:
        found = f"{now}, not synchronized, according to the kernel"
        return [Finding("clock", WARNING, WHAT, "a clock that is synchronized on all nodes", found, fix)]
    return [ok("clock", WHAT, f"{now}{', synchronized' if clock.is_synchronized else ''}")]
