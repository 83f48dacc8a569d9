"""The observers beside the processes of a node; their periods and costs: docs/internals.md, "Observers".

An observer is loaded only when it begins. It reads what has happened and reports it; what follows from that
is decided by its callbacks here, or by the controller of the job.
"""

from __future__ import annotations

import os
import time

from launcher.machine.gpus import count_gpus
from launcher.machine.host import Host
from launcher.output.folder import NCCL_FILE
from launcher.process.loop import Later

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Protocol

    from launcher.agent.collector import Collector
    from launcher.agent.coordination import Coordination
    from launcher.agent.milestones import Milestones
    from launcher.agent.preempted import PreemptionResponse
    from launcher.agent.runtime import Runtime
    from launcher.failure.counters import Counters
    from launcher.failure.model import Cause
    from launcher.failure.reason import Reason
    from launcher.observers.gpu_errors import GpuErrors
    from launcher.observers.kubeflow import TrainerStatus
    from launcher.observers.meeting import MeetingWatch
    from launcher.observers.nccl_log import NcclLogWatcher
    from launcher.observers.pace import PaceWatch, RankPace
    from launcher.output.progress import Progress
    from launcher.process.helper import Helper
    from launcher.process.loop import Timer
    from launcher.process.spawn import Child
    from launcher.recovery.progress import ProgressGate

    class QuestionServer(Timer, Protocol):
        """Answers questions about the job: `launcher.control.server`."""

        def open(self) -> None:
            """Start to answer questions."""

        def helpers(self) -> tuple[int, ...]:
            """Return the PIDs of the launcher's children that work for the server."""

        def answer(
            self, what: str, more: Mapping[str, object], take: Callable[[dict[str, object]], None]
        ) -> None:
            """Answer a question about this node by calling ``take``, now or later."""

        def close(self) -> None:
            """Stop answering."""

    Checks = Callable[[], Sequence[str]]

HIDDEN = b"Traceback (most|Segmentation fault|Bus error|Aborted|Killed|Illegal instruction".split(b"|")
"""Texts of an output that may end with a failure whose status was lost."""
CHECK_S = 30.0
"""Time limit of the checks in seconds. At the lowest priority, on busy CPUs, 0.1 s of work takes seconds."""
NICE = 19
SERVE_AFTER_S = 0.2
"""Seconds until the server starts: before that a job shows nothing, and its processes need the CPU."""
WATCH_AFTER_S = 0.05
"""Seconds until the connections from before the start are read. No program connects to another one sooner."""
TRAINER = "KUBEFLOW_TRAINER_SERVER_URL"
"""Variable of Kubeflow Trainer: `launcher.observers.kubeflow`."""
PACE_AFTER_S = 10.0
"""Seconds until the ranks' pace is watched: at first they import, and few jobs are asked about so soon."""
STATUS_AFTER_S = 1.0
"""Seconds until a status line appears on a terminal."""
SILENCE_AFTER_S = 59.0
"""Seconds until progress is reported in a log."""


