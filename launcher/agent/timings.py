"""Where the time of a job goes on this node: the figures that operators call goodput.

The agent notes when something happens; what follows from that is computed when it is asked for. Times are
monotonic seconds.
"""

from __future__ import annotations

import time

from launcher.core import LOADED_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = (
    ("launcher_s", "launcher"),
    ("roll_call_s", "roll call"),
    ("imports_s", "imports"),
    ("start_s", "processes"),
    ("first_line_s", "first line"),
    ("connected_s", "connected"),
    ("progress_s", "first progress"),
)
"""Names of the parts of a start, in the record and on the screen; the last three count from the processes."""


class AttemptMoments:
    """The moments of one attempt; None for what has not happened, or is not known.

    Attributes:
        began: When its preparation began.
        imported: When modules had been imported for all processes (``--preload``).
        started: When the last process had been started.
        wrote: When the first process wrote something.
        connected: When the processes were seen connected.
        progressed: When the first progress was seen, in the output or in a file.
        saved: When the last progress was made, as far as a file shows it.
        ended: When the last process had ended.
        has_failed: Whether it failed.
    """

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.imported: float | None = None
        self.started: float | None = None
        self.wrote: float | None = None
        self.connected: float | None = None
        self.progressed: float | None = None
        self.saved: float | None = None
        self.ended: float | None = None
        self.has_failed = False

    @property
    def works_from(self) -> float | None:
        """The best known moment at which the work itself began."""
        return self.progressed or self.connected or self.wrote or self.started

    def worked_s(self, now: float) -> float:
        """Return the seconds from the beginning of the work to the end of the attempt."""
        return 0.0 if self.works_from is None else max(0.0, (self.ended or now) - self.works_from)

    def lost_s(self) -> float:
        """Return the seconds of work that a failure has cost: all since the last known progress."""
        if not self.has_failed or self.ended is None or self.works_from is None:
            return 0.0
        return max(0.0, self.ended - max(self.works_from, self.saved or 0.0))


class Timings:
    """The moments of a job on this node.

    Attributes:
        attempts: The attempts, the last one at the end.
    """

    def __init__(self, began: float) -> None:
        """Begin; ``began``: when the agent was made."""
        self.attempts: list[AttemptMoments] = []
        self._began = began
        self._together: float | None = None

    def note_together(self) -> None:
        """Note that the nodes have come together."""
        self._together = time.monotonic()

    def begin(self) -> AttemptMoments:
        """Return a new attempt."""
        self.attempts.append(AttemptMoments())
        return self.attempts[-1]

    # --- the figures

    def list_steps(self) -> dict[str, float]:
        """Return the parts of the last start in seconds, by their names in the record."""
        found: dict[str, float | None] = {}
        last = self.attempts[-1] if self.attempts else None
        found["launcher_s"] = self._began - LOADED_S
        if self._together is not None:
            found["roll_call_s"] = self._together - self._began
        if last is not None:
            before = last.imported or last.began
            imports = [one.imported - one.began for one in self.attempts if one.imported is not None]
            found["imports_s"] = sum(imports) if imports else None
            found["start_s"] = None if last.started is None else last.started - before
            seen = (last.wrote, last.connected, last.progressed)
            for (name, _), moment in zip(STEPS[-len(seen) :], seen, strict=True):
                found[name] = None if moment is None else moment - before
        return {name: round(max(0.0, value), 3) for name, value in found.items() if value is not None}

    def to_record(self) -> dict[str, object]:
        """Return all figures for a record, in seconds."""
        now = time.monotonic()
        whole_s = now - LOADED_S
        lost_s = sum(one.lost_s() for one in self.attempts)
        worked_s = sum(one.worked_s(now) for one in self.attempts) - lost_s
        return {
            **self.list_steps(),
            "attempts": len(self.attempts),
            "whole_s": round(whole_s, 3),
            "work_s": round(worked_s, 3),
            "lost_s": round(lost_s, 3),
            "goodput": round(worked_s / whole_s, 4) if whole_s > 0 else 1.0,
        }

    def describe(self) -> Iterator[str]:
        """Yield the lines for the screen."""
        steps, told = self.list_steps(), self.to_record()
        shown = [f"{label} {steps[name]:.3g} s" for name, label in STEPS if name in steps]
        yield f"timings: {', '.join(shown)}"
        lost = f", {told['lost_s']:.1f} s lost to failures" if told["lost_s"] else ""
        count = f"{told['attempts']} attempt{'s' if told['attempts'] != 1 else ''}"
        yield (
            f"timings: {count}, {told['whole_s']:.1f} s in total: {told['work_s']:.1f} s of work "
            f"({100 * float(str(told['goodput'])):.1f} %){lost}"
        )
