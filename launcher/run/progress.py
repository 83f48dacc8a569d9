"""Whether the job still runs, for whoever watches: a status line on a terminal, a rare line in a log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from launcher.host import Host
from launcher.run.gauges import GpuUse, MemoryGauge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.run.gauges import GpuGauge

REDRAW_S = 1.0
GAUGE_S = 5.0
"""NVML takes up to a millisecond per GPU, and the parent is to stay below 0.1 % of a core."""
LOG_S = 60.0
LOG_LIMIT_S = 3600.0
SILENT_S = 2.0
"""Less silence than this is none."""
GIB = 1 << 30

Memory = tuple[int, int | None]


class Progress:
    """The status line of a run, or its lines in a log.

    On a terminal ``show`` gets a new text every second, and an empty one from `close`. In a log
    ``notice`` gets a line after a minute without any output, and then after twice that time and so
    on, at most an hour; output starts that anew. With ``enabled`` True: a line every minute.

    Attributes:
        due: When `fire` wants to be called (monotonic seconds), None for never.
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
        notice: Callable[[str], None],
        gpus: GpuGauge | None = None,
    ) -> None:
        """Begin; nothing is shown before a second has passed.

        Args:
            enabled: ``--progress`` or ``--no-progress``, None where neither was given.
            is_terminal: Whether standard error is a terminal.
            started: Monotonic time of the start.
            count_up: Returns how many processes run.
            last_output: Returns when a process wrote the last time; ``started`` before the first.
            show: Replaces the status line.
            notice: Writes one line to the log.
            gpus: Where the use of GPUs is read, None for nowhere.
        """
        self._started = started
        self._count_up, self._last_output = count_up, last_output
        self._show, self._notice = show, notice
        self._gpus = gpus
        self._memory: MemoryGauge | None = None
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
        """Draw or write what is to be drawn or written now."""
        if self.due is None:
            return
        if self._on_terminal:
            self._draw(self._describe(now))
            self.due = next_tick(self._started, now, REDRAW_S)
        elif self._always:
            self._notice(self._describe(now))
            self.due = next_tick(self._started, now, LOG_S)
        else:
            self._break_silence(now)

    def close(self) -> None:
        """Take the status line away; nothing comes after this."""
        self.due = None
        self._draw("")

    def _break_silence(self, now: float) -> None:
        last = self._last_output()
        if last > self._silent_since:
            self._silent_since, self._distance_s = last, LOG_S
            self._speak_at = last + LOG_S
        if now >= self._speak_at:
            self._notice(self._describe(now))
            self._distance_s = min(2 * self._distance_s, LOG_LIMIT_S)
            self._speak_at = now + self._distance_s
        self.due = min(self._speak_at, now + LOG_S)  # there may be output, and then silence, until then

    def _draw(self, text: str) -> None:
        if text != self._drawn:
            self._drawn = text
            self._show(text)

    def _describe(self, now: float) -> str:
        if self._gauged_at is None or now - self._gauged_at >= GAUGE_S:
            self._gauged_at = now
            self._memory = self._memory or MemoryGauge(Host())
            self._gauged = (self._gpus.read(now) if self._gpus else (), self._memory.read())
        gpus, memory = self._gauged
        silence_s = now - max(self._last_output(), self._started)
        return describe(self._count_up(), now - self._started, gpus, memory, silence_s)


def next_tick(started: float, now: float, every_s: float) -> float:
    """Return the next moment that is a multiple of ``every_s`` after the start."""
    return started + ((now - started) // every_s + 1) * every_s


def describe(
    up: int, elapsed_s: float, gpus: Sequence[GpuUse], memory: Memory | None, silence_s: float
) -> str:
    """Return the line, e.g. ``8 up · 12:34 · GPU 93 % · 61.2/80 GiB · mem 41 GiB · last output 3 s ago``.

    GPUs: the mean of how busy they are, and the sum of their memory.
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
    """Return a size in GiB: one decimal below 100 unless it is a whole number."""
    value = size_bytes / GIB
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}".removesuffix(".0")
