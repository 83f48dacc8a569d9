"""Checks the memory limit: what the node's processes may use together before the kernel kills one.

Files in /dev/shm count, too. A process with torch and CUDA takes 2 to 3 GiB before it loads a model.

Source: Linux Documentation/admin-guide/cgroup-v2.rst (memory.max), proc(5) (MemTotal).
"""

from __future__ import annotations

from launcher.checks.case import CheckedNode
from launcher.checks.finding import Findings, ok, warn
from launcher.core.errors import say_size
from launcher.machine.cgroup import read_fields, read_memory_limit

WHAT = "memory"
PER_PROCESS_BYTES = 2 << 30


def look(case: CheckedNode) -> Findings:
    """Compare the limit or the node's memory, whichever is smaller, with 2 GiB for each process."""
    limit, fields = read_memory_limit(case.host), read_fields(case.host, "/proc/meminfo")
    total = fields["MemTotal:"] << 10 if "MemTotal:" in fields else None
    known = [size for size in (limit, total) if size is not None]
    if not known:
        return
    size, count = min(known), case.process_count
    is_limited = limit is not None and size == limit and limit != total
    found = f"{say_size(size)}{' by the limit of our cgroup' if is_limited else ''}"
    if size >= count * PER_PROCESS_BYTES:
        yield ok(WHAT, found)
        return
    needed = say_size(count * PER_PROCESS_BYTES)
    fix = fewer = "start fewer processes (--nproc-per-node N), or use a larger machine"
    if is_limited:
        fix = case.option(
            f"--memory={needed.replace(' GiB', 'g')}",
            kubernetes=f"resources: {{limits: {{memory: {needed.replace(' GiB', 'Gi')}}}}} or more",
            machine="raise the limit of this job (sbatch --mem), or MemoryMax of the service",
            azure_ml="Azure ML gives a job the whole machine: " + fewer,
        )
    expected = f"{needed} or more, 2 GiB for each of {count} process{'es' if count > 1 else ''}"
    yield warn(WHAT, expected, found, fix)
