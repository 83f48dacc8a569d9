"""The observers beside the processes of a node. Each is loaded only when needed, and none makes decisions."""

from __future__ import annotations

import os
import time

from launcher.machine.gpus import count_gpus
from launcher.output.folder import NCCL_FILE
from launcher.process.loop import Later

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Protocol

    from launcher.agent.collector import Collector
    from launcher.agent.coordination import Coordination
    from launcher.agent.milestones import Milestones
    from launcher.agent.preempted import Response
    from launcher.agent.runtime import Runtime
    from launcher.failure.counters import Counters
    from launcher.failure.model import Cause, Verdict
    from launcher.failure.reason import Reason
    from launcher.machine.host import Host
    from launcher.machine.xids import Xid
    from launcher.observers.gpu_errors import GpuErrors
    from launcher.observers.kubeflow import TrainerStatus
    from launcher.observers.meeting import MeetingWatch
    from launcher.observers.nccl_log import NcclLogWatcher
    from launcher.observers.pace import PaceWatch, RankPace
    from launcher.output.progress import Progress
    from launcher.preemption.watch import PreemptionWatch
    from launcher.process.helper import Helper
    from launcher.process.loop import Timer
    from launcher.process.spawn import Child
    from launcher.recovery.progress import ProgressGate

    class QuestionServer(Protocol):
        """Answers questions about the job: `launcher.control.server`."""

        @property
        def due(self) -> float | None:
            """When to call `fire`."""

        def fire(self, now: float) -> None:
            """Do the work that is due."""

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

HIDDEN = (
    b"Traceback (most",
    b"Segmentation fault",
    b"Bus error",
    b"Aborted",
    b"Killed",
    b"Illegal instruction",
)
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

        self._nccl = NcclLogWatcher(
            runtime.watch.proof,
            self._nccl_path,
            runtime.loop,
            runtime.output.say,
            end,
            keeps=runtime.folder.keeps,
        )

    def watch_meeting(self) -> None:
        """Check whether the processes meet, if that is planned; begin before they can have met."""
        runtime = self._runtime
        planned = runtime.watch.contact
        if planned is None or runtime.group.refused is not None:
            return
        started = time.monotonic()

        def begin() -> None:
            from launcher.observers.meeting import MeetingWatch

            self._meeting = MeetingWatch(
                planned,
                runtime.group.processes,
                runtime.output.say,
                self._end_unmet,
                lambda: runtime.is_ending,
                started,
            )
            runtime.loop.timers.append(self._meeting)

        runtime.loop.timers.append(Later(started + WATCH_AFTER_S, begin))

    def _judge_meeting(self, never_met: str | None) -> None:
        """Report a job, or end it as failed, if its processes ended without meeting.

        Args:
            never_met: Message that they never met; None if they have, or may have.
        """
        runtime = self._runtime
        planned = runtime.watch.contact
        is_whole = (
            runtime.first is None and runtime.forwarder.told is None and not runtime.group.stopper.gave_up
        )
        unmet = never_met or self.unmet  # what was warned about may be unproven at the end: a doubt remains
        if planned is None or unmet is None or not is_whole:
            return
        if planned.required and never_met is not None:
            self._end_unmet(never_met)
            return
        from launcher.failure.symptoms import make_cause

        self.doubt = make_cause("unmet", what=unmet)
        if never_met is not None:
            fix = "" if self.unmet is not None else f"; fix: {self.doubt.fix}"
            runtime.say(f"warning: [never-met] all processes have ended; {never_met}{fix}", "never-met")

    def _end_unmet(self, what: str) -> None:
        """End the job, because its processes do not meet and must."""
        from launcher.failure.arbiter import UNMET
        from launcher.failure.reason import Reason

        reason = Reason(UNMET, what)
        self._runtime.say(f"the job ends (--require-meeting): {what}; fix: {reason.cause.fix}", "never-met")
        self._end_for(reason)

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
        if meeting is not None:
            self.unmet = meeting.unmet
            self._judge_meeting(meeting.end())


class GpuWatch:
    """The errors of this node's GPUs; one launcher of a node watches for them."""

    def __init__(self, runtime: Runtime, *, watches: bool) -> None:
        self._runtime, self._watches = runtime, watches
        self._errors: GpuErrors | None = None

    def watch(self) -> None:
        """Watch for errors from a moment after the start on."""
        runtime = self._runtime
        if self._errors is not None:
            self._errors.begin_attempt()
            return
        from launcher.machine.host import Host

        host = Host()
        if runtime.group.refused is None and self._watches and count_gpus(host):
            due = time.monotonic() + SERVE_AFTER_S
            runtime.loop.timers.append(Later(due, lambda: self._ask(host)))

    def _ask(self, host: Host) -> None:
        from launcher.observers.gpu_errors import GpuErrors

        runtime = self._runtime
        if self._errors is None:
            self._errors = GpuErrors(host, runtime.group.helpers, runtime.loop, runtime.say)

    def read(self) -> tuple[Xid, ...]:
        """Return the errors of the GPUs that NVML has reported in this attempt."""
        return () if self._errors is None else self._errors.read()

    def find_faults(self) -> list[str]:
        """Return the faults of hardware among the errors of the GPUs, of all attempts."""
        self.read()
        return [] if self._errors is None else self._errors.faults


