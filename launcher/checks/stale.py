"""Checks for stale processes that a dead job left on the GPUs, and that use memory of the next job.

Source: NVIDIA NVML API reference; its value of used memory includes some of the driver's own.
"""

from __future__ import annotations

from launcher.checks.case import CheckedNode
from launcher.checks.finding import Finding, Findings, fail, ok, render_count, warn
from launcher.core.errors import say_size
from launcher.machine.host import Host
from launcher.machine.nvml import GpuMemoryUse, read_gpu_use

OWN_BYTES = 2 << 30
"""Memory of a large GPU that the driver itself may use."""
MUCH = 0.1


def look(case: CheckedNode) -> Findings:
    """Check the processes and the used memory of each GPU."""
    gpus = read_gpu_use() if case.exposed_count and not case.host.is_recorded() else ()
    taken = [gpu for gpu in gpus if gpu.pids or gpu.used_bytes > OWN_BYTES]
    for gpu in taken:
        yield _judge(case.host, gpu)
    if gpus and not taken:
        yield ok("processes on the GPUs", f"none on {render_count(len(gpus), 'GPU')}")


def _judge(host: Host, gpu: GpuMemoryUse) -> Finding:
    names = {pid: (host.read_text(f"/proc/{pid}/comm") or "").strip() for pid in gpu.pids}
    shown = ", ".join(f"{pid} ({name or 'not of this container'})" for pid, name in names.items())
    by = (
        f"process{'es' if len(names) > 1 else ''} {shown}"
        if names
        else "processes that this user may not see"
    )
    found = f"{say_size(gpu.used_bytes)} of {say_size(gpu.total_bytes)} taken by {by}"
    fix = "end what uses it, outside of this container: nvidia-smi on the machine"
    if any(names.values()):
        fix = f"kill {' '.join(map(str, gpu.pids))}, if it belongs to no job that runs"
    report = fail if gpu.used_bytes > max(OWN_BYTES, MUCH * gpu.total_bytes) else warn
    return report(f"GPU {gpu.index}", "free before the job starts", found, fix)
