"""The observers beside the processes of a node. Each is loaded only when needed, and none makes decisions."""

from __future__ import annotations

import os
import time

from launcher.machine.gpus import count_gpus
from launcher.output.folder import NCCL_FILE
from launcher.process.loop import Later

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.agent.agent import Agent, Checks, Serve, Server
    from launcher.agent.milestones import Milestones
    from launcher.evidence.hang import HangHandler
    from launcher.failure.counters import Counters
    from launcher.failure.model import Cause, Verdict
    from launcher.machine.host import Host
    from launcher.machine.xids import Xid
    from launcher.observers.gpu_errors import GpuErrors
    from launcher.observers.meeting import MeetingWatch
    from launcher.observers.nccl_log import NcclLogWatcher
    from launcher.output.progress import Progress
    from launcher.preemption.response import Response
    from launcher.preemption.watch import Watch
    from launcher.process.helper import Helper
    from launcher.process.loop import Timer
    from launcher.process.spawn import Child
    from launcher.recorder.watch import Recorder

CHECK_S = 30.0
"""Time limit of the checks in seconds. At the lowest priority, on busy CPUs, 0.1 s of work takes seconds."""
NICE = 19
SERVE_AFTER_S = 0.2
"""Seconds until the server starts: before that a job shows nothing, and its processes need the CPU."""
WATCH_AFTER_S = 0.05
"""Seconds until the connections from before the start are read. No program connects to another one sooner."""
STATUS_AFTER_S = 1.0
"""Seconds until a status line appears on a terminal."""
SILENCE_AFTER_S = 59.0
"""Seconds until progress is reported in a log."""


