"""The life of a job that this launcher decides alone: calls the controller directly.

It is loaded only for a job that may restart, when its first processes have been started.
"""

from __future__ import annotations

import time

from launcher.agent.readiness import Readiness
from launcher.core.errors import EXIT_NOT_READY
from launcher.core.signal import signal
from launcher.failure.arbiter import PREEMPTED, RANK, Event
from launcher.job import attempt, controller
from launcher.job.commands import Print
from launcher.job.events import Exited, Failed, Ready, Received, Tick
from launcher.job.state import Job, Phase
from launcher.job.state_machine import StateMachine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.agent.agent import AgentParts
    from launcher.agent.runtime import Outcome, Runtime
    from launcher.job.commands import EndJob, JobCommand
    from launcher.job.state import State
    from launcher.recovery.policy import Decision

LONGEST_S = 3600.0
"""Seconds between two looks if nothing is due."""


class Life:
    """A job of one node, from the start of its first processes on."""

    def __init__(self, runtime: Runtime, parts: AgentParts) -> None:
        self._runtime, self._outcomes, self._observers = runtime, parts.outcomes, parts.observers
        self._decision: Decision | None = None
        rule, group, started_s = runtime.watch.restarts, runtime.group, runtime.started_mono_ns / 1e9
        job = Job(1, grace_s=runtime.watch.grace_s, restarts=rule, seed=runtime.run_id)
        begun = controller.begin(job, runtime.run_id, started_s)
        # A lone node is not examined before its first attempt
        started, _ = controller.step(begun, Ready(0, 0), started_s)
        self._job = StateMachine(controller.step, started, self._do)
        self._take = self._job.feed
        self._readiness = Readiness(
            runtime.loop, group, rule.health_argv, self._outcomes.wait_for_gpus, self._take, 0
        )

    def _do(self, command: JobCommand) -> None:
        """Do what the controller decides. The processes have ended, so that there is nothing to stop."""
        if isinstance(command, Print):
            self._runtime.say(command.text, command.event)

    @property
    def _state(self) -> State:
        return self._job.state

    @property
    def over(self) -> EndJob | None:
        """How the job has ended; None before that."""
        return self._state.over

    @property
    def _is_told(self) -> bool:
        """Whether the job was told to end, so that no attempt may follow."""
        forwarder = self._runtime.forwarder
        return forwarder.told is not None or forwarder.was_interrupted or self._observers.preemption.is_due

    def restarts(self) -> bool:
        """Whether another attempt follows the one that has failed; returns when it is time."""
        runtime, outcomes, outcome = self._runtime, self._outcomes, self._outcomes.find()
        has_ended_as_told = self._is_told and runtime.told_before is not None
        if outcome.status and not has_ended_as_told:
            runtime.loop.guard(lambda: self._conclude(outcome))
        pause = self._state.pause
        if pause is None or self._decision is None:
            return False  # the end of the job reports it
        outcomes.report()
        self.say_decision()
        outcomes.starts_at = pause.starts_at
        self._readiness.check(pause.again.attempt)
        while self._state.phase is Phase.BETWEEN:
            due = self._state.due
            wait_s = LONGEST_S if due is None else max(0.0, due - time.monotonic())
            runtime.loop.turn_until(lambda: self._is_told or self._state.phase is not Phase.BETWEEN, wait_s)
            self._pass_on()
            self._take(Tick())
        over = self.over
        if over is not None and over.decision is not None:
            outcomes.give_up(over.decision.why)
            return False
        runtime.attempt = self._state.attempt_number
        return True

    def _pass_on(self) -> None:
        """Pass on that the job has been told to end."""
        if self._observers.preemption.is_due:
            now_ns, what = time.monotonic_ns(), attempt.TAKEN_BACK
            event = Event(0, PREEMPTED, now_ns, EXIT_NOT_READY, asked=True, what=what)
            self._take(Failed(0, event, self._state.attempt_number))
        elif self._is_told:
            self._take(Received(0, self._runtime.forwarder.told or signal.SIGINT))

    def _conclude(self, outcome: Outcome) -> None:
        """Let the controller decide what follows from an attempt that has failed."""
        runtime, observers, outcomes = self._runtime, self._observers, self._outcomes
        number, status, verdict = self._state.attempt_number, outcome.status, outcome.verdict
        self._pass_on()
        if verdict is not None:
            ended_ns = runtime.started_mono_ns + verdict.ended_ns - runtime.started_ns
            facts = {"pid": verdict.first.pid}
            self._take(
                Failed(0, Event(0, RANK, ended_ns, status, what=verdict.headline, facts=facts), number)
            )
        is_held = bool(runtime.group.find_survivors())
        self._take(Exited(0, status, number, verdict, observers.progressed, is_held))
        pause, over = self._state.pause, self.over
        self._decision = (
            pause.again.decision if pause is not None else None if over is None else over.decision
        )
        if self._decision is not None:
            outcomes.history.note(outcomes.describe(outcome), self._decision)

    def say_decision(self) -> None:
        """Print once what follows from an attempt that has failed."""
        decision, self._decision = self._decision, None
        if decision is not None:
            self._runtime.say(decision.describe(), "restart" if decision.restarts else "no-restart")
