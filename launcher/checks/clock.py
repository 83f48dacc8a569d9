"""The clock: certificates and tokens are refused when it is wrong; nodes that differ write logs that lie.

Source: adjtimex(2); RFC 5280 (validity of certificates).
"""

from __future__ import annotations

import time

from launcher.checks.finding import PROBLEM, WARNING, Finding, ok

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.checks.case import Case

WHAT = "clock"
YEARS = (2025, 2100)
"""This was written after the first; a clock without a battery begins in 1970 or 2000."""


def look(case: Case) -> list[Finding]:
    """Look at the year; for several nodes, whether the kernel knows the clock to be kept right."""
    clock = case.host.clock()
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
        found = f"{now}, not synchronized as far as the kernel knows"
        return [Finding("clock", WARNING, WHAT, "one that is the same on all nodes", found, fix)]
    return [ok("clock", WHAT, f"{now}{', synchronized' if clock.is_synchronized else ''}")]
