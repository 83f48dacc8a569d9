"""Runs a job that this launcher decides alone: calls the controller directly.

It is loaded only for a job that may restart, when its first processes have been started.
"""

from __future__ import annotations

import time

from launcher.core.errors import EXIT_NOT_READY
from launcher.failure.arbiter import PREEMPTED, RANK, Event
from launcher.job import attempt, controller
from launcher.job.commands import Print
from launcher.job.events import Exited, Failed, Ready, Received, Tick
from launcher.job.state import Job, Phase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.log import Say
    from launcher.core.supervision import Restarts
    from launcher.failure.model import Verdict
    from launcher.job.commands import EndJob
    from launcher.job.events import JobEvent
    from launcher.recovery.policy import Decision

LONGEST_S = 3600.0
"""Seconds between two looks if nothing is due."""


class Life:
    """A job of one node."""

    def __init__(self, rule: Restarts, grace_s: float, run: str, say: Say, started_s: float) -> None:
        """Begin with the first attempt.

        Args:
            rule: What the user allows.
            grace_s: Seconds between SIGTERM and SIGKILL.
            run: Name of this run.
            say: Prints one line.
            started_s: When the processes were started.
        """
        self._say = say
        job = Job(1, grace_s=grace_s, restarts=rule, seed=run)
        self._state = controller.begin(job, run, started_s)
        self._take(Ready(0, 0), started_s)  # a lone node is not examined before its first attempt

    def _take(self, event: JobEvent, now: float | None = None) -> None:
        """Let the controller handle an event. The processes have ended, so that there is nothing to stop."""
        self._state, commands = controller.step(self._state, event, time.monotonic() if now is None else now)
        for command in commands:
            if isinstance(command, Print):
                self._say(command.text, command.event)

    # --- an attempt

    @property
    def attempt(self) -> int:
        """Number of the attempt that runs, or ran last."""
        return 0 if self._state.attempt is None else self._state.attempt.number

    def take_back(self) -> None:
        """Note that the platform takes this node back."""
        event = Event(0, PREEMPTED, time.monotonic_ns(), EXIT_NOT_READY, asked=True, what=attempt.TAKEN_BACK)
        self._take(Failed(0, event, self.attempt))

    def receive(self, number: int) -> None:
        """Note that the launcher was asked to end."""
        self._take(Received(0, number))

    def end_attempt(
        self, status: int, verdict: Verdict | None, ended_ns: int, progressed: bool | None, *, is_held: bool
    ) -> Decision | None:
        """Return what follows from an attempt that has failed.

        Args:
            status: Exit status of its processes.
            verdict: Why it failed; None if no verdict could be made.
            ended_ns: When the first of them failed, monotonic nanoseconds.
            progressed: Whether it made progress; None if that is not watched.
            is_held: Whether a process survives SIGKILL.
        """
        if verdict is not None:
            facts = {"pid": verdict.first.pid}
            event = Event(0, RANK, ended_ns, status, what=verdict.headline, facts=facts)
            self._take(Failed(0, event, self.attempt))
        self._take(Exited(0, status, self.attempt, verdict, progressed, is_held))
        pause, over = self._state.pause, self._state.over
        return pause.again.decision if pause is not None else None if over is None else over.decision

    # --- between two attempts

    @property
    def is_waiting(self) -> bool:
        """Whether another attempt follows, and has not started yet."""
        return self._state.phase is Phase.BETWEEN

    @property
    def starts_at(self) -> float | None:
        """When the next attempt starts at the earliest, monotonic seconds; None if none follows."""
        return None if self._state.pause is None else self._state.pause.starts_at

    @property
    def over(self) -> EndJob | None:
        """How the job has ended."""
        return self._state.over

    @property
    def refusal(self) -> str:
        """Why no attempt follows; empty if one does."""
        over = self._state.over
        return "" if over is None or over.decision is None else over.decision.why

    def wait_s(self) -> float:
        """Return the seconds until `look` is due."""
        due = self._state.due
        return LONGEST_S if due is None else max(0.0, due - time.monotonic())

    def look(self) -> None:
        """Do what is due."""
        self._take(Tick())

    def note_ready(self, unhealthy: str = "") -> None:
        """Note that nothing of the last attempt is left, and what the health command has found."""
        if self.is_waiting and self._state.pause is not None:
            self._take(Ready(0, self._state.pause.again.attempt, unhealthy))
