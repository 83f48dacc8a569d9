"""How the attempts of this node end: the outcome, the verdict and its record, and the summary of all."""

from __future__ import annotations

import time

from launcher.agent.runtime import Outcome
from launcher.core.errors import EXIT_BUG, EXIT_NOT_READY, LauncherError
from launcher.core.frozen import replace
from launcher.machine.gpus import count_gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.agent.collector import Collector
    from launcher.agent.coordination import Coordination
    from launcher.agent.observers import Observers
    from launcher.agent.runtime import Runtime
    from launcher.failure.model import Verdict
    from launcher.recovery.gpus import GpuGate
    from launcher.recovery.history import History
    from launcher.recovery.policy import FailedAttempt


def describe(error: Exception) -> str:
    """Return an error as one line without secrets."""
    from launcher.core.redact import printable, redact

    text = error.summary if isinstance(error, LauncherError) else str(error)
    return printable(redact(text or type(error).__name__))


class Outcomes:
    """Finds and reports how the attempts of this node end.

    Attributes:
        starts_at: When the next attempt starts, monotonic seconds; None if none is decided.
        status: Status of the job; None before its end.
        cause: Code of what ended the last attempt that failed; None if unknown.
        error: The error of ours that ended the job; empty for none.
        is_stopped: Whether only a signal has kept another attempt from following.
    """

    def __init__(
        self, runtime: Runtime, coordination: Coordination, observers: Observers, evidence: Collector
    ) -> None:
        self._runtime, self._coordination = runtime, coordination
        self._observers, self._evidence = observers, evidence
        self.starts_at: float | None = None
        self.status: int | None = None
        self.cause: str | None = None
        self.error = ""
        self.is_stopped = False
        self._outcome: Outcome | None = None
        self._has_reported = False
        self._first: object = None
        """What came first in the whole job, as it was reported last."""
        self._verdict: Verdict | None = None
        self._history: History | None = None
        self._gpus: GpuGate | None = None
        self._failure_file: str | None = None

    @property
    def failed(self) -> dict[str, int]:
        """Number of the job's failed attempts by cause, as far as this node knows them."""
        return {} if self._history is None else self._history.causes

    def begin(self) -> None:
        """Forget the attempt before."""
        self._outcome, self._has_reported, self.starts_at = None, False, None

    def note_start(self) -> None:
        """Note that the processes have been started; with GPUs read their use before the first attempt."""
        runtime = self._runtime
        if not runtime.watch.restarts.most or self._gpus is not None:
            return
        from launcher.machine.host import Host

        if count_gpus(Host()):
            from launcher.recovery.gpus import GpuGate

            self._gpus = GpuGate(runtime.group.helpers, runtime.loop, runtime.say)
            self._gpus.note_start()

    def wait_for_gpus(self, then: Callable[[], None]) -> None:
        """Call ``then`` when the last attempt's GPU memory is free; immediately without GPUs."""
        if self._gpus is None:
            then()
        else:
            self._gpus.wait(self._runtime.group.find_survivors(), then)

    @property
    def history(self) -> History:
        """Restart decisions and record of this job; loaded after the first failure."""
        runtime = self._runtime
        if self._history is None:
            from launcher.recovery.history import History

            self._history = History(runtime.watch.restarts.attempts_file, runtime.say, runtime.run_id)
        return self._history

    # --- the end of an attempt

    @property
    def has_failed(self) -> bool:
        """Whether a process of this node failed, or we ended the job as a failure."""
        runtime = self._runtime
        return runtime.first is not None or runtime.reason is not None or self._observers.is_preempted

    def find(self) -> Outcome:
        """Return how the processes of this node ended; call it when all have ended."""
        if self._outcome is None:
            self._outcome = self._find()
        return self._outcome

    def _find(self) -> Outcome:
        """Return the outcome; only a failure loads the code that tells failures apart."""
        runtime = self._runtime
        if not self.has_failed and not runtime.group.find_survivors():
            return Outcome(0)

        def find() -> Outcome:
            from launcher.agent.report import find_outcome

            return find_outcome(runtime, self._observers)

        return runtime.loop.guarded(find, Outcome(0 if runtime.first is None else runtime.first.status))

    def report(self) -> int:
        """Report once how an attempt ended, and return the status."""
        outcome = self.find()
        if not self._has_reported:
            self._has_reported = True
            if outcome.verdict is not None and not self._coordination.takes_verdict(outcome.verdict):
                self.publish(outcome.verdict, shown=outcome.shown)
        return outcome.status

    def report_job(self, first: object, find: Callable[[], Verdict | None], *, speaks: bool = True) -> None:
        """Report once how an attempt of a job of several nodes ended, with the same words on every node.

        Args:
            first: What came first in the job; None if nothing has failed.
            find: Returns the verdict on the whole job; None if there is none.
            speaks: Whether this launcher shows it.
        """
        if first is not None and first == self._first:
            return
        self._first = first

        def report() -> None:
            verdict = find()
            if verdict is not None:
                self.publish(verdict, shown=speaks, speaks=speaks)

        self._runtime.loop.guard(report)

    def publish(self, verdict: Verdict, *, shown: bool, speaks: bool = True) -> None:
        """Show the verdict, and write the failure record; name its path if this launcher ``speaks``."""
        from launcher.agent.report import publish

        verdict = replace(verdict, evidence=self._evidence.groups or verdict.evidence)
        self._verdict = verdict
        self.cause = verdict.causes[0].code if verdict.causes else None

        def write() -> None:
            known = self._failure_file
            self._failure_file = (
                publish(self._runtime, self._observers, verdict, shown=shown, speaks=speaks, known=known)
                or known
            )

        self._runtime.loop.guard(write)

    def exit_status(self, status: int, verdict: Verdict | None = None) -> int:
        """Return the exit code for the job's status: ``--stopped-status``, ``--fatal-status``, or the same.

        ``verdict``: why the job failed, if it is not published yet.
        """
        watch, verdict = self._runtime.watch, verdict or (self._verdict if status else None)
        told = self._runtime.forwarder.told if verdict is None else verdict.told
        if (told is not None or self.is_stopped) and watch.stopped_status is not None:
            return watch.stopped_status
        is_over = status != EXIT_NOT_READY and not self.is_stopped
        if is_over and verdict is not None and verdict.retryable is False and watch.fatal_status is not None:
            return watch.fatal_status
        return status

    def record_early(self) -> None:
        """Write the failure record of an attempt whose last processes are about to be killed."""
        from launcher.agent.report import foresee, record

        verdict = foresee(self._runtime, self._observers)
        if verdict is not None:
            self._failure_file = record(self._runtime, self._observers, verdict)[0] or self._failure_file

    def withdraw(self) -> None:
        """Remove the failure record of an attempt that has failed: the job has succeeded after it."""
        if self._failure_file is None:
            return
        from launcher.failure.record import remove_verdict

        complaint = remove_verdict(self._failure_file)
        if complaint is not None:
            self._runtime.say(
                f"the failure record of an earlier attempt stays: {complaint}", "failure-record-stays"
            )

    # --- restarts

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
        self._runtime.say(self.history.give_up(why), "no-restart")

    def note_error(self, error: Exception) -> None:
        """Tell what an error has ended: not only the attempt that it kept from starting."""
        self.status = error.exit_status if isinstance(error, LauncherError) else EXIT_BUG
        self.error, history = describe(error), self._history
        if isinstance(error, LauncherError) and error.problems:
            self.cause = error.problems[0].code
        if history is None or history.decision is None:
            return
        if history.decision.restarts:
            self.give_up(f"attempt {history.failed[-1].number + 1} could not start: {describe(error)}")
        self.summarize(self.status)

    def describe(self, outcome: Outcome) -> FailedAttempt:
        """Return this node's failed attempt for the policy and the record."""
        from launcher.recovery.bad_nodes import read_machine
        from launcher.recovery.policy import describe_attempt

        runtime, own = self._runtime, self._runtime.place.node_rank or 0

        def name_machine(node: int | None) -> str:
            return read_machine(runtime.environ) if node in (None, own) else ""

        return describe_attempt(
            outcome.verdict, runtime.attempt, outcome.status, runtime.started_ns, time.time_ns(),
            self._observers.progressed, name_machine,
        )  # fmt: skip

    def _note_gpu_faults(self) -> History | None:
        """Mark this node bad for a GPU fault, unless a failed attempt already did."""
        runtime, gpus = self._runtime, self._observers.gpus
        faults = [] if gpus is None else gpus.find_faults()
        if not faults:
            return None
        from launcher.machine.host import Host
        from launcher.recovery.bad_nodes import GPU_FAULT, read_machine

        host, node = Host().hostname(), runtime.place.node_rank or 0
        if not any((one.cause, one.host) == (GPU_FAULT, host) for one in self.history.failed):
            self.history.note_node(GPU_FAULT, faults[0], node, host, read_machine(runtime.environ))
        return self.history

    def summarize(self, status: int) -> None:
        """Print torchrun's restarts, the summary of all attempts if there were several, and the bad nodes."""
        runtime, history = self._runtime, self._history
        count = runtime.restarts_of_torchrun
        self.status = status
        if count:
            instead = "with --restarts N the launcher restarts only what a retry can fix, and names bad nodes"
            runtime.say(
                f"torchrun restarted its processes {count} time{'s' if count > 1 else ''}; {instead}",
                "torchrun-restarts",
            )
        history = self._note_gpu_faults() or history
        if history is None:
            return
        began_ns, now_ns = int(runtime.began_s * 1e9), time.monotonic_ns()
        is_alone = not self._coordination.has_others
        said = history.summarize(
            runtime.attempt + 1, began_ns, runtime.started_mono_ns, now_ns, status, is_alone=is_alone
        )
        if said:
            bad = [node.own_name for node in history.find_bad(is_alone=is_alone)]
            runtime.say(said, "attempts", bad_nodes=bad)