class NetworkChecks:
    """Which network NCCL uses, if that is verified, and whether the processes meet.

    Attributes:
        unmet: Message that the attempt's processes have not met, if it was reported while they ran.
        doubt: Why a job that ended with 0 may have failed: its processes have not met. None for no doubt.
    """

    def __init__(self, runtime: Runtime, end_for: Callable[[Reason], None]) -> None:
        self.unmet: str | None = None
        self.doubt: Cause | None = None
        self._runtime, self._end_for = runtime, end_for
        self._nccl_path: str | None = None
        self._nccl: NcclLogWatcher | None = None
        self._meeting: MeetingWatch | None = None

    def plan(self, child: Child) -> dict[str, str]:
        """Return the variables that make rank 0's NCCL write to our file, if its fabric is verified."""
        runtime = self._runtime
        proof = runtime.watch.proof
        if proof is None or child.rank:
            return {}
        self._nccl_path = runtime.folder.make_file(runtime.attempt, child.folder, "nccl.log")
        if self._nccl_path is None:
            runtime.say(
                "the fabric is not verified: no directory for NCCL's debug output", "fabric-unverified"
            )
            return {}
        return {**dict(proof.settings), NCCL_FILE: self._nccl_path}

    def listen_to_nccl(self) -> None:
        """Read the network that NCCL uses, if it must be verified."""
        runtime = self._runtime
        if runtime.watch.proof is None or self._nccl_path is None:
            return
        from launcher.observers.nccl_log import NcclLogWatcher

        def end(what: str, fix: str) -> None:
            from launcher.failure.arbiter import UNPROVEN
            from launcher.failure.reason import Reason

            runtime.say(
                f"the job ends: NCCL does not use the required fabric: {what}; fix: {fix}", "other-fabric"
            )
            self._end_for(Reason(UNPROVEN, what, fix))

        say, keeps = runtime.output.say, runtime.folder.keeps
        self._nccl = NcclLogWatcher(runtime.watch.proof, self._nccl_path, say, end, keeps=keeps)
        runtime.loop.timers.append(self._nccl)

    def watch_meeting(self, started: float) -> None:
        """Check whether the processes meet."""
        from launcher.observers.meeting import MeetingWatch

        runtime = self._runtime
        contact, processes = runtime.watch.contact, runtime.group.processes
        if contact is not None:
            tell = self._on_meeting
            self._meeting = MeetingWatch(contact, processes, tell, lambda: runtime.is_ending, started)
            runtime.loop.timers.append(self._meeting)

    def _on_meeting(self, text: str, has_met: bool) -> None:
        """Report that the processes have not met in time, or have met after that."""
        self.unmet = None if has_met else text
        if has_met:
            self._runtime.say(text, "met")
        else:
            self._report_unmet(text)

    def _report_unmet(self, what: str, how: str = "", *, with_fix: bool = True) -> None:
        """End the job if its processes must meet; else warn."""
        from launcher.failure.arbiter import UNMET
        from launcher.failure.reason import Reason
        from launcher.failure.symptoms import make_cause

        contact, say = self._runtime.watch.contact, self._runtime.say
        if contact is not None and contact.required:
            reason = Reason(UNMET, what)
            say(f"the job ends (--require-meeting): {what}; fix: {reason.cause.fix}", "never-met")
            self._end_for(reason)
        else:
            fix = f"; fix: {make_cause('unmet', what=what).fix}" if with_fix else ""
            say(f"warning: [never-met] {how}{what}{fix}", "never-met")

    @property
    def connected_s(self) -> float | None:
        """When all processes were seen connected, monotonic seconds; None if they were not yet."""
        return None if self._meeting is None else self._meeting.together_at

    def note_end(self) -> None:
        """Note that a process has exited."""
        if self._meeting is not None:
            self._meeting.note_end()

    def end_attempt(self) -> None:
        """Judge whether the processes of an attempt that has ended have met."""
        if self._nccl is not None:
            self._nccl.close()
        meeting, self._nccl, self._meeting = self._meeting, None, None
        never_met = None if meeting is None else meeting.end()
        unmet = never_met or self.unmet  # what was warned about may be unproven at the end: a doubt remains
        runtime = self._runtime
        contact, is_stopped = runtime.watch.contact, runtime.forwarder.told is not None
        is_whole = runtime.first is None and not (is_stopped or runtime.group.stopper.gave_up)
        if contact is None or unmet is None or not is_whole:
            return
        if never_met is None or not contact.required:
            from launcher.failure.symptoms import make_cause

            self.doubt = make_cause("unmet", what=unmet)
        if never_met is not None:
            self._report_unmet(never_met, "all processes have ended; ", with_fix=self.unmet is None)


