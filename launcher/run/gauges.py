"""What the GPUs and the memory of this node are doing now, for a parent that must stay small.

NVML is called through ctypes: five functions. pynvml would be 5 MiB and 20 ms for the same five
numbers, psutil 4 MiB for one (measured on Python 3.11), and the launcher is to take less than 25 MiB.
"""

from __future__ import annotations

import os

from launcher.frozen import frozen
from launcher.host import Host
from launcher.machine.cgroup import UNLIMITED, cgroup_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class GpuGauge(Protocol):
        """Whatever can tell how the GPUs are used."""

        def read(self, now: float) -> tuple[GpuUse, ...]:
            """Return one value per GPU; empty where nothing is known."""


LOOK_EVERY_S, LOOK_LIMIT_S = 5.0, 60.0
"""How often to look whether the job uses a GPU yet; the distance doubles up to the limit."""
BUSY_PERCENT = 99
LIBRARY = "libnvidia-ml.so.1"
NOT_SUPPORTED = 3
"""NVML_ERROR_NOT_SUPPORTED: e.g. the utilization of a MIG instance."""


@frozen
class GpuUse:
    """One GPU during the last moment (NVML's sample period, 1 s or less).

    Attributes:
        busy_percent: How much of the time a kernel ran, None if NVML does not tell.
        memory_percent: How much of the time its memory was read or written.
        used_bytes: Memory in use, by anybody.
        total_bytes: Memory that it has.
    """

    busy_percent: int | None
    memory_percent: int
    used_bytes: int
    total_bytes: int

    @property
    def works(self) -> bool:
        """Whether it does something; False if unknown.

        A collective that waits for another rank is a kernel that spins: NVML calls the GPU 100 % busy
        for hours (NVIDIA/nccl issue 968). It spins on flags in caches, so that the memory rests, which
        no kernel that computes on more than its caches hold ever lets it do.
        """
        return bool(self.busy_percent) and not self.spins

    @property
    def spins(self) -> bool:
        """Whether it is busy, all of the time, with nothing in memory: it waits for another."""
        return (self.busy_percent or 0) >= BUSY_PERCENT and self.memory_percent == 0


class Gpus:
    """The GPUs that the job sees, once it uses them.

    Before the first process of ours holds a GPU's device file nothing is asked: then the driver may
    have to wake the GPUs up, which takes seconds, and this loop has to pass signals on.
    """

    def __init__(self, visible_devices: str | None = None) -> None:
        """Remember CUDA_VISIBLE_DEVICES; None for all GPUs."""
        self._visible_devices = visible_devices
        self._nvml: Nvml | None = None
        self._look_at: float | None = 0.0 if Host().gpu_count() else None
        self._look_every_s = LOOK_EVERY_S

    def read(self, now: float) -> tuple[GpuUse, ...]:
        """Return one value per GPU; empty before the job uses one, and for good after NVML has failed."""
        try:
            if self._nvml is None:
                if self._look_at is None or now < self._look_at:
                    return ()
                if not _is_in_use():
                    self._look_at = now + self._look_every_s
                    self._look_every_s = min(2 * self._look_every_s, LOOK_LIMIT_S)
                    return ()
                self._nvml = Nvml(LIBRARY, self._visible_devices)
            return self._nvml.read()
        except (OSError, AttributeError):  # no library, an old one, or it says no
            self._nvml, self._look_at = None, None
            return ()


def _is_in_use() -> bool:
    from launcher.run.family import find_descendants, find_gpu_files

    return any(find_gpu_files(pid) for pid in find_descendants([os.getpid()]))


class Nvml:
    """NVIDIA's management library, as far as it is needed here.

    Raises:
        OSError: It is not there, or refuses; with its own error number.
        AttributeError: It is too old.

    Source:
        NVML API reference: nvmlInit_v2, nvmlDeviceGetHandleByIndex_v2, nvmlDeviceGetHandleByUUID,
        nvmlDeviceGetUtilizationRates, nvmlDeviceGetMemoryInfo.
    """

    def __init__(self, library: str, visible_devices: str | None = None) -> None:
        """Load the library and find the GPUs; CUDA_VISIBLE_DEVICES names them, None for all."""
        import ctypes

        self._library = ctypes.CDLL(library)
        self._call("nvmlInit_v2")
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        names = [str(index) for index in range(count.value)]
        if visible_devices is not None:
            names = [name.strip() for name in visible_devices.split(",")]
        self._handles = [handle for name in names for handle in [self._find(name)] if handle]

    def read(self) -> tuple[GpuUse, ...]:
        """Return one value per GPU."""
        return tuple(self._read_one(handle) for handle in self._handles)

    def _find(self, name: str) -> object:
        """Return the handle of a GPU; None for what CUDA would not find either."""
        import ctypes

        handle = ctypes.c_void_p()
        try:
            if name.isascii() and name.isdecimal():
                index = ctypes.c_uint(int(name[:9]))
                self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
            else:
                uuid = name.encode("utf-8", "surrogateescape")
                self._call("nvmlDeviceGetHandleByUUID", uuid, ctypes.byref(handle))
        except OSError:
            return None
        return handle

    def _read_one(self, handle: object) -> GpuUse:
        import ctypes

        rates = (ctypes.c_uint * 2)()  # gpu, memory
        sizes = (ctypes.c_ulonglong * 3)()  # total, free, used
        busy: int | None = None
        try:
            self._call("nvmlDeviceGetUtilizationRates", handle, rates)
            busy = rates[0]
        except OSError as error:
            if error.errno != NOT_SUPPORTED:
                raise
        self._call("nvmlDeviceGetMemoryInfo", handle, sizes)
        return GpuUse(busy, rates[1], sizes[2], sizes[0])

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise OSError(status, f"{name}: NVML error {status}")


class MemoryGauge:
    """How much memory the job has taken, of how much: by its cgroup, else of the whole node."""

    def __init__(self, host: Host) -> None:
        """Find the innermost cgroup that counts memory."""
        self._host = host
        self._folder = next(filter(self._counts, cgroup_folders(host, "memory")), None)

    def read(self) -> tuple[int, int | None] | None:
        """Return (bytes in use, limit or None), less what the kernel drops from its file cache at need."""
        folder = self._folder
        if folder is None:
            return self._read_node()
        used = self._number(f"{folder}/memory.current") or self._number(f"{folder}/memory.usage_in_bytes")
        limit = self._number(f"{folder}/memory.max") or self._number(f"{folder}/memory.limit_in_bytes")
        fields = self._fields(f"{folder}/memory.stat")
        cache = fields.get("total_inactive_file", fields.get("inactive_file", 0))  # v1; v2
        if used is None:
            return None
        return max(0, used - cache), limit if limit and limit < UNLIMITED else None

    def _counts(self, folder: str) -> bool:
        names = ("memory.current", "memory.usage_in_bytes")
        return any(self._number(f"{folder}/{name}") is not None for name in names)

    def _read_node(self) -> tuple[int, int | None] | None:
        fields = self._fields("/proc/meminfo")
        total, free = fields.get("MemTotal:"), fields.get("MemAvailable:")
        return None if total is None or free is None else ((total - free) << 10, total << 10)

    def _number(self, path: str) -> int | None:
        text = (self._host.read_text(path) or "").strip()
        return int(text) if text.isascii() and text.isdecimal() else None

    def _fields(self, path: str) -> dict[str, int]:
        lines = [line.split() for line in (self._host.read_text(path) or "").splitlines()]
        return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}
