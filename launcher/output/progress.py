"""Progress of the job for users: a status line on a terminal, or an occasional line in a log."""

from __future__ import annotations

import os

from launcher.core.frozen import frozen
from launcher.machine.cgroup import read_memory_use
from launcher.machine.gpus import count_gpus
from launcher.machine.host import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from launcher.core.log import Say

    class GpuGauge(Protocol):
        """A source of the GPUs' utilization."""

        def read(self, now: float) -> tuple[GpuUse, ...]:
            """Return one value per GPU; empty if nothing is known."""


REDRAW_S = 1.0
GAUGE_S = 5.0
"""Seconds between reads: NVML takes up to 1 ms per GPU, and the parent must stay below 0.1 % of a core."""
LOG_S = 60.0
LOG_LIMIT_S = 3600.0
SILENT_S = 2.0
"""Shorter silences, in seconds, are not shown."""
GIB = 1 << 30

Memory = tuple[int, int | None]


class Progress:
    """The status line of a run, or its lines in a log.

    On a terminal ``show`` gets a new text every second, and `close` shows an empty one. In a log ``notice``
    gets a line after a minute without any output. The time to the next line doubles, up to an hour; output
    resets it. If ``enabled`` is True, it gets a line every minute.

    Attributes:
        due: When to call `fire`, in monotonic seconds; None for never.
    """

    def __init__(
        self,
        *,
        enabled: bool | None,
        is_terminal: bool,
        started: float,
        count_up: Callable[[], int],
        last_output: Callable[[], float],
        show: Callable[[str], None],
        notice: Say,
        gpus: GpuGauge | None = None,
    ) -> None:
        """Start; nothing is shown before a second has passed.

        Args:
            enabled: True for ``--progress``, False for ``--no-progress``, None without a flag.
            is_terminal: Whether standard error is a terminal.
            started: Monotonic time of the start.
            count_up: Returns the number of running processes.
            last_output: Returns the time of the last output of a process; ``started`` before the first.
            show: Replaces the status line.
            notice: Writes one line to the log.
            gpus: Source of the GPUs' utilization; None for none.
        """
        self._started = started
        self._count_up, self._last_output = count_up, last_output
        self._show, self._notice = show, notice
        self._gpus = gpus
        self._gauged_at: float | None = None
        self._gauged: tuple[tuple[GpuUse, ...], Memory | None] = ((), None)
        self._drawn = ""
        self._always = enabled is True
        self._on_terminal = is_terminal
        self._distance_s = LOG_S
        self._silent_since = started
        self._speak_at = started + LOG_S
        self.due: float | None = started + (REDRAW_S if is_terminal else LOG_S)
        if enabled is False:
            self.due = None

    def fire(self, now: float) -> None:
        """Draw the status line, or write a line to the log, if it is due."""
        if self.due is None:
            return
        if self._on_terminal:
            self._draw(self._describe(now))
            self.due = next_tick(self._started, now, REDRAW_S)
        elif self._always:
            self._notice(self._describe(now), "progress")
            self.due = next_tick(self._started, now, LOG_S)
        else:
            self._break_silence(now)

    def close(self) -> None:
        """Remove the status line, and show nothing after this."""
        self.due = None
        self._draw("")

    def _break_silence(self, now: float) -> None:
        last = self._last_output()
        if last > self._silent_since:
            self._silent_since, self._distance_s = last, LOG_S
            self._speak_at = last + LOG_S
        if now >= self._speak_at:
            self._notice(self._describe(now), "progress")
            self._distance_s = min(2 * self._distance_s, LOG_LIMIT_S)
            self._speak_at = now + self._distance_s
        self.due = min(self._speak_at, now + LOG_S)  # output and another silence may come before

    def _draw(self, text: str) -> None:
        if text != self._drawn:
            self._drawn = text
            self._show(text)

    def _describe(self, now: float) -> str:
        if self._gauged_at is None or now - self._gauged_at >= GAUGE_S:
            self._gauged_at = now
            self._gauged = (self._gpus.read(now) if self._gpus else (), read_memory_use(Host()))
        gpus, memory = self._gauged
        silence_s = now - max(self._last_output(), self._started)
        return describe(self._count_up(), now - self._started, gpus, memory, silence_s)


