"""Checks the clock: if it is wrong, certificates and tokens are refused, and logs of several nodes mislead.

Source: adjtimex(2); systemd-timesyncd.service(8) (/run/systemd/timesync/synchronized); RFC 5280 (validity of
certificates).
"""

from __future__ import annotations

import time

from launcher.checks.case import CheckedNode
from launcher.checks.finding import Findings, fail, ok, warn
from launcher.machine.host import Host

WHAT = "clock"
YEARS = (2025, 2100)
"""Plausible years: this code is newer than the first; a clock without a battery begins in 1970 or 2000."""
TIMESYNC = "/run/systemd/timesync"
MARK = "synchronized"
TIME_ERROR = 5
STRUCT_BYTES = 512
"""Larger than struct timex on any platform. A buffer of zeros is a query that changes nothing."""


def read_clock(host: Host) -> tuple[float, bool | None]:
    """Return the seconds since 1970, and whether this node's clock is synchronized (None if unknown)."""
    if MARK in host.list_folder(TIMESYNC):
        return time.time(), True
    import ctypes

    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(STRUCT_BYTES))
    except (OSError, AttributeError):
        return time.time(), None
    return time.time(), None if state < 0 else state != TIME_ERROR


def look(case: CheckedNode) -> Findings:
    """Check the year and, for several nodes, whether the kernel reports the clock as synchronized."""
    now_s, is_synchronized = read_clock(case.host)
    fix = "start chronyd or systemd-timesyncd on the machine (chronyc makestep)"
    try:
        year = time.gmtime(now_s).tm_year
    except (OverflowError, OSError, ValueError):
        year = 0
    if not YEARS[0] <= year <= YEARS[1]:
        yield fail(WHAT, f"a year from {YEARS[0]} on", f"the year {year}", fix)
        return
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
    if is_synchronized is False and case.spans_nodes:
        found = f"{now}, not synchronized, according to the kernel"
        yield warn(WHAT, "a clock that is synchronized on all nodes", found, fix)
    else:
        yield ok(WHAT, f"{now}{', synchronized' if is_synchronized else ''}")
