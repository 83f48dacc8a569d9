"""Lists the processes that use the GPUs at this moment, by NVML.

The PIDs of processes of other containers mean nothing here, or are not listed at all. The used memory
includes theirs in any case.

Source: NVIDIA NVML API reference (nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetMemoryInfo).
"""

from __future__ import annotations

from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def open_nvml() -> Any:
    """Return NVML's module, initialized; None without it or without a driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError):
        return None
    return pynvml


@frozen
class GpuUse:
    """The use of one GPU: its NVML index, used and total bytes of memory, and PIDs of compute processes."""

    index: int
    used_bytes: int
    total_bytes: int
    pids: tuple[int, ...] = ()


def read_gpu_use() -> tuple[GpuUse, ...]:
    """Return the use of each GPU that NVML lists and that answers; empty without NVML or a driver."""
    nvml = open_nvml()
    if nvml is None:
        return ()
    try:
        found = [_read_one(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        return tuple(use for use in found if use is not None)
    except nvml.NVMLError:
        return ()
    finally:
        nvml.nvmlShutdown()


def _read_one(nvml: Any, index: int) -> GpuUse | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return None
    return GpuUse(index, int(memory.used), int(memory.total), tuple(int(item.pid) for item in processes))
