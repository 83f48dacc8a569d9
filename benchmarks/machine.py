"""Where and when a result was measured: without this line a number means nothing."""

from __future__ import annotations

import datetime
import os
import platform
import resource
import time

import psutil


def describe_machine() -> str:
    """Return machine, interpreter and date in one line."""
    model = "unknown processor"
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
        model = names[0] if names else model
    except OSError:
        pass
    cpus = len(os.sched_getaffinity(0))
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{datetime.date.today()}: {model}, {cpus} CPUs, Linux {platform.release()}, {python}"


class OtherLoad:
    """Watches how much of the CPUs everybody else uses: a number measured beside them means little.

    Counts as ours: this process, and all below it that have been waited for by then.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._busy, self._own = _busy_s(), _own_s()

    def percent(self) -> float:
        """Return the share of all CPUs since the start, in percent."""
        others = _busy_s() - self._busy - (_own_s() - self._own)
        return max(0.0, 100 * others / (time.monotonic() - self._since) / (os.cpu_count() or 1))


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


def _own_s() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