class Observers:
    """The observers of a run, for one attempt after the other.

    Attributes:
        runtime: Values and tools of the launcher.
        counters_before: The node's counters at the start of the attempt.
        counters_after: The counters right after the first failure, before the memory in use is freed.
        network: Which network NCCL uses, and whether the processes meet.
        gpus: Errors of the GPUs; None before they are watched, and without GPUs.
        server: Answers questions; None before it exists, and if there is none.
        progress: Watches for progress; None if the user named no file and no pattern, or nothing asks for it.
        hidden: Causes of failures that the statuses of processes do not show.
        milestones: Writes the events of this node; None if nothing takes them.
    """

    def __init__(
        self,
        runtime: Runtime,
        coordination: Coordination,
        evidence: Collector,
        end_for: Callable[[Reason], None],
        checks: Checks | None,
        make_server: Callable[[], QuestionServer] | None,
    ) -> None:
        """Open what takes events, and watch for nothing yet.

        Args:
            runtime: Values and tools of the launcher.
            coordination: The rest of the job.
            evidence: Asks the processes what they do.
            end_for: Ends the job for a reason of the launcher's own.
            checks: Checks this node while the processes run; None for no checks.
            make_server: Makes the server that answers questions about the job; None for no server.
        """
        self.counters_before: Counters | None = None
        self.counters_after: Counters | None = None
        self.network = NetworkChecks(runtime, end_for)
        self.gpus: GpuErrors | None = None
        self.server: QuestionServer | None = None
        self.runtime, self._coordination, self._evidence = runtime, coordination, evidence
        self._end_for, self._checks, self._make_server = end_for, checks, make_server
        self._preemption: PreemptionResponse | None = None
        self._status: Progress | None = None
        self._pace: PaceWatch | None = None
        self._trainer: TrainerStatus | None = None
        self.hidden: list[Cause] = []
        self._checking: Helper | None = None
        self._answering: Timer | None = None
        self.progress = watch_progress(runtime)
        runtime.output.progress = self.progress
        self.milestones: Milestones | None = None
        if runtime.watch.events is not None or (runtime.watch.traces and coordination.speaks):
            runtime.loop.guard(self._open_milestones)

    def _open_milestones(self) -> None:
        from launcher.agent.milestones import Milestones

        self.milestones = Milestones(
            self.runtime, self._coordination, lambda: self.network.connected_s, self.progress
        )

    @property
    def doubts(self) -> list[Cause]:
        """Why a job that ended with 0 may have failed."""
        return [*filter(None, (self.network.doubt,)), *self.hidden]

    @property
    def progressed(self) -> bool | None:
        """Whether this attempt has made progress; None if that is not watched."""
        return None if self.progress is None else self.progress.has_progressed()

    @property
    def preemption(self) -> PreemptionResponse:
        """Preemption of this node, and of others; loaded when it is needed."""
        if self._preemption is None:
            from launcher.agent.preempted import PreemptionResponse

            self._preemption = PreemptionResponse(self.runtime, self._coordination.on_preemption)
        return self._preemption

    @property
    def is_preempted(self) -> bool:
        """Whether the preemption of a node has begun to stop the processes."""
        return self._preemption is not None and self._preemption.has_begun

    # --- one attempt

    def begin(self) -> None:
        """Forget the attempt before."""
        if self.progress is not None:
            self.progress.begin()

    def plan(self, child: Child) -> dict[str, str]:
        """Return the variables that make a process observable."""
        traced = {} if self.milestones is None else self.milestones.plan(child)
        return {**self._evidence.plan(child), **self.network.plan(child), **traced}

    def begin_attempt(self) -> None:
        """Start the observers, now that the processes are starting; all of them could wait until now."""
        loop, started = self.runtime.loop, time.monotonic()
        self.counters_after, self.network.unmet = None, None

        def plan() -> None:
            for after_s, begin in self._plan(started):
                if after_s:
                    loop.timers.append(Later(started + after_s, begin))
                else:
                    loop.guard(begin)

        loop.guard(plan)

    def _plan(self, started: float) -> Iterator[tuple[float, Callable[[], None]]]:
        """Yield the observers of an attempt: seconds after its start, and what begins then."""
        runtime, watch, output = self.runtime, self.runtime.watch, self.runtime.output
        yield 0.0, self.answer
        yield SERVE_AFTER_S, load_messages
        if self.milestones is not None:
            yield 0.0, self.milestones.begin_attempt
        yield 0.0, self._read_counters
        if watch.progress is not False and output.sees_all:
            wait_s = STATUS_AFTER_S if output.screen.console.is_terminal else SILENCE_AFTER_S
            yield wait_s, lambda: self._show_progress(started)
        if watch.restarts.progress_pattern and TRAINER in runtime.environ and not runtime.place.node_rank:
            yield PACE_AFTER_S, self._inform_trainer
        if watch.stragglers:
            yield PACE_AFTER_S, self._watch_pace
        if watch.stall_timeout_s:
            wait_s = min(STATUS_AFTER_S, watch.stall_timeout_s / 10)
            yield wait_s, lambda: self._watch_stalls(started)
        elif watch.idle_timeout_s and not runtime.shares_terminal:  # a user at a terminal sees it
            yield watch.idle_timeout_s / 10, lambda: self._watch_stalls(started)
        yield 0.0, self.network.listen_to_nccl
        if runtime.group.refused is not None:  # nothing runs
            return
        yield 0.0, self.check
        if watch.preemption is not None:
            yield 0.0, self.preemption.watch
        if self.gpus is not None:
            yield 0.0, self.gpus.begin_attempt
        elif self._coordination.speaks and count_gpus(Host()):
            yield SERVE_AFTER_S, self._watch_gpus
        if watch.contact is not None:
            yield WATCH_AFTER_S, lambda: self.network.watch_meeting(started)

    def end_attempt(self) -> None:
        """Close the observers of an attempt whose processes have ended."""
        if self.milestones is not None:  # while the parts still tell what they have seen
            self.runtime.loop.guard(self.milestones.end_attempt)
        self.runtime.loop.guard(self._end_attempt)

    def _end_attempt(self) -> None:
        for one in (self._status, self._pace):
            if one is not None:
                one.close()
        self._status = self._pace = None
        self.network.end_attempt()
        self._evidence.end_attempt()

    def read_paces(self) -> dict[int, RankPace]:
        """Return what each rank of this node does with its time, as far as it is known."""
        return {} if self._pace is None else self._pace.read()

    @property
    def progress_s(self) -> float | None:
        """Seconds since the progress file changed last in this attempt; None if it has not."""
        changed = None if self.progress is None else self.progress.read_last_s()
        return None if changed is None else round(time.monotonic() - changed, 1)

    def note_together(self) -> None:
        """Note that the nodes have come together."""
        self.runtime.timings.note_together()
        if self.milestones is not None:
            self.runtime.loop.guard(self.milestones.note_together)

    def look(self) -> None:
        """Note the moments of this attempt that the parts have seen."""
        moments, progress = self.runtime.timings.attempts[-1], self.progress
        moments.wrote = self.runtime.output.first_s
        moments.connected = self.network.connected_s or moments.connected
        if progress is not None:
            moments.progressed, moments.saved = progress.first_s, progress.read_last_s()

    def note_failure(self) -> None:
        """Read the counters again, because a process has failed."""

        def read() -> None:
            from launcher.failure.counters import read_counters

            self.counters_after = read_counters(Host(), self.counters_before)

        self.runtime.loop.guard(read)

    def end(self) -> None:
        """Finish the checks of this node, and read the evidence and the last output, after all attempts."""
        loop, trainer = self.runtime.loop, self._trainer
        if self._checking is not None:
            loop.guard(self._checking.finish)
        if trainer is not None:
            loop.guard(lambda: trainer.finish(loop.turn_until))
        loop.guard(lambda: read_last_output(self.runtime, self.hidden))

    def read_timings(self) -> Mapping[str, object] | None:
        """Return where the time has gone on this node so far, in seconds; None before the first attempt."""
        timings = self.runtime.timings
        if not timings.attempts:
            return None
        if timings.attempts[-1].ended is None:
            self.look()
        return timings.to_record()

    def close(self, status: int | None, cause: str | None, error: str) -> None:
        """Stop observing and answering.

        Args:
            status: Status of the job; None if it is not known.
            cause: Code of what ended the last attempt that failed; None if unknown.
            error: The error of ours that ended the job; empty for none.
        """
        loop, milestones = self.runtime.loop, self.milestones
        if self._preemption is not None:
            self._preemption.close()
        if self.server is not None:
            loop.guard(self.server.close)
        if milestones is not None:
            figures = self.read_timings() or {}
            loop.guard(lambda: milestones.close(status, cause, error, figures))

    # --- questions

    def helpers(self) -> tuple[int, ...]:
        """Return the PIDs of our children that help the observers and are not processes of the job."""
        return () if self.server is None else self.server.helpers()

    def answer(self) -> None:
        """Answer questions in this attempt, from a moment after its start on."""
        timers = self.runtime.loop.timers
        if self._answering not in timers:
            self._answering = self.server or Later(time.monotonic() + SERVE_AFTER_S, self.serve)
            timers.append(self._answering)

    def serve(self) -> None:
        """Start to answer our user's questions about the processes; costs nothing until one comes."""
        runtime = self.runtime
        if self._make_server is None or runtime.group.refused is not None:
            return
        if self.server is None:
            self.server = self._make_server()
            if self._coordination.speaks:  # for all launchers of a node; the others answer through it
                self.server.open()
        runtime.loop.timers.append(self.server)

    # --- how observers begin

    def _read_counters(self) -> None:
        from launcher.failure.counters import read_counters

        if self.counters_before is not None and self.counters_before.kernel_log is not None:
            os.close(self.counters_before.kernel_log)  # of the attempt before
        self.counters_before = read_counters(Host())

    def _show_progress(self, started: float) -> None:
        from launcher.output.progress import Gpus, Progress

        runtime, output = self.runtime, self.runtime.output
        running = runtime.group.running
        self._status = Progress(
            enabled=runtime.watch.progress,
            is_terminal=output.screen.console.is_terminal,
            started=started,
            count_up=lambda: len(running),
            last_output=lambda: output.last_s,
            show=output.show,
            notice=output.say,
            gpus=Gpus(runtime.environ.get("CUDA_VISIBLE_DEVICES")),
        )
        runtime.loop.timers.append(self._status)

    def _watch_stalls(self, started: float) -> None:
        self._evidence.watch(started, self._end_for, lambda: self.progressed)

    def _inform_trainer(self) -> None:
        from launcher.observers.kubeflow import TrainerStatus

        runtime = self.runtime
        places = [
            place
            for place, one in enumerate(runtime.group.children)
            if one.rank == 0 and not (one.called or one.companion)
        ]
        self._trainer = TrainerStatus(
            runtime.watch.restarts.progress_pattern or "",
            runtime.environ,
            lambda: b"\n".join(tail for place in places for tail in runtime.output.read_tails(place)),
            runtime.group.helpers,
            runtime.say,
        )
        runtime.loop.timers.append(self._trainer)

    def _watch_pace(self) -> None:
        from launcher.observers.pace import PaceWatch
        from launcher.process.families import list_ranks

        runtime = self.runtime
        self._pace = PaceWatch(lambda table: list_ranks(runtime.group.processes, table))
        runtime.loop.timers.append(self._pace)

    def _watch_gpus(self) -> None:
        from launcher.observers.gpu_errors import GpuErrors

        self.gpus = GpuErrors(Host(), self.runtime.group.helpers, self.runtime.say)

    def check(self) -> None:
        """Start the quick checks of this node, once, while the processes start.

        The checks take longer than the whole start of a job, mostly to load their code. So they run beside
        the job at the lowest priority, and nothing depends on them: they only print a few lines, and a check
        that hangs, dies or is late prints none.
        """
        runtime = self.runtime
        if self._checks is None or runtime.group.refused is not None or self._checking is not None:
            return

        def say(lines: Sequence[str]) -> None:
            if lines:
                runtime.say("\n".join(lines), "node-check")

        try:  # noqa: SIM105 - contextlib would be one more module
            self._checking = runtime.group.helpers.ask(
                self._checks, say, CHECK_S, name="launcher-check", nice=NICE
            )
        except OSError:
            pass  # the kernel is short of something, and the job may need it more


