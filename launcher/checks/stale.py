"""Checks for stale processes that a dead job left on the GPUs, and that use memory of the next job.

Source: NVIDIA NVML API reference; its value of used memory includes some of the driver's own.
"""

from __future__ import annotations

from launcher.checks.case import CheckedNode
from launcher.checks.finding import PROBLEM, WARNING, Finding, ok, render_count
from launcher.core.errors import say_size
from launcher.machine.host import Host
from launcher.machine.nvml import GpuMemoryUse, read_gpu_use

OWN_BYTES = 2 << 30
"""Memory of a large GPU that the driver itself may use."""
MUCH = 0.1


def look(case: CheckedNode) -> list[Finding]:
    """Check the processes and the used memory of each GPU."""
    if not case.exposed_count:
        return []
    used = () if case.host.is_recorded() else read_gpu_use()
    found = [_judge(case.host, gpu) for gpu in used if gpu.pids or gpu.used_bytes > OWN_BYTES]
    if used and not found:
        return [ok("stale", "processes on the GPUs", f"none on {render_count(len(used), 'GPU')}")]
    return found


def _judge(host: Host, gpu: GpuMemoryUse) -> Finding:
    level = PROBLEM if gpu.used_bytes > max(OWN_BYTES, MUCH * gpu.total_bytes) else WARNING
    names = [f"{pid} ({_name(host, pid)})" for pid in gpu.pids]
    by = (
        f"process{'es' if len(names) > 1 else ''} {', '.join(names)}"
        if names
        else "processes that this user may not see"
    )
    found = f"{say_size(gpu.used_bytes)} of {say_size(gpu.total_bytes)} taken by {by}"
    pids = " ".join(str(pid) for pid in gpu.pids)
    fix = "end what uses it, outside of this container: nvidia-smi on the machine"
    if any(host.read_text(f"/proc/{pid}/comm") for pid in gpu.pids):
        fix = f"kill {pids}, if it belongs to no job that runs"
    return Finding("stale", level, f"GPU {gpu.index}", "free before the job starts", found, fix)


def _name(host: Host, pid: int) -> str:
    return (host.read_text(f"/proc/{pid}/comm") or "").strip() or "not of this container"