def next_tick(started: float, now: float, every_s: float) -> float:
    """Return the next time that is a multiple of ``every_s`` after the start."""
    return started + ((now - started) // every_s + 1) * every_s


def describe(
    up: int, elapsed_s: float, gpus: Sequence[GpuUse], memory: Memory | None, silence_s: float
) -> str:
    """Return the line, e.g. ``8 up · 12:34 · GPU 93 % · 61.2/80 GiB · mem 41 GiB · last output 3 s ago``.

    For GPUs: their mean utilization, and the sum of their memory.
    """
    parts = [f"{up} up", clock(elapsed_s)]
    busy = [gpu.busy_percent for gpu in gpus if gpu.busy_percent is not None]
    if busy:
        parts.append(f"GPU {round(sum(busy) / len(busy))} %")
    if gpus:
        used, total = sum(gpu.used_bytes for gpu in gpus), sum(gpu.total_bytes for gpu in gpus)
        parts.append(f"{gib(used)}/{gib(total)} GiB")
    if memory is not None:
        used, limit = memory
        parts.append(f"mem {gib(used)}{f'/{gib(limit)}' if limit else ''} GiB")
    if silence_s >= SILENT_S:
        parts.append(f"last output {duration(silence_s)} ago")
    return " · ".join(parts)


def clock(seconds: float) -> str:
    """Return ``12:34``, ``1:02:03`` or ``2 d 03:04:05``."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def duration(seconds: float) -> str:
    """Return ``45 s``, ``3 min`` or ``1 h 40 min``, rounded down."""
    if seconds < 120:
        return f"{int(seconds)} s"
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def gib(size_bytes: int) -> str:
    """Return a size in GiB, with one decimal below 100 unless it is a whole number."""
    value = size_bytes / GIB
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}".removesuffix(".0")


LOOK_EVERY_S, LOOK_LIMIT_S = 5.0, 60.0
"""Seconds between checks whether the job uses a GPU yet: at first, and at most (doubled each time)."""
BUSY_PERCENT = 99
LIBRARY = "libnvidia-ml.so.1"
NOT_SUPPORTED = 3
"""NVML_ERROR_NOT_SUPPORTED, e.g. for the utilization of a MIG instance."""
SM_CLOCK = 1
"""NVML_CLOCK_SM."""


@frozen
class GpuUse:
    """Utilization of one GPU during the last sample period of NVML (1 s or less).

    Attributes:
        busy_percent: Share of the time in which a kernel ran; None if NVML does not tell.
        memory_percent: Share of the time in which its memory was read or written.
        used_bytes: Memory in use, by any process.
        total_bytes: Its whole memory.
        clock_mhz: Clock of its processors; None if NVML does not tell.
        reasons: NVML's mask of why the clock is reduced, see `launcher.machine.nvml.THROTTLE`.
    """

    busy_percent: int | None
    memory_percent: int
    used_bytes: int
    total_bytes: int
    clock_mhz: int | None = None
    reasons: int = 0

    @property
    def works(self) -> bool:
        """Whether it computes; False if unknown.

        A collective that waits for another rank is a kernel that spins: NVML shows the GPU as 100 % busy for
        hours (NVIDIA/nccl issue 968). It spins on flags in caches, so that the memory is idle. A kernel that
        computes on more data than the caches hold never leaves the memory idle.
        """
        return bool(self.busy_percent) and not self.spins

    @property
    def spins(self) -> bool:
        """Whether it is busy all the time without memory traffic, i.e. waits for another rank."""
        return (self.busy_percent or 0) >= BUSY_PERCENT and self.memory_percent == 0


class Gpus:
    """The GPUs that the job sees, once it uses them.

    NVML is not called before a process of ours opens a GPU's device file: the driver may then have to wake
    the GPUs up, which takes seconds, and this loop must forward signals.
    """

    def __init__(self, visible_devices: str | None = None) -> None:
        """Take the value of CUDA_VISIBLE_DEVICES; None for all GPUs."""
        self._visible_devices = visible_devices
        self._nvml: Nvml | None = None
        self._look_at: float | None = 0.0 if count_gpus(Host()) else None
        self._look_every_s = LOOK_EVERY_S

    def read(self, now: float) -> tuple[GpuUse, ...]:
        """Return one value per GPU; empty before the job uses one, and forever after NVML has failed."""
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
        except (OSError, AttributeError):  # no library, an old one, or an NVML error
            self._nvml, self._look_at = None, None
            return ()


def _is_in_use() -> bool:
    from launcher.machine.process import find_descendants, find_gpu_files

    return any(find_gpu_files(pid) for pid in find_descendants([os.getpid()]))


class Nvml:
    """The part of NVIDIA's management library that is needed here.

    Raises:
        OSError: It is missing, or a call fails; then with NVML's error number.
        AttributeError: It is too old.

    Source:
        NVML API reference: nvmlInit_v2, nvmlDeviceGetHandleByIndex_v2, nvmlDeviceGetHandleByUUID,
        nvmlDeviceGetUtilizationRates, nvmlDeviceGetMemoryInfo, nvmlDeviceGetClockInfo,
        nvmlDeviceGetCurrentClocksThrottleReasons.
    """

    def __init__(self, library: str, visible_devices: str | None = None) -> None:
        """Load the library and find the GPUs that CUDA_VISIBLE_DEVICES names; None for all."""
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
        """Return the handle of a GPU; None for a name that CUDA would not find either."""
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
        clock, reasons = ctypes.c_uint(), ctypes.c_ulonglong()
        clock_mhz: int | None = None
        try:
            self._call("nvmlDeviceGetClockInfo", handle, SM_CLOCK, ctypes.byref(clock))
            self._call("nvmlDeviceGetCurrentClocksThrottleReasons", handle, ctypes.byref(reasons))
            clock_mhz = clock.value
        except (OSError, AttributeError):  # a part of a GPU, or a library without them
            pass
        return GpuUse(busy, rates[1], sizes[2], sizes[0], clock_mhz, reasons.value)

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise OSError(status, f"{name}: NVML error {status}")