class PreemptionHandler:
    """Preemption of this node, and of others as far as it concerns this one."""

    def __init__(self, runtime: Runtime, report: Callable[[str, str, float, bool], None]) -> None:
        """Watch for nothing yet.

        Args:
            runtime: Values and tools of the launcher.
            report: Takes an event of this node, and whether the processes end because of it; see
                `launcher.agent.coordination.Coordination.on_preemption`.
        """
        self._runtime, self._report = runtime, report
        self._watch: PreemptionWatch | None = None
        self._response: Response | None = None

    def watch(self) -> None:
        """Watch for preemption of this node, if that is planned."""
        runtime = self._runtime
        planned = runtime.watch.preemption
        if planned is None or runtime.group.refused is not None:
            return
        if self._watch is None:
            from launcher.preemption.watch import PreemptionWatch

            grace_s = runtime.watch.grace_s
            self._watch = PreemptionWatch(planned, grace_s, runtime.loop, runtime.say, self._on_event)
        runtime.loop.timers.append(self._watch)

    def _on_event(self, kind: str, what: str, left_s: float) -> bool:
        """Handle a preemption notice of this node, or its withdrawal; return whether the processes end."""
        ends = self.respond(kind, what, left_s)
        self._report(kind, what, left_s, ends)
        return ends

    def respond(self, kind: str, what: str, left_s: float, node: int | None = None) -> bool:
        """Apply a preemption notice to the processes here; ``node``: its node, None for this one."""
        if self._response is None:
            from launcher.agent.preempted import Response

            self._response = Response(self._runtime)
        return self._response.on_event(kind, what, left_s, node)

    @property
    def has_begun(self) -> bool:
        """Whether the processes were told to stop because of a preemption."""
        return self._response is not None and self._response.has_begun

    @property
    def is_due(self) -> bool:
        """Whether the time of a node has come, even if nothing ran when it came: no attempt may follow."""
        return self._response is not None and self._response.is_due

    def make_verdict(self) -> Verdict | None:
        """Return the verdict that a node was preempted; None if the job did not end for that."""
        if self._response is None or not self._response.has_begun:
            return None
        from launcher.agent.ends import describe_exit

        runtime = self._runtime
        exits = [describe_exit(runtime, one) for one in runtime.group.ended]
        return self._response.make_verdict(exits, runtime.group.describe_survivors())

    def close(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.close()


class Observers:
    """The observers of a run, for one attempt after the other.

    Attributes:
        counters_before: The node's counters at the start of the attempt.
        counters_after: The counters right after the first failure, before the memory in use is freed.
        network: Which network NCCL uses, and whether the processes meet.
        gpus: Errors of the GPUs.
        preemption: Preemption of this node.
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
        self.gpus = GpuWatch(runtime, watches=coordination.speaks)
        self.preemption = PreemptionHandler(runtime, coordination.on_preemption)
        self.server: QuestionServer | None = None
        self._runtime, self._coordination, self._evidence = runtime, coordination, evidence
        self._end_for, self._checks, self._make_server = end_for, checks, make_server
        self._status: Progress | None = None
        self._pace: PaceWatch | None = None
        self._trainer: TrainerStatus | None = None
        self.hidden: list[Cause] = []
        self._checking: Helper | None = None
        self._answering: Timer | None = None
        self.progress = self._watch_progress()
        runtime.output.progress = self.progress
        self.milestones: Milestones | None = None
        if runtime.watch.events is not None or (runtime.watch.traces and coordination.speaks):
            runtime.loop.guard(self._open_milestones)

    def _open_milestones(self) -> None:
        from launcher.agent.milestones import Milestones

        self.milestones = Milestones(
            self._runtime, self._coordination, lambda: self.network.connected_s, self.progress
        )

    def _watch_progress(self) -> ProgressGate | None:
        runtime, rule = self._runtime, self._runtime.watch.restarts
        asked = rule.most or runtime.watch.timings or "first" in dict(runtime.watch.stall_limits)
        if not asked or not (rule.progress_file or rule.progress_pattern):
            return None
        from launcher.recovery.progress import ProgressGate

        search = None
        if rule.progress_pattern:
            from launcher.recovery.search import Search

            search = Search(rule.progress_pattern, runtime.group.helpers, runtime.loop, runtime.say)
        return ProgressGate(rule, search, runtime.say)

    @property
    def doubts(self) -> list[Cause]:
        """Why a job that ended with 0 may have failed."""
        return [*filter(None, (self.network.doubt,)), *self.hidden]

    @property
    def progressed(self) -> bool | None:
        """Whether this attempt has made progress; None if that is not watched."""
        return None if self.progress is None else self.progress.has_progressed()

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
        runtime = self._runtime
        self.counters_after, self.network.unmet = None, None
        self.answer()
        if self.milestones is not None:
            runtime.loop.guard(self.milestones.begin_attempt)
        begins = (self._read_counters, self._plan_progress, self.check, self.preemption.watch)
        for begin in (*begins, self.gpus.watch, self.network.listen_to_nccl, self.network.watch_meeting):
            runtime.loop.guard(begin)

    def end_attempt(self) -> None:
        """Close the observers of an attempt whose processes have ended."""
        if self.milestones is not None:  # while the parts still tell what they have seen
            self._runtime.loop.guard(self.milestones.end_attempt)
        self._runtime.loop.guard(self._end_attempt)

    def _end_attempt(self) -> None:
        if self._status is not None:
            self._status.close()
            self._status = None
        if self._pace is not None:
            self._pace.close()
            self._pace = None
        self.network.end_attempt()
        self._evidence.end_attempt()

    def read_paces(self) -> dict[int, RankPace]:
        """Return what each rank of this node does with its time, as far as it is known."""
        return {} if self._pace is None else self._pace.read()

    def _tell_trainer(self, pattern: str) -> None:
        from launcher.observers.kubeflow import TrainerStatus

        runtime = self._runtime
        children = enumerate(runtime.group.children)
        places = [place for place, one in children if one.rank == 0 and not (one.called or one.companion)]

        def read_tail() -> bytes:
            return b"\n".join(tail for place in places for tail in runtime.output.read_tails(place))

        self._trainer = TrainerStatus(pattern, runtime.environ, read_tail, runtime.group.helpers, runtime.say)
        runtime.loop.timers.append(self._trainer)

    def _watch_pace(self) -> None:
        from launcher.observers.pace import PaceWatch
        from launcher.process.families import list_ranks

        runtime = self._runtime
        self._pace = PaceWatch(lambda table: list_ranks(runtime.group.processes, table))
        runtime.loop.timers.append(self._pace)

    @property
    def progress_s(self) -> float | None:
        """Seconds since the progress file changed last in this attempt; None if it has not."""
        changed = None if self.progress is None else self.progress.read_last_s()
        return None if changed is None else round(time.monotonic() - changed, 1)

    def note_together(self) -> None:
        """Note that the nodes have come together."""
        self._runtime.timings.note_together()
        if self.milestones is not None:
            self._runtime.loop.guard(self.milestones.note_together)

    def look(self) -> None:
        """Note the moments of this attempt that the parts have seen."""
        runtime = self._runtime
        moments, progress = runtime.timings.attempts[-1], self.progress
        moments.wrote = runtime.output.first_s
        moments.connected = self.network.connected_s or moments.connected
        if progress is not None:
            moments.progressed, moments.saved = progress.first_s, progress.read_last_s()

    def note_failure(self) -> None:
        """Read the counters again, because a process has failed."""
        self._runtime.loop.guard(self._read_counters_again)

    def end(self) -> None:
        """Finish the checks of this node, and read the evidence and the last output, after all attempts."""
        runtime = self._runtime
        if self._checking is not None:
            runtime.loop.guard(self._checking.finish)
        if self._trainer is not None:
            trainer = self._trainer
            runtime.loop.guard(lambda: trainer.finish(runtime.loop.turn_until))
        runtime.loop.guard(self._look_at_hidden)
        runtime.loop.guard(self._look_at_loss)

    def _look_at_hidden(self) -> None:
        """Say which process ended with 0 although its last output is an exception: its status was lost."""
        runtime = self._runtime
        tails = [
            tail for place in range(len(runtime.group.processes)) for tail in runtime.output.read_tails(place)
        ]
        if runtime.forwarder.told is None and any(sign in tail for sign in HIDDEN for tail in tails):
            from launcher.agent.ends import find_hidden

            for cause in find_hidden(runtime):
                self.hidden.append(cause)
                runtime.say(f"warning: {cause.what}; fix: {cause.fix}", "hidden-failure")

    def _look_at_loss(self) -> None:
        """Warn if the loss stayed NaN to the end of a job that did not fail."""
        runtime = self._runtime
        if runtime.first is not None or runtime.reason is not None or runtime.forwarder.told is not None:
            return
        tails = [
            (one.child.name, tail)
            for index, one in enumerate(runtime.group.processes)
            for tail in runtime.output.read_tails(index)
            if b"nan" in tail or b"NaN" in tail
        ]
        if tails:
            from launcher.observers.loss import describe_loss

            note = describe_loss(tails)
            if note is not None:
                runtime.say(note, "loss-nan")

    # --- our children

    def helpers(self) -> tuple[int, ...]:
        """Return the PIDs of our children that help the observers and are not processes of the job."""
        return () if self.server is None else self.server.helpers()

    def read_timings(self) -> Mapping[str, object] | None:
        """Return where the time has gone on this node so far, in seconds; None before the first attempt."""
        timings = self._runtime.timings
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
        self.preemption.close()
        if self.server is not None:
            self._runtime.loop.guard(self.server.close)
        if self.milestones is not None:
            milestones = self.milestones
            figures = self.read_timings() or {}
            self._runtime.loop.guard(lambda: milestones.close(status, cause, error, figures))

    # --- counters, progress, stalls

    def _read_counters(self) -> None:
        from launcher.failure.counters import read_counters
        from launcher.machine.host import Host

        if self.counters_before is not None and self.counters_before.kernel_log is not None:
            os.close(self.counters_before.kernel_log)  # of the attempt before
        self.counters_before = read_counters(Host())

    def _read_counters_again(self) -> None:
        from launcher.failure.counters import read_counters
        from launcher.machine.host import Host

        self.counters_after = read_counters(Host(), self.counters_before)

    def _plan_progress(self) -> None:
        runtime, now = self._runtime, time.monotonic()
        timers, watch, output = runtime.loop.timers, runtime.watch, runtime.output
        if watch.progress is not False and output.sees_all:
            wait_s = STATUS_AFTER_S if output.screen.console.is_terminal else SILENCE_AFTER_S
            timers.append(Later(now + wait_s, lambda: self._start_progress(now)))
        pattern = watch.restarts.progress_pattern
        if pattern and TRAINER in runtime.environ and runtime.place.node_rank in (0, None):
            timers.append(Later(now + PACE_AFTER_S, lambda: self._tell_trainer(pattern)))
        if watch.stragglers:
            timers.append(Later(now + PACE_AFTER_S, self._watch_pace))
        if watch.stall_timeout_s:
            wait_s = min(STATUS_AFTER_S, watch.stall_timeout_s / 10)
            timers.append(Later(now + wait_s, lambda: self._watch_stalls(now)))
        elif watch.idle_timeout_s and not runtime.shares_terminal:  # a user at a terminal sees it
            timers.append(Later(now + watch.idle_timeout_s / 10, lambda: self._watch_stalls(now)))

    def _start_progress(self, started: float) -> None:
        from launcher.output.progress import Gpus, Progress

        runtime = self._runtime
        running, output = runtime.group.running, runtime.output
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

    # --- checks of this node

    def check(self) -> None:
        """Start the quick checks of this node, once, while the processes start.

        The checks take longer than the whole start of a job, mostly to load their code. So they run beside
        the job at the lowest priority, and nothing depends on them: they only print a few lines, and a check
        that hangs, dies or is late prints none.
        """
        runtime = self._runtime
        if self._checks is None or runtime.group.refused is not None or self._checking is not None:
            return
        try:  # noqa: SIM105 - contextlib would be one more module
            self._checking = runtime.group.helpers.ask(
                self._checks, self._say_lines, CHECK_S, name="launcher-check", nice=NICE
            )
        except OSError:
            pass  # the kernel is short of something, and the job may need it more

    def _say_lines(self, lines: Sequence[str]) -> None:
        if lines:
            self._runtime.say("\n".join(lines), "node-check")

    # --- questions

    def answer(self) -> None:
        """Answer questions in this attempt, from a moment after its start on."""
        timers = self._runtime.loop.timers
        if self._answering not in timers:
            self._answering = self.server or Later(time.monotonic() + SERVE_AFTER_S, self.serve)
            timers.append(self._answering)

    def serve(self) -> None:
        """Start to answer our user's questions about the processes; costs nothing until one comes."""
        runtime = self._runtime
        if self._make_server is None or runtime.group.refused is not None:
            return
        if self.server is None:
            self.server = self._make_server()
            if self._coordination.speaks:  # for all launchers of a node; the others answer through it
                self.server.open()
        runtime.loop.timers.append(self.server)
