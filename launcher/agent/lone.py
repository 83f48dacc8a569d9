"""A job on one node: runs its processes, and restarts them if that may help."""

from __future__ import annotations

import time

from launcher.agent.agent import Agent, find_programs, widen_cpus
from launcher.agent.coordination import Coordination
from launcher.core.errors import LauncherError
from launcher.core.signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.agent.agent import AgentParts, Serve
    from launcher.agent.life import Life
    from launcher.agent.observers import Checks
    from launcher.agent.runtime import NodePlace, Outcome, Runtime
    from launcher.core.supervision import Supervision
    from launcher.process.spawn import Child
    from launcher.recovery.policy import Decision


class LoneNode:
    """Decides alone whether another attempt follows.

    Attributes:
        parts: The parts of the agent; set before it runs.
    """

    parts: AgentParts
    _runtime: Runtime

    def __init__(self, renew: Callable[[], Sequence[Child]] | None, paths: Sequence[str]) -> None:
        """Prepare.

        Args:
            renew: Returns the processes of another attempt; None if they are the same.
            paths: Paths of their programs.
        """
        self._renew, self._paths = renew, paths
        self._life: Life | None = None
        self._decision: Decision | None = None

    def coordinate(self) -> Coordination:
        """Return what the agent asks and reports."""
        return Coordination(
            self._attach, self._gather, begin=self._begin, began=self._began, restarts=self._restarts,
            finish=self._finish,
        )  # fmt: skip

    def _attach(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def _gather(self) -> bool:
        """Whether the processes are to be started: there is nothing to wait for."""
        return self._runtime.forwarder.told is None

    def _begin(self) -> None:
        """Prepare for an attempt."""
        self._decision = None
        if self._life is not None:
            self._life.note_ready()

    def _began(self) -> None:
        """Begin the life of the job now, while the processes begin: a restart need not load it."""
        if self._runtime.watch.restarts.most:
            self._runtime.loop.guard(self._begin_life)

    def _begin_life(self) -> None:
        self._life = self._life or self._make_life()

    def _make_life(self) -> Life:
        """Return the life of the job, which begins with its first attempt."""
        from launcher.agent.life import Life

        runtime = self._runtime
        rule, grace_s = runtime.watch.restarts, runtime.watch.grace_s
        return Life(rule, grace_s, runtime.run_id, runtime.say, runtime.started_mono_ns / 1e9)

    @property
    def _is_told(self) -> bool:
        """Whether the job was told to end, so that no attempt may follow."""
        forwarder, preemption = self._runtime.forwarder, self.parts.observers.preemption
        return forwarder.told is not None or forwarder.was_interrupted or preemption.is_due

    def _restarts(self) -> bool:
        """Whether the processes of this node start again; returns when it is time."""
        runtime, outcomes = self._runtime, self.parts.outcomes
        if not runtime.watch.restarts.most or not outcomes.has_failed:
            return False
        outcome = outcomes.find()
        has_ended_as_told = self._is_told and runtime.told_before is not None
        if outcome.status and not has_ended_as_told:
            runtime.loop.guard(lambda: self._conclude(outcome))
        life, decision = self._life, self._decision
        if life is None or decision is None or not decision.restarts:
            return False  # the end of the job reports it
        outcomes.report()
        self._say_decision()
        outcomes.starts_at = life.starts_at
        outcomes.wait_for_gpus(lambda: self._check_health(life.note_ready))
        while life.is_waiting:
            runtime.loop.turn_until(lambda: self._is_told or not life.is_waiting, life.wait_s())
            self._pass_on(life)
            life.look()
        if life.refusal:
            outcomes.give_up(life.refusal)
            return False
        if self._renew is not None:
            from contextlib import suppress

            with suppress(LauncherError):  # what was planned before still holds: its port, too
                self.parts.take(self._renew(), self._paths)
        runtime.attempt = life.attempt
        return True

    def _conclude(self, outcome: Outcome) -> None:
        """Have the life of the job go on after an attempt."""
        runtime, observers, outcomes = self._runtime, self.parts.observers, self.parts.outcomes
        self._life = life = self._life or self._make_life()
        self._pass_on(life)
        verdict = outcome.verdict
        ended_ns = time.monotonic_ns()
        if verdict is not None:
            ended_ns = runtime.started_mono_ns + verdict.ended_ns - runtime.started_ns
        is_held = bool(runtime.group.find_survivors())
        self._decision = life.end_attempt(
            outcome.status, verdict, ended_ns, observers.progressed, is_held=is_held
        )
        if self._decision is not None:
            outcomes.history.note(outcomes.describe(outcome), self._decision)

    def _pass_on(self, life: Life) -> None:
        """Pass on that the job has been told to end."""
        if self.parts.observers.preemption.is_due:
            life.take_back()
        elif self._is_told:
            life.receive(self._runtime.forwarder.told or signal.SIGINT)

    def _say_decision(self) -> None:
        """Print once what follows from an attempt that has failed."""
        decision, self._decision = self._decision, None
        if decision is not None:
            self._runtime.say(decision.describe(), "restart" if decision.restarts else "no-restart")

    def _check_health(self, take: Callable[[str], None]) -> None:
        """Run the health command, if there is one, and pass on what it finds."""
        argv = self._runtime.watch.restarts.health_argv
        if not argv:
            take("")
            return
        from launcher.recovery.health import ask_health

        ask_health(argv, self._runtime.group.helpers, take)

    def _finish(self, report: Callable[[], int]) -> int:
        """Report how the job ended, and why no attempt follows; return its status."""
        status = report()
        self._say_decision()
        over = None if self._life is None else self._life.over
        if over is not None and status:
            self.parts.outcomes.is_stopped = over.is_stopped
            status = over.status
        return status


def run_processes(
    children: Sequence[Child],
    watch: Supervision,
    place: NodePlace,
    environ: Mapping[str, str],
    *,
    widen: bool = False,
    checks: Checks | None = None,
    serve: Serve | None = None,
    renew: Callable[[], Sequence[Child]] | None = None,
) -> int:
    """Run processes on this node only, and return the job's status; see `Agent`.

    Args:
        children: The companions, then the ranks by local rank, in the order in which they start.
        watch: How to watch, stop and report them.
        place: Node rank and world size.
        environ: The launcher's own environment.
        widen: Whether to undo the CPU binding that mpirun gave us.
        checks: Checks this node while the processes run.
        serve: Makes the server that answers questions about the job.
        renew: Returns the processes of another attempt; None if they are the same.

    Raises:
        LauncherError: A process cannot be started (126, 127), or a log file cannot be written (75).
    """
    paths = find_programs(children)
    if widen:
        widen_cpus()
    node = LoneNode(renew, paths)
    agent = Agent(
        watch, place, environ, node.coordinate(), single=len(children) == 1, checks=checks, serve=serve
    )
    node.parts = agent.parts
    agent.take(children, paths)
    return agent.run()