def watch_progress(runtime: Runtime) -> ProgressGate | None:
    """Return what watches for progress; None if nothing asks for it, or the user names no way to see it."""
    rule = runtime.watch.restarts
    asked = rule.most or runtime.watch.timings or "first" in dict(runtime.watch.stall_limits)
    if not asked or not (rule.progress_file or rule.progress_pattern):
        return None
    from launcher.recovery.progress import ProgressGate

    search = None
    if rule.progress_pattern:
        from launcher.recovery.search import Search

        search = Search(rule.progress_pattern, runtime.group.helpers, runtime.loop, runtime.say)
    return ProgressGate(rule, search, runtime.say)


def load_messages() -> None:
    """Load what prints messages: the launcher's files may be gone when there is something to say."""
    import launcher.core.redact  # noqa: F401


def read_last_output(runtime: Runtime, hidden: list[Cause]) -> None:
    """Warn of exceptions that a status of 0 hides, and of a loss that stayed NaN to the end.

    Args:
        runtime: Values and tools of the launcher.
        hidden: Takes the causes of such failures.
    """
    if runtime.forwarder.told is not None:
        return
    tails = [
        (one.child.name, tail)
        for place, one in enumerate(runtime.group.processes)
        for tail in runtime.output.read_tails(place)
    ]
    if any(sign in tail for sign in HIDDEN for _, tail in tails):
        from launcher.agent.ends import find_hidden

        for cause in find_hidden(runtime):
            hidden.append(cause)
            runtime.say(f"warning: {cause.what}; fix: {cause.fix}", "hidden-failure")
    tails = [(name, tail) for name, tail in tails if b"nan" in tail or b"NaN" in tail]
    if tails and runtime.first is None and runtime.reason is None:
        from launcher.observers.loss import describe_loss

        note = describe_loss(tails)
        if note is not None:
            runtime.say(note, "loss-nan")
