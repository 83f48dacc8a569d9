"""Where and when a result was measured: without this line a number means nothing."""

from __future__ import annotations

import datetime
import os
import platform


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
