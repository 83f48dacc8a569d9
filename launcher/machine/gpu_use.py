"""Lists the processes that use the GPUs at this moment, by NVML.

The PIDs of processes of other containers mean nothing here, or are not listed at all. The used memory
includes theirs in any case.

Source: NVIDIA NVML API reference (nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetMemoryInfo).
"""

from __future__ import annotations

from launcher.core.frozen import frozen


@frozen
class GpuUse:
    """The use of one GPU: its NVML index, used and total bytes of memory, and PIDs of compute processes."""

    index: int
    used_bytes: int
    total_bytes: int
    pids: tuple[int, ...] = ()


def read_gpu_use() -> tuple[GpuUse, ...]:
    """Return the use of each GPU that NVML lists and that answers; empty without NVML or a driver."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError):
        return ()
    try:
        found = [_read_one(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return tuple(use for use in found if use is not None)
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _read_one(index: int) -> GpuUse | None:
    import pynvml

    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return None
    return GpuUse(index, int(memory.used), int(memory.total), tuple(int(item.pid) for item in processes))
