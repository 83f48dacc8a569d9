"""All that looks on beside the processes of a node: each part is loaded when needed, none decides."""

from __future__ import annotations

import time

from launcher.output.folder import NCCL_FILE
from launcher.process.loop import Later

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.agent.agent import Agent, Checks, Serve, Server
    from launcher.failure.counters import Counters
    from launcher.failure.model import Verdict
    from launcher.observers.meeting import MeetingWatch
    from launcher.observers.nccl_log import NcclLogWatcher
    from launcher.observers.stall import StallDetector
    from launcher.output.progress import Progress
    from launcher.preemption.response import Response
    from launcher.preemption.watch import Watch
    from launcher.process.helper import Helper
    from launcher.process.spawn import Child

CHECK_S = 30.0
"""Below all others, on CPUs that are all taken, 0.1 s of work is a matter of seconds."""
NICE = 19
SERVE_AFTER_S = 0.2
"""Nothing is asked of a job before there is something to be seen; until then its processes have the CPU."""
WATCH_AFTER_S = 0.05
"""What was connected before the processes is read then: no program meets another one sooner."""
STATUS_AFTER_S = 1.0
"""On a terminal a status line appears after this."""
SILENCE_AFTER_S = 59.0
"""In a log nothing is said about progress before this."""


class Observers:
    """The observers of a run, and of one attempt after the other.

    Attributes:
        counters_before: The node's counters when the first attempt began.
        counters_after: The same right after the first failure: the memory that it held is about to be freed.
        unmet: That the processes of the attempt have not met, where that was said while they ran.
        server: Answers questions; None before it is there, and where there is none.
    """

    def __init__(self, agent: Agent, checks: Checks | None, serve: Serve | None) -> None:
        self.counters_before: Counters | None = None
        self.counters_after: Counters | None = None
        self.unmet: str | None = None
        self.server: Server | None = None
        self._agent, self._checks, self._serve = agent, checks, serve
        self._nccl_path: str | None = None
        self._progress: Progress | None = None
        self._stall: StallDetector | None = None
        self._nccl: NcclLogWatcher | None = None
        self._meeting: MeetingWatch | None = None
        self._checking: Helper | None = None
        self._preemption: Watch | None = None
        self._response: Response | None = None

    # --- one attempt

    def plan(self, child: Child) -> dict[str, str]:
        """Return what makes rank 0's NCCL write where we read, if that is wanted."""
        agent = self._agent
        proof = agent.watch.proof
        if proof is None or child.rank:
            return {}
        self._nccl_path = agent.folder.make_file(agent.attempt, child.folder, "nccl.log")
        if self._nccl_path is None:
            agent.say("the fabric is not verified: there is no folder for what NCCL writes")
            return {}
        return {**dict(proof.settings), NCCL_FILE: self._nccl_path}

    def begin_attempt(self) -> None:
        """The processes are on their way: begin with all that could wait until then."""
        agent, now = self._agent, time.monotonic()
        self.counters_after, self.unmet = None, None
        agent.loop.timers.append(self.server or Later(now + SERVE_AFTER_S, self.serve))
        begins = (self._read_counters, self._plan_progress, self._check, self._watch_preemption)
        for begin in (*begins, self._listen_to_nccl, self._watch_meeting):
            agent.loop.guard(begin)

    def end_attempt(self) -> None:
        """The processes of an attempt have ended."""
        self._agent.loop.guard(self._end_attempt)

    def _end_attempt(self) -> None:
        agent = self._agent
        if self._stall is not None:
            agent.folder.keeps = agent.folder.keeps or bool(self._stall.reports)
            self._stall.close()
        if self._progress is not None:
            self._progress.close()
        if self._nccl is not None:
            self._nccl.close()
        meeting = self._meeting
        self._stall = self._progress = self._nccl = self._meeting = None
        if meeting is not None:
            self.unmet = meeting.unmet
            self._judge_meeting(meeting.end())

    def note_failure(self) -> None:
        """A process has failed: look at the counters again."""
        self._agent.loop.guard(self._read_counters_again)

    def note_end(self) -> None:
        """A process has ended."""
        if self._meeting is not None:
            self._meeting.note_end()

    def end(self) -> None:
        """All attempts have ended."""
        if self._checking is not None:
            self._agent.loop.guard(self._checking.finish)

    # --- our children

    def helpers(self) -> tuple[int, ...]:
        """Return the pids of children of ours that help here: they are none of the job."""
        stall = () if self._stall is None else self._stall.helpers()
        server = () if self.server is None else self.server.helpers()
        return (*stall, *server)

    def close(self) -> None:
        """Look no longer, and answer no more."""
        if self._preemption is not None:
            self._preemption.close()
        if self.server is not None:
            self._agent.loop.guard(self.server.close)

    # --- counters, progress, stalls

    def _read_counters(self) -> None:
        from launcher.failure.counters import read_counters
        from launcher.machine.host import Host

        self.counters_before = self.counters_before or read_counters(Host())

    def _read_counters_again(self) -> None:
        from launcher.failure.counters import read_counters
        from launcher.machine.host import Host

        self.counters_after = read_counters(Host(), self.counters_before)

    def _plan_progress(self) -> None:
        agent, now = self._agent, time.monotonic()
        timers, watch, output = agent.loop.timers, agent.watch, agent.output
        if watch.progress is not False and output.sees_all:
            wait_s = STATUS_AFTER_S if output.screen.console.is_terminal else SILENCE_AFTER_S
            timers.append(Later(now + wait_s, lambda: self._start_progress(now)))
        if watch.stall_timeout_s:
            wait_s = min(STATUS_AFTER_S, watch.stall_timeout_s / 10)
            timers.append(Later(now + wait_s, lambda: self._start_stall_detector(now)))

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

    def _start_stall_detector(self, started: float) -> None:
        from launcher.observers.stall import StallDetector
        from launcher.output.progress import Gpus

        agent = self._agent
        watch, running, output = agent.watch, agent.group.running, agent.output

        def list_processes() -> list[tuple[int, int]]:
            """Return rank and pid of those that are to make progress."""
            ranks = ((pid, one.child) for pid, one in running.items() if not one.child.companion)
            return [] if agent.is_ending else [(child.rank, pid) for pid, child in ranks]

        def stop(what: str) -> None:
            from launcher.failure.reason import STALLED, Reason

            agent.end_for(Reason(STALLED, what))

        self._stall = StallDetector(
            watch.stall_timeout_s,
            list_processes,
            lambda: output.last_s,
            output.say,
            stop if watch.on_stall == "stop" else None,
            agent.folder.path,
            started=started,
            gpus=Gpus(agent.environ.get("CUDA_VISIBLE_DEVICES")),
            world_size=agent.place.world_size,
        )
        agent.loop.timers.append(self._stall)

    # --- NCCL's network, and whether the processes meet

    def _listen_to_nccl(self) -> None:
        """Hear which network NCCL uses, if that is to be proven."""
        agent = self._agent
        if agent.watch.proof is None or self._nccl_path is None:
            return
        from launcher.observers.nccl_log import NcclLogWatcher

        def end(what: str, fix: str) -> None:
            from launcher.failure.reason import UNPROVEN, Reason

            agent.say(f"not the fabric that is required, the job ends: {what}; fix: {fix}")
            agent.end_for(Reason(UNPROVEN, what, fix))

        self._nccl = NcclLogWatcher(
            agent.watch.proof, self._nccl_path, agent.loop, agent.output.say, end, keeps=agent.folder.keeps
        )

    def _watch_meeting(self) -> None:
        """Look whether the processes meet, where they can; first lines come before that."""
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
        """All processes have ended; ``never_met``: without having met."""
        agent = self._agent
        planned = agent.watch.contact
        is_whole = agent.first is None and agent.forwarder.told is None and not agent.group.stopper.gave_up
        if planned is None or never_met is None or not is_whole or agent.reason is not None:
            return
        if planned.required:
            self._end_unmet(never_met)
        else:
            from launcher.failure.reason import NEVER_MET_FIX

            fix = "" if self.unmet is not None else f"; fix: {NEVER_MET_FIX}"
            agent.say(f"warning: [never-met] all have ended; {never_met}{fix}")

    def _end_unmet(self, what: str) -> None:
        """The processes do not meet, and have to."""
        from launcher.failure.reason import NEVER_MET_FIX, UNMET, Reason

        self._agent.say(f"the job ends (--require-meeting): {what}; fix: {NEVER_MET_FIX}")
        self._agent.end_for(Reason(UNMET, what, NEVER_MET_FIX))

    # --- this node, and its machine

    def _check(self) -> None:
        """Have this node looked at, now that the processes are on their way; once is enough.

        The quick checks cost more than the whole start of a job, most of it for loading them. So they are
        made beside it, when nothing else wants the CPU, and nothing depends on them: what they find out is a
        few lines, and a check that hangs, dies, or comes too late is not heard of.
        """
        agent = self._agent
        if self._checks is None or agent.group.refused is not None or self._checking is not None:
            return
        try:  # noqa: SIM105 - contextlib would be one more module
            self._checking = agent.group.helpers.ask(
                self._checks, self._say_lines, CHECK_S, name="launcher-check", nice=NICE
            )
        except OSError:
            pass  # whatever the kernel lacks, the job may need the more

    def _say_lines(self, lines: Sequence[str]) -> None:
        if lines:
            self._agent.say("\n".join(lines))

    def _watch_preemption(self) -> None:
        """Ask whether this machine is to be taken back, where that is planned."""
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
        """This machine is to be taken back, or is not any more; return whether the processes end for it."""
        ends = self.respond(kind, what, left_s)
        self._agent.coordination.on_preemption(kind, what, left_s, ends=ends)
        return ends

    def respond(self, kind: str, what: str, left_s: float, node: int | None = None) -> bool:
        """Do here what is to be done when a machine of the job is taken back: ours, or another node's."""
        if self._response is None:
            from launcher.preemption.response import Response

            self._response = Response(self._agent)
        return self._response.on_event(kind, what, left_s, node)

    @property
    def is_preempted(self) -> bool:
        """Whether the processes were told to end because a machine is taken back."""
        return self._response is not None and self._response.has_begun

    def preemption_verdict(self) -> Verdict | None:
        """Return that a machine was taken back as the verdict on the job; None if that did not end it."""
        if self._response is None or not self._response.has_begun:
            return None
        from launcher.agent.report import describe_exit

        agent = self._agent
        exits = [describe_exit(agent, one) for one in agent.group.ended]
        return self._response.make_verdict(exits, agent.group.describe_survivors())

    # --- questions

    def serve(self) -> None:
        """Let our user ask what the processes do; nothing happens until a question comes."""
        agent = self._agent
        if self._serve is None or agent.group.refused is not None:
            return
        if self.server is None:
            self.server = self._serve(agent)
            if agent.coordination.speaks:  # one for all launchers of a machine; the others answer it
                self.server.open()
        agent.loop.timers.append(self.server)
