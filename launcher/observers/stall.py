"""Stall detector: notices that a job hangs.

A stall is a time in which no process writes and no GPU works. Each is reported once; another one only after
something has happened again. What follows is up to `launcher.evidence.hang`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.output.progress import GpuGauge, GpuUse

LOOKS = 10
"""Number of checks during the time that makes a stall ..."""
LOOK_LIMIT_S = 5.0
"""... but at least one in this many seconds: NVML reports only the last second."""
LATE_S = 10.0
"""If `fire` is later than this, the launcher itself was paused: a paused container is not a stall."""


class StallDetector:
    """Watches one attempt for stalls; made unless ``--stall-timeout`` is 0.

    Attributes:
        due: When to call `fire` (monotonic seconds); None for never.
    """

    def __init__(
        self,
        timeout_s: float,
        last_output: Callable[[], float],
        on_stall: Callable[[str], None],
        on_move: Callable[[], None],
        *,
        started: float,
        gpus: GpuGauge | None = None,
    ) -> None:
        """Start to watch.

        Args:
            timeout_s: Seconds of silence that make a stall.
            last_output: Returns when a process last wrote output (monotonic seconds).
            on_stall: Called once when a stall begins, with what was seen: ``no output for 10 min``.
            on_move: Called when something has happened again after that.
            started: Monotonic time of the start.
            gpus: Reads the use of the GPUs; None to consider output only.
        """
        self._timeout_s, self._last_output = timeout_s, last_output
        self._on_stall, self._on_move, self._gpus = on_stall, on_move, gpus
        self._look_s = min(timeout_s / LOOKS, LOOK_LIMIT_S)
        self._moved = started
        self._reported = False
        self._uses: tuple[GpuUse, ...] = ()
        self.due: float | None = started + self._look_s

    def fire(self, now: float) -> None:
        """Check whether something has happened."""
        if self.due is None:
            return
        late = now > self.due + LATE_S
        self.due = now + self._look_s
        if self._has_moved(now) or late:
            self._moved = max(self._moved, now if late else 0.0)
            if self._reported:
                self._reported = False
                self._on_move()
        elif not self._reported and now - self._moved >= self._timeout_s:
            self._reported = True
            self._on_stall(self._describe(now))

    def close(self) -> None:
        """Stop watching: the job ends, or is being stopped."""
        self.due = None

    def _has_moved(self, now: float) -> bool:
        """Whether anything has happened since the last check."""
        last = self._last_output()
        if last > self._moved:
            self._moved = last
            return True
        if self._gpus is None or now - self._moved < self._look_s:
            return False
        self._uses = self._gpus.read(now)
        if not any(use.works for use in self._uses):
            return False
        self._moved = now
        return True

    def _describe(self, now: float) -> str:
        from launcher.output.progress import duration

        return f"no output for {duration(now - self._moved)}{describe_gpus(self._uses)}"


def describe_gpus(uses: Sequence[GpuUse]) -> str:
    """Return what the GPUs did meanwhile, as the end of a sentence; empty if unknown."""
    if not uses:
        return ""
    spinning = sum(use.spins for use in uses)
    if spinning:
        return (
            f", and the GPUs only wait ({spinning} of {len(uses)} in a kernel that spins, as collectives do)"
        )
    if any(use.busy_percent is None for use in uses):
        return " (whether the GPUs work is not known)"
    return ", and no GPU works"
