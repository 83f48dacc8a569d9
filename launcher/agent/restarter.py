"""What follows an attempt of this node: its outcome, the verdict, a restart, and the summary of attempts."""

from __future__ import annotations

import os
import time

from launcher.agent.coordination import Outcome
from launcher.core.errors import EXIT_BUG, LauncherError
from launcher.core.frozen import replace
from launcher.core.signal import signal
from launcher.machine.gpus import count_gpus
from launcher.output.folder import STARTS_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.agent.agent import Agent
    from launcher.agent.life import Life
    from launcher.failure.model import Verdict
    from launcher.process.spawn import Child
    from launcher.recovery.gpus import GpuGate
    from launcher.recovery.policy import Decision, FailedAttempt
    from launcher.recovery.progress import ProgressGate
    from launcher.recovery.recovery import Recovery

TORCHRUN = "torchrun"


def describe(error: Exception) -> str:
    """Return an error as one line without secrets."""
    from launcher.core.redact import printable, redact

    text = error.summary if isinstance(error, LauncherError) else str(error)
    return printable(redact(text or type(error).__name__))


class Restarter:
    """Finds and reports how attempts end; on one node it also decides whether the processes start again.

    Attributes:
        progress: Watches for progress; None if the user named no file and no pattern, or nothing asks for it.
        starts_at: When the next attempt starts, monotonic seconds; None if none is decided.
        status: Status of the job; None before its end.
        cause: Code of what ended the last attempt that failed; None if unknown.
        error: The error of ours that ended the job; empty for none.
    """

    def __init__(self, agent: Agent) -> None:
        self.progress: ProgressGate | None = None
        self.starts_at: float | None = None
        self.status: int | None = None
        self.cause: str | None = None
        self.error = ""
        self._agent = agent
        self._outcome: Outcome | None = None
        self._has_reported = False
        self._verdict: Verdict | None = None
        self._recovery: Recovery | None = None
        self._decision: Decision | None = None
        self._life: Life | None = None
        self._gpus: GpuGate | None = None
        self._starts: str | None = None
        self._failure_file: str | None = None
        rule = agent.watch.restarts
        if (rule.most or agent.watch.timings) and (rule.progress_file or rule.progress_pattern):
            self.progress = self._watch_progress()

    def _watch_progress(self) -> ProgressGate:
        from launcher.recovery.progress import ProgressGate

        agent, search, rule = self._agent, None, self._agent.watch.restarts
        if rule.progress_pattern:
            from launcher.recovery.search import Search

            search = Search(rule.progress_pattern, agent.group.helpers, agent.loop, agent.say)
        return ProgressGate(rule, search, agent.say)

    def begin(self) -> None:
        """Forget the attempt before."""
        self._outcome, self._decision, self._has_reported = None, None, False
        self.starts_at = None
        if self._life is not None:
            self._life.note_ready()
        if self.progress is not None:
            self.progress.begin()

    def note_start(self) -> None:
        """Note that the processes have been started; with GPUs read their use before the first attempt."""
        agent = self._agent
        if not agent.watch.restarts.most:
            return
        if agent.coordination.decides_alone:
            self._begin_life()  # now, while the processes begin: a restart need not load it
        if self._gpus is not None:
            return
        from launcher.machine.host import Host

        if count_gpus(Host()):
            from launcher.recovery.gpus import GpuGate

            self._gpus = GpuGate(agent.group.helpers, agent.loop, agent.say)
            self._gpus.note_start()

    def wait_for_gpus(self, then: Callable[[], None]) -> None:
        """Call ``then`` once the GPU memory of the attempt that has ended is free: at once without GPUs."""
        if self._gpus is None:
            then()
        else:
            self._gpus.wait(self._agent.group.find_survivors(), then)

    def end_attempt(self) -> None:
        """Find whether the attempt has made progress: its output has ended."""
        if self.progress is not None:
            self.progress.finish()

    def count_starts(self, child: Child) -> dict[str, str]:
        """Return the variable by which torchrun's workers are counted; none for other processes."""
        agent = self._agent
        if child.called == TORCHRUN:
            self._starts = agent.folder.make_file(agent.attempt, child.folder, "starts")
        return {} if child.called != TORCHRUN or self._starts is None else {STARTS_FILE: self._starts}

    @property
    def restarts_of_torchrun(self) -> int:
        """How often torchrun has restarted its processes on this node; it alone restarts them."""
        try:
            return max(0, os.stat(self._starts).st_size - 1) if self._starts else 0
        except OSError:
            return 0

    @property
    def recovery(self) -> Recovery:
        """Restart decisions and record of this job; loaded after the first failure."""
        if self._recovery is None:
            from launcher.recovery.recovery import Recovery

            self._recovery = Recovery(self._agent.watch.restarts, self._agent.say, self._agent.run_id)
        return self._recovery

    # --- the end of an attempt

    @property
    def has_failed(self) -> bool:
        """Whether a process of this node failed, or we ended the job as a failure."""
        agent = self._agent
        return agent.first is not None or agent.reason is not None or agent.observers.is_preempted

    def find_outcome(self) -> Outcome:
        """Return how the processes of this node ended; call it when all have ended."""
        if self._outcome is None:
            self._outcome = self._find_outcome()
        return self._outcome

    def _find_outcome(self) -> Outcome:
        """Return the outcome; only a failure loads the code that tells failures apart."""
        agent = self._agent
        if not self.has_failed and not agent.group.find_survivors():
            return Outcome(0)
        found: list[Outcome] = []

        def find() -> None:
            from launcher.agent.report import find_outcome

            found.append(find_outcome(agent))

        agent.loop.guard(find)
        return found[0] if found else Outcome(0 if agent.first is None else agent.first.status)

    def report(self, outcome: Outcome) -> int:
        """Report once how an attempt ended and what follows from it, and return the status."""
        if not self._has_reported:
            self._has_reported = True
            if outcome.line:
                self._agent.say(outcome.line, "survivors")
            if outcome.verdict is not None:
                self._agent.coordination.publish(outcome.verdict, shown=outcome.shown)
            if self._decision is not None:
                self._agent.say(
                    self.recovery.describe(), "restart" if self._decision.restarts else "no-restart"
                )
        return outcome.status

    def publish(self, verdict: Verdict, *, shown: bool) -> None:
        """Show the verdict, and write the failure record."""
        from launcher.agent.report import publish

        verdict = replace(verdict, evidence=self._agent.evidence.groups or verdict.evidence)
        self._verdict = verdict
        self.cause = verdict.causes[0].code if verdict.causes else None

        def write() -> None:
            known = self._failure_file
            self._failure_file = publish(self._agent, verdict, shown=shown, known=known) or known

        self._agent.loop.guard(write)

    def exit_status(self, status: int, verdict: Verdict | None = None) -> int:
        """Return the exit code for the job's status: ``--stopped-status``, ``--fatal-status``, or the same.

        ``verdict``: why the job failed, if it is not published yet.
        """
        watch, verdict = self._agent.watch, verdict or (self._verdict if status else None)
        told = self._agent.forwarder.told if verdict is None else verdict.told
        if told is not None and watch.stopped_status is not None:
            return watch.stopped_status
        if verdict is not None and verdict.retryable is False and watch.fatal_status is not None:
            return watch.fatal_status
        return status

    def record_early(self) -> None:
        """Write the failure record of an attempt whose last processes are about to be killed."""
        from launcher.agent.report import foresee, record

        verdict = foresee(self._agent)
        if verdict is not None:
            self._failure_file = record(self._agent, verdict)[0] or self._failure_file

    def withdraw(self) -> None:
        """Remove the failure record of an attempt that has failed: the job has succeeded after it."""
        if self._failure_file is None:
            return
        from launcher.failure.record import remove_verdict

        complaint = remove_verdict(self._failure_file)
        if complaint is not None:
            self._agent.say(
                f"the failure record of an earlier attempt stays: {complaint}", "failure-record-stays"
            )

    # --- restarts

    @property
    def is_told(self) -> bool:
        """Whether the job was told to end, so that no attempt may follow."""
        forwarder, observers = self._agent.forwarder, self._agent.observers
        return forwarder.told is not None or forwarder.was_interrupted or observers.is_taken_back

    def _begin_life(self) -> Life:
        """Return the life of the job, which begins with its first attempt."""
        if self._life is None:
            from launcher.agent.life import Life

            agent = self._agent
            rule, grace_s = agent.watch.restarts, agent.watch.grace_s
            self._life = Life(rule, grace_s, agent.run_id, agent.say, agent.started_mono_ns / 1e9)
        return self._life

    def _conclude(self, outcome: Outcome) -> None:
        """Have the life of the job go on after an attempt."""
        agent, life = self._agent, self._begin_life()
        if agent.observers.is_taken_back:
            life.take_back()
        elif self.is_told:
            life.receive(agent.forwarder.told or signal.SIGINT)
        verdict = outcome.verdict
        ended_ns = time.monotonic_ns()
        if verdict is not None:
            ended_ns = agent.started_mono_ns + verdict.ended_ns - agent.started_ns
        self._decision = life.end_attempt(
            outcome.status, verdict, ended_ns, self._progressed, is_held=bool(agent.group.find_survivors())
        )
        if self._decision is not None:
            self.recovery.note(self.describe(outcome), self._decision)

    def describe_wait(self, number: int, starts_at: float | None) -> str:
        """Return that this node waits for a restart, for its status.

        Args:
            number: Number of the attempt that follows.
            starts_at: When it starts, monotonic seconds; None if unknown.
        """
        left_s = 0.0 if starts_at is None else starts_at - time.monotonic()
        restart = f"for restart {number}"
        return f"waits {left_s:.1f} s {restart}" if left_s > 0 else f"waits {restart}"

    def give_up(self, why: str) -> None:
        """Report that the attempt that was to follow does not take place."""
        self.starts_at = None
        if self._life is not None:
            self._life.give_up(why)
        self.recovery.give_up(why)
        self._agent.say(self.recovery.describe(), "no-restart")

    def note_error(self, error: Exception) -> None:
        """Tell what an error has ended: not only the attempt that it kept from starting."""
        self.status = error.exit_status if isinstance(error, LauncherError) else EXIT_BUG
        self.error, recovery = describe(error), self._recovery
        if isinstance(error, LauncherError) and error.problems:
            self.cause = error.problems[0].code
        if recovery is None or recovery.decision is None:
            return
        if recovery.decision.restarts:
            self.give_up(
                f"attempt {recovery.history.failed[-1].number + 1} could not start: {describe(error)}"
            )
        self.summarize(self.status)

    def restart_alone(self) -> bool:
        """Whether the processes of this node start again by themselves; returns when it is time."""
        agent = self._agent
        if not agent.watch.restarts.most or not self.has_failed:
            return False
        outcome = self.find_outcome()
        has_ended_as_told = self.is_told and agent.told_before is not None
        if outcome.status and not has_ended_as_told:
            agent.loop.guard(lambda: self._conclude(outcome))
        life, decision = self._life, self._decision
        if life is None or decision is None or not decision.restarts:
            return False  # the end of the job reports it
        self.report(outcome)
        self.starts_at = life.starts_at
        self.wait_for_gpus(lambda: self._check_health(life.note_ready))
        while life.is_waiting:
            agent.loop.turn_until(lambda: self.is_told or not life.is_waiting, life.wait_s())
            if self.is_told:
                life.receive(agent.forwarder.told or signal.SIGINT)
            life.look()
        if life.refusal:
            self.give_up(life.refusal)
            return False
        if agent.renew is not None:
            from contextlib import suppress

            with suppress(LauncherError):  # what was planned before still holds: its port, too
                agent.renew()
        agent.begin_again(life.attempt)
        return True

    def _check_health(self, take: Callable[[str], None]) -> None:
        """Run the health command, if there is one, and pass on what it finds."""
        argv = self._agent.watch.restarts.health_argv
        if not argv:
            take("")
            return
        from launcher.recovery.health import ask_health

        ask_health(argv, self._agent.group.helpers, take)

    @property
    def _progressed(self) -> bool | None:
        """Whether this attempt has made progress; None if that is not watched."""
        return None if self.progress is None else self.progress.has_progressed()

    def describe(self, outcome: Outcome) -> FailedAttempt:
        """Return this node's failed attempt for the policy and the record."""
        from launcher.recovery.nodes import read_machine
        from launcher.recovery.policy import describe_attempt

        agent, own = self._agent, self._agent.place.node_rank or 0
        return describe_attempt(
            outcome.verdict, agent.attempt, outcome.status, agent.started_ns, time.time_ns(),
            self._progressed, lambda node: read_machine(agent.environ) if node in (None, own) else "",
        )  # fmt: skip

    def _note_gpu_faults(self) -> Recovery | None:
        """Note this node as bad for a fault of its GPUs, unless a failed attempt says so."""
        agent, faults = self._agent, self._agent.observers.find_gpu_faults()
        if not faults:
            return None
        from launcher.machine.host import Host
        from launcher.recovery.nodes import GPU_FAULT, read_machine

        host, node = Host().hostname(), agent.place.node_rank or 0
        if not any((one.cause, one.host) == (GPU_FAULT, host) for one in self.recovery.history.failed):
            self.recovery.note_node(GPU_FAULT, faults[0], node, host, read_machine(agent.environ))
        return self.recovery

    def summarize(self, status: int) -> None:
        """Print torchrun's restarts, the summary of all attempts if there were several, and the bad nodes."""
        agent, recovery, count = self._agent, self._recovery, self.restarts_of_torchrun
        self.status = status
        if count:
            instead = "with --restarts N the launcher restarts only what a retry can fix, and names bad nodes"
            agent.say(
                f"torchrun restarted its processes {count} time{'s' if count > 1 else ''}; {instead}",
                "torchrun-restarts",
            )
        recovery = self._note_gpu_faults() or recovery
        if recovery is None:
            return
        began_ns, now_ns = int(agent.began_s * 1e9), time.monotonic_ns()
        is_alone = not agent.coordination.has_others
        said = recovery.history.summarize(
            agent.attempt + 1, began_ns, agent.started_mono_ns, now_ns, status, is_alone=is_alone
        )
        if said:
            bad = [node.own_name for node in recovery.history.find_bad(is_alone=is_alone)]
            agent.say(said, "attempts", bad_nodes=bad)
