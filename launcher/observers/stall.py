"""Stall detector: notices that a job hangs.

A stall is a time in which no process writes and no GPU works. Without ``--stall-timeout`` CPU time and
network traffic count, too (`launcher.observers.movement`). Each is reported once; another one only after
something has happened again. What follows is up to `launcher.hang.report`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.observers.movement import Movement
    from launcher.observers.phases import Phases
    from launcher.output.progress import GpuGauge, GpuUse

LOOKS = 10
"""Number of checks during the time that makes a stall ..."""
LOOK_LIMIT_S = 5.0
"""... but at least one in this many seconds: NVML reports only the last second."""
IDLE_LOOKS = 40
"""Number of checks if CPU time and network count too: fewer, for the watch of all jobs must cost nothing."""
LONGEST = 6
"""Maximum time until a report if CPU time and network count too, in multiples of the usual one."""
LATE_S = 10.0
"""If `fire` is later than this, the launcher itself was paused: a paused container is not a stall."""
NAMED_MAX = 8


class StallDetector:
    """Watches one attempt for stalls; made unless ``--stall-timeout`` is 0.

    If CPU time and network count too, a stall takes at least twice the longest quiet time so far, up to
    `LONGEST`: a server that is idle now and then is no hang, nor is an evaluation.

    Attributes:
        due: When to call `fire` (monotonic seconds); None for never.
    """

    def __init__(
        self,
        timeout_s: float,
        last_output: Callable[[], float],
        on_stall: Callable[[str], None],
        on_move: Callable[[], object],
        *,
        started: float,
        gpus: GpuGauge | None = None,
        movement: Movement | None = None,
        phases: Phases | None = None,
        sees_output: bool = True,
    ) -> None:
        """Start to watch.

        Args:
            timeout_s: Seconds of silence that make a stall.
            last_output: Returns when a process last wrote output (monotonic seconds).
            on_stall: Called once when a stall begins, with what was seen: ``no output for 10 min``.
            on_move: Called when something has happened again after that.
            started: Monotonic time of the start.
            gpus: Reads the use of the GPUs; None to consider output only.
            movement: Reads the use of CPU time and network; None if they do not count.
            phases: Tells the phase, where phases have other limits.
            sees_output: Whether all output is known.
        """
        self._timeout_s, self._last_output = timeout_s, last_output
        self._on_stall, self._on_move, self._gpus = on_stall, on_move, gpus
        self._movement, self._phases, self._sees_output = movement, phases, sees_output
        self._longest_quiet_s = 0.0
        self._look_s = timeout_s / IDLE_LOOKS if movement else min(timeout_s / LOOKS, LOOK_LIMIT_S)
        self._longest_s = LONGEST * timeout_s
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
        before = self._moved
        if self._phases is not None:
            self._phases.look(now)
        if self._has_moved(now) or late:
            self._moved = max(self._moved, now if late else 0.0)
            if not late:
                self._longest_quiet_s = max(self._longest_quiet_s, self._moved - before)
            if self._reported:
                self._reported = False
                self._on_move()
        elif not self._reported:
            limit_s, why = self._find_limit()
            if now - self._moved >= limit_s:
                self._reported = True
                self._on_stall(self._describe(now) + why)

    def _find_limit(self) -> tuple[float, str]:
        """Return the seconds that make a stall now, and why if they are not the usual ones."""
        usual_s, learnt_s = self._timeout_s, min(2 * self._longest_quiet_s, self._longest_s)
        if self._phases is not None:
            return self._phases.find_limit(usual_s, self._moved)
        if self._movement is None or learnt_s <= usual_s:
            return usual_s, ""
        from launcher.output.progress import duration

        return learnt_s, f" (the longest quiet time so far was {duration(self._longest_quiet_s)})"

    def close(self) -> None:
        """Stop watching: the job ends, or is being stopped."""
        self.due = None

    def _has_moved(self, now: float) -> bool:
        """Whether anything has happened since the last check."""
        last, movement = self._last_output(), self._movement
        if last > self._moved:
            self._moved = last
        elif now - self._moved < self._look_s:
            return False
        elif self._gpus_work(now):
            self._moved = now
        elif movement is not None and movement.has_moved(now, spins=any(use.spins for use in self._uses)):
            self._moved = now
            return True
        else:
            return False
        if movement is not None:
            movement.forget()
        return True

    def _gpus_work(self, now: float) -> bool:
        self._uses = () if self._gpus is None else self._gpus.read(now)
        return any(use.works for use in self._uses)

    def _describe(self, now: float) -> str:
        """Return what was seen, e.g. ``no output for 10 min``."""
        from launcher.output.progress import duration

        movement = self._movement
        missing = ["output"] if self._sees_output else []
        if movement is not None:
            missing += [] if movement.busy or any(use.spins for use in self._uses) else ["CPU time"]
            missing += ["network traffic"] if movement.sees_network else []
        words = " or ".join(filter(None, (", ".join(missing[:-1]), *missing[-1:])))
        busy = "" if movement is None else describe_busy(movement.busy)
        return f"no {words} for {duration(now - self._moved)}{describe_gpus(self._uses)}{busy}"


def describe_gpus(uses: Sequence[GpuUse]) -> str:
    """Return what the GPUs did in that time, as the end of a sentence; empty if unknown."""
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


def describe_busy(ranks: Sequence[int]) -> str:
    """Return which ranks use CPU time while the others wait, as the end of a sentence; empty if none does."""
    if not ranks:
        return ""
    names = ", ".join(map(str, ranks[:NAMED_MAX])) + (", ..." if len(ranks) > NAMED_MAX else "")
    return f"; only rank{'s' if len(ranks) > 1 else ''} {names} use{'' if len(ranks) > 1 else 's'} CPU time"