class Observers:
    """The observers of a run, for one attempt after the other.

    Attributes:
        counters_before: The node's counters at the start of the attempt.
        counters_after: The counters right after the first failure, before the memory in use is freed.
        unmet: Message that the attempt's processes have not met, if it was reported while they ran.
        server: Answers questions; None before it exists, and if there is none.
        recorder: The processes' flight recorders; None before the first process.
        milestones: Writes the events of this node; None if nothing takes them.
    """

    def __init__(self, agent: Agent, checks: Checks | None, serve: Serve | None) -> None:
        self.counters_before: Counters | None = None
        self.counters_after: Counters | None = None
        self.unmet: str | None = None
        self.server: Server | None = None
        self.recorder: Recorder | None = None
        self._agent, self._checks, self._serve = agent, checks, serve
        self._nccl_path: str | None = None
        self._progress: Progress | None = None
        self._hangs: HangHandler | None = None
        self._nccl: NcclLogWatcher | None = None
        self._meeting: MeetingWatch | None = None
        self._doubts: list[Cause] = []
        self._checking: Helper | None = None
        self._preemption: Watch | None = None
        self._response: Response | None = None
        self._answering: Timer | None = None
        self._gpus: GpuErrors | None = None
        self.milestones: Milestones | None = None
        if agent.watch.events is not None or (agent.watch.traces and agent.coordination.speaks):
            agent.loop.guard(self._open_milestones)

    def _open_milestones(self) -> None:
        from launcher.agent.milestones import Milestones

        self.milestones = Milestones(self._agent)

    # --- one attempt

    def plan(self, child: Child) -> dict[str, str]:
        """Return the variables for a process by which it can be observed."""
        traced = {} if self.milestones is None else self.milestones.plan(child)
        return {**self._plan_recorder(child), **self._plan_nccl_log(child), **traced}

    def _plan_recorder(self, child: Child) -> dict[str, str]:
        """Return the variables that switch on PyTorch's flight recorder, unless the user has decided."""
        if child.companion:
            return {}
        if self.recorder is None:
            from launcher.recorder.watch import Recorder

            folders = self._agent.folder.private_folders
            self.recorder = Recorder(lambda: next(folders(), None))
        return self.recorder.plan(child.argv, child.environ, self._agent.attempt)

    def _plan_nccl_log(self, child: Child) -> dict[str, str]:
        """Return the variables that make rank 0's NCCL write to a file of ours, if its fabric is verified."""
        agent = self._agent
        proof = agent.watch.proof
        if proof is None or child.rank:
            return {}
        self._nccl_path = agent.folder.make_file(agent.attempt, child.folder, "nccl.log")
        if self._nccl_path is None:
            agent.say("the fabric is not verified: no folder for NCCL's debug output", "fabric-unverified")
            return {}
        return {**dict(proof.settings), NCCL_FILE: self._nccl_path}

    def begin_attempt(self) -> None:
        """Start the observers, now that the processes are starting; all of them could wait until now."""
        agent = self._agent
        self.counters_after, self.unmet = None, None
        self.answer()
        if self.milestones is not None:
            agent.loop.guard(self.milestones.begin_attempt)
        begins = (self._read_counters, self._plan_progress, self.check, self._watch_preemption)
        for begin in (*begins, self._watch_gpus, self._listen_to_nccl, self._watch_meeting):
            agent.loop.guard(begin)

    def end_attempt(self) -> None:
        """Close the observers of an attempt whose processes have ended."""
        if self.milestones is not None:  # while the parts still tell what they have seen
            self._agent.loop.guard(self.milestones.end_attempt)
        self._agent.loop.guard(self._end_attempt)

    def _end_attempt(self) -> None:
        if self._hangs is not None:
            self._hangs.close()
        if self._progress is not None:
            self._progress.close()
        if self._nccl is not None:
            self._nccl.close()
        if self.recorder is not None:
            if self._agent.failed:
                self._agent.loop.guard(self._agent.evidence.read_rest)
            self.recorder.end_attempt()
        meeting = self._meeting
        self._progress = self._nccl = self._meeting = None
        if meeting is not None:
            self.unmet = meeting.unmet
            self._judge_meeting(meeting.end())

    @property
    def connected_s(self) -> float | None:
        """When all processes were seen connected, monotonic seconds; None if they were not yet."""
        return None if self._meeting is None else self._meeting.together_at

    def note_together(self) -> None:
        """Note that the nodes have come together."""
        self._agent.timings.note_together()
        if self.milestones is not None:
            self._agent.loop.guard(self.milestones.note_together)

    def look(self) -> None:
        """Note the moments of this attempt that the parts have seen."""
        agent = self._agent
        moments, progress = agent.timings.attempts[-1], agent.restarter.progress
        moments.wrote = agent.output.first_s
        moments.connected = self.connected_s or moments.connected
        if progress is not None:
            moments.progressed, moments.saved = progress.first_s, progress.read_last_s()

    def note_failure(self) -> None:
        """Read the counters again, because a process has failed."""
        self._agent.loop.guard(self._read_counters_again)

    def note_end(self) -> None:
        """Note that a process has exited."""
        if self._meeting is not None:
            self._meeting.note_end()

    def end(self) -> None:
        """Finish the checks of this node, and read the evidence and the last output, after all attempts."""
        if self._checking is not None:
            self._agent.loop.guard(self._checking.finish)
        self._agent.loop.guard(self._look_at_hidden)
        self._agent.loop.guard(self._look_at_loss)

    def _look_at_hidden(self) -> None:
        """Say which process ended with 0 although its last output is an exception: its status was lost."""
        agent = self._agent
        tails = [
            tail for place in range(len(agent.group.processes)) for tail in agent.output.read_tails(place)
        ]
        if agent.forwarder.told is None and any(b"Traceback (most" in tail for tail in tails):
            from launcher.agent.report import find_hidden

            for cause in find_hidden(agent):
                self._doubts.append(cause)
                agent.say(f"warning: {cause.what}; fix: {cause.fix}", "hidden-failure")

    def record_doubts(self) -> None:
        """Write a record of a job that ended with 0 although a warning says that it may have failed."""
        if self._doubts:
            from launcher.agent.report import record_doubts

            record_doubts(self._agent, self._doubts)

    def _look_at_loss(self) -> None:
        """Say if the loss was NaN to the end of a job that has not failed: its status does not tell."""
        agent = self._agent
        if agent.first is not None or agent.reason is not None or agent.forwarder.told is not None:
            return
        tails = [
            (one.child.name, tail)
            for index, one in enumerate(agent.group.processes)
            for tail in agent.output.read_tails(index)
            if b"nan" in tail or b"NaN" in tail
        ]
        if tails:
            from launcher.observers.loss import describe_loss

            note = describe_loss(tails)
            if note is not None:
                agent.say(note, "loss-nan")

    # --- our children

    def helpers(self) -> tuple[int, ...]:
        """Return the PIDs of our children that help the observers and are not processes of the job."""
        return () if self.server is None else self.server.helpers()

    def close(self) -> None:
        """Stop observing and answering."""
        if self._preemption is not None:
            self._preemption.close()
        if self.server is not None:
            self._agent.loop.guard(self.server.close)
        if self.milestones is not None:
            self._agent.loop.guard(self.milestones.close)

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

    def _watch_gpus(self) -> None:
        """Watch the GPUs for errors from a moment after the start on; one launcher of a node does."""
        agent = self._agent
        if self._gpus is not None:
            self._gpus.begin_attempt()
            return
        from launcher.machine.host import Host

        host = Host()
        if agent.group.refused is None and agent.coordination.speaks and count_gpus(host):
            due = time.monotonic() + SERVE_AFTER_S
            agent.loop.timers.append(Later(due, lambda: self._ask_gpus(host)))

    def _ask_gpus(self, host: Host) -> None:
        from launcher.observers.gpu_errors import GpuErrors

        agent = self._agent
        if self._gpus is None:
            self._gpus = GpuErrors(host, agent.group.helpers, agent.loop, agent.say)

    def read_gpu_errors(self) -> tuple[Xid, ...]:
        """Return the errors of the GPUs that NVML has reported in this attempt."""
        return () if self._gpus is None else self._gpus.read()

    def find_gpu_faults(self) -> list[str]:
        """Return the faults of hardware among the errors of the GPUs, of all attempts."""
        self.read_gpu_errors()
        return [] if self._gpus is None else self._gpus.faults

    def _plan_progress(self) -> None:
        agent, now = self._agent, time.monotonic()
        timers, watch, output = agent.loop.timers, agent.watch, agent.output
        if watch.progress is not False and output.sees_all:
            wait_s = STATUS_AFTER_S if output.screen.console.is_terminal else SILENCE_AFTER_S
            timers.append(Later(now + wait_s, lambda: self._start_progress(now)))
        if watch.stall_timeout_s:
            wait_s = min(STATUS_AFTER_S, watch.stall_timeout_s / 10)
            timers.append(Later(now + wait_s, lambda: self.hangs.watch(now)))
        elif watch.idle_timeout_s and not agent.shares_terminal:  # a user at a terminal sees it
            timers.append(Later(now + watch.idle_timeout_s / 10, lambda: self.hangs.watch(now)))

    def _start_progress(self, started: float) -> None:
        from launcher.output.progress import Gpus, Progress

        agent = self._agent
        running, output = agent.group.running, agent.output
        self._progress = Progress(
            enabled=agent.watch.progress,
            is_terminal=output.screen.console.is_terminal,
            started=started,
            count_up=lambda: len(running),
            last_output=lambda: output.last_s,
            show=output.show,
            notice=output.say,
            gpus=Gpus(agent.environ.get("CUDA_VISIBLE_DEVICES")),
        )
        agent.loop.timers.append(self._progress)

    @property
    def hangs(self) -> HangHandler:
        """Watch for hangs, and what follows from one; loaded when it is needed."""
        if self._hangs is None:
            from launcher.evidence.hang import HangHandler

            self._hangs = HangHandler(self._agent)
        return self._hangs

    # --- NCCL's network, and whether the processes meet

    def _listen_to_nccl(self) -> None:
        """Read the network that NCCL uses, if it must be verified."""
        agent = self._agent
        if agent.watch.proof is None or self._nccl_path is None:
            return
        from launcher.observers.nccl_log import NcclLogWatcher

        def end(what: str, fix: str) -> None:
            from launcher.failure.arbiter import UNPROVEN
            from launcher.failure.reason import Reason

            agent.say(
                f"the job ends: NCCL does not use the required fabric: {what}; fix: {fix}", "other-fabric"
            )
            agent.end_for(Reason(UNPROVEN, what, fix))

        self._nccl = NcclLogWatcher(
            agent.watch.proof, self._nccl_path, agent.loop, agent.output.say, end, keeps=agent.folder.keeps
        )

    def _watch_meeting(self) -> None:
        """Check whether the processes meet, if that is planned; begin before they can have met."""
        agent = self._agent
        planned = agent.watch.contact
        if planned is None or agent.group.refused is not None:
            return
        started = time.monotonic()

        def begin() -> None:
            from launcher.observers.meeting import MeetingWatch

            self._meeting = MeetingWatch(
                planned,
                agent.group.processes,
                agent.output.say,
                self._end_unmet,
                lambda: agent.is_ending,
                started,
            )
            agent.loop.timers.append(self._meeting)

        agent.loop.timers.append(Later(started + WATCH_AFTER_S, begin))

    def _judge_meeting(self, never_met: str | None) -> None:
        """Report a job, or end it as failed, if its processes ended without meeting.

        Args:
            never_met: Message that they never met; None if they have, or may have.
        """
        agent = self._agent
        planned = agent.watch.contact
        is_whole = agent.first is None and agent.forwarder.told is None and not agent.group.stopper.gave_up
        unmet = never_met or self.unmet  # what was warned about may be unproven at the end: a doubt remains
        if planned is None or unmet is None or not is_whole or agent.reason is not None:
            return
        if planned.required and never_met is not None:
            self._end_unmet(never_met)
            return
        from launcher.failure.model import Cause
        from launcher.failure.reason import NEVER_MET_FIX

        self._doubts = [Cause("never-met", unmet, NEVER_MET_FIX, False)]
        if never_met is not None:
            fix = "" if self.unmet is not None else f"; fix: {NEVER_MET_FIX}"
            agent.say(f"warning: [never-met] all processes have ended; {never_met}{fix}", "never-met")

    def _end_unmet(self, what: str) -> None:
        """End the job, because its processes do not meet and must."""
        from launcher.failure.arbiter import UNMET
        from launcher.failure.reason import NEVER_MET_FIX, Reason

        self._agent.say(f"the job ends (--require-meeting): {what}; fix: {NEVER_MET_FIX}", "never-met")
        self._agent.end_for(Reason(UNMET, what, NEVER_MET_FIX))

    # --- checks and preemption of this node

    def check(self) -> None:
        """Start the quick checks of this node, once, while the processes start.

        The checks take longer than the whole start of a job, mostly to load their code. So they run beside
        the job at the lowest priority, and nothing depends on them: they only print a few lines, and a check
        that hangs, dies or is late prints none.
        """
        agent = self._agent
        if self._checks is None or agent.group.refused is not None or self._checking is not None:
            return
        try:  # noqa: SIM105 - contextlib would be one more module
            self._checking = agent.group.helpers.ask(
                self._checks, self._say_lines, CHECK_S, name="launcher-check", nice=NICE
            )
        except OSError:
            pass  # the kernel is short of something, and the job may need it more

    def _say_lines(self, lines: Sequence[str]) -> None:
        if lines:
            self._agent.say("\n".join(lines), "node-check")

    def _watch_preemption(self) -> None:
        """Watch for preemption of this node, if that is planned."""
        agent = self._agent
        planned = agent.watch.preemption
        if planned is None or agent.group.refused is not None:
            return
        if self._preemption is None:
            from launcher.preemption.watch import Watch

            grace_s = agent.watch.grace_s
            self._preemption = Watch(planned, grace_s, agent.loop, agent.say, self._on_preemption)
        agent.loop.timers.append(self._preemption)

    def _on_preemption(self, kind: str, what: str, left_s: float) -> bool:
        """Handle a preemption notice of this node, or its withdrawal; return whether the processes end."""
        ends = self.respond(kind, what, left_s)
        self._agent.coordination.on_preemption(kind, what, left_s, ends=ends)
        return ends

    def respond(self, kind: str, what: str, left_s: float, node: int | None = None) -> bool:
        """Apply a preemption notice to the processes here; ``node``: its node, None for this one."""
        if self._response is None:
            from launcher.preemption.response import Response

            self._response = Response(self._agent)
        return self._response.on_event(kind, what, left_s, node)

    @property
    def is_preempted(self) -> bool:
        """Whether the processes were told to stop because of a preemption."""
        return self._response is not None and self._response.has_begun

    @property
    def is_taken_back(self) -> bool:
        """Whether the time of a node has come, even if nothing ran when it came: no attempt may follow."""
        return self._response is not None and self._response.is_due

    def preemption_verdict(self) -> Verdict | None:
        """Return the verdict that a node was preempted; None if the job did not end for that."""
        if self._response is None or not self._response.has_begun:
            return None
        from launcher.agent.report import describe_exit

        agent = self._agent
        exits = [describe_exit(agent, one) for one in agent.group.ended]
        return self._response.make_verdict(exits, agent.group.describe_survivors())

    # --- questions

    def answer(self) -> None:
        """Answer questions in this attempt, from a moment after its start on."""
        timers = self._agent.loop.timers
        if self._answering not in timers:
            self._answering = self.server or Later(time.monotonic() + SERVE_AFTER_S, self.serve)
            timers.append(self._answering)

    def serve(self) -> None:
        """Start to answer our user's questions about the processes; costs nothing until one comes."""
        agent = self._agent
        if self._serve is None or agent.group.refused is not None:
            return
        if self.server is None:
            self.server = self._serve(agent)
            if agent.coordination.speaks:  # for all launchers of a node; the others answer through it
                self.server.open()
        agent.loop.timers.append(self.server)
