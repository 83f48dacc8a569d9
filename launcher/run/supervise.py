"""Start the processes of this node, watch them, and end with the status of the first that failed.

One loop waits for everything: signals (blocked, read from a descriptor), the end of each process (a
pidfd), their output, and points in time. There are no handlers, so nothing is interrupted, and from
the first fork on no fault of ours ends the job.
"""

from __future__ import annotations

import gc
import os
import time

from launcher.errors import HardwareMissing
from launcher.process.descendants import describe, find_descendants
from launcher.process.execute import CPU_LIMIT, find_program
from launcher.process.loop import Later
from launcher.process.signals import signal
from launcher.run.keeper import Keeper
from launcher.run.parent import Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.failure.model import Verdict
    from launcher.model import Supervision
    from launcher.preemption.response import Response
    from launcher.preemption.watch import Watch
    from launcher.process.spawn import Child, Process
    from launcher.run.checking import Checking
    from launcher.status.desk import Channel
    from launcher.status.door import Door

__all__ = ["Node", "Supervisor", "supervise"]

DOOR_AFTER_S = 0.2
"""Nobody asks what a job does before there is something to be seen; until then its processes have the CPU."""
DEADLINE_FILE = "LAUNCHER_DEADLINE"
"""Where processes find until when this machine is theirs, once that is announced."""
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"
STALLED = 1
"""Our status where a stalled job was ended and all of its processes say 0."""


def supervise(
    children: Sequence[Child],
    watch: Supervision,
    node: Node,
    environ: Mapping[str, str],
    *,
    widen_cpus: bool = False,
    checks: Callable[[], Sequence[str]] | None = None,
) -> int:
    """Run all children to their end and return the job's status.

    Args:
        children: The companions, then the processes by local rank: they are started in this order.
        watch: How they are watched.
        node: Where we are.
        environ: Our own environment: TMPDIR, NO_COLOR, what names the platform.
        widen_cpus: Leave the CPUs that mpirun has bound us to.
        checks: Looks at this node while the processes run, in a process of its own, and returns lines to
            be said; None for nothing to look at.

    Returns:
        0, the first failing child's own status, or 128+n if signal n ended it.

    Raises:
        LauncherError: A child cannot be started (126, 127), a log file cannot be written (75); those
            already started are gone then.
    """
    paths = [find_program(child.argv[0], child.environ) for child in children]
    if widen_cpus:
        # The kernel cuts this down to the cgroup's cpuset, which is exactly what is wanted.
        os.sched_setaffinity(0, range(CPU_LIMIT))
    supervisor = Supervisor(children, paths, watch, node, environ)
    supervisor.checks, supervisor.answers = checks, True
    return supervisor.run()


class Supervisor(Keeper):
    """The processes of this node, from the first fork to the last word.

    Attributes:
        checks: See `supervise`.
        command: What the user asked to run, where the processes are something else; for who asks.
        may_be_preempted: Whether processes are told where a deadline would be written.
        answers: Whether it can be asked what its processes do (`launcher.status`).
        questions: The way of a question to the other nodes; None where there is none.
    """

    may_be_preempted = False
    command: Sequence[str] = ()
    checks: Callable[[], Sequence[str]] | None = None
    answers = False
    questions: Channel | None = None
    checking: Checking | None = None
    door: Door | None = None
    preemption: Watch | None = None
    response: Response | None = None

    def run(self) -> int:
        """Run until all has ended, as often as restarts allow."""
        try:
            self.run_once()
            while self.first is not None and self.may_restart:
                self.attempt += 1
                self.say(
                    f"{self.first.name} {self.first.end}: restart {self.attempt} of {self.watch.restarts}"
                )
                self.run_once()
            if self.checking is not None:
                self.loop.guard(self.checking.end)
            return self.finish()
        finally:
            self.close()

    @property
    def may_restart(self) -> bool:
        """Whether another attempt can succeed, and is wanted: nobody has asked us to end."""
        is_ending = self.relay.told is not None or self.is_preempted
        is_ours = self.mismatch is not None or self.unmet is not None
        return not is_ending and not is_ours and self.attempt < self.watch.restarts

    def close(self) -> None:
        """Let everybody go, and leave nothing behind."""
        if self.preemption is not None:
            self.preemption.close()
        self.output.close()
        self.close_door()
        self.folder.remove()
        if self.checking is not None:
            self.checking.reap()
        if self.guardian is not None:  # last: who is killed while ending leaves nothing either
            self.guardian.dismiss()

    # --- one attempt

    def run_once(self) -> None:
        """One attempt: start everything, and wait until everything has ended."""
        self.begin_attempt()
        self.loop.timers[:] = [self.stopper, self.output, self.relay]
        self.started_ns = time.time_ns()
        self.start_all()
        gc.enable()
        self.attend()
        while (self.running or self.has_leftovers()) and not self.stopper.gave_up:
            self.loop.turn(wait=not self.more)
            self.loop.guard(self.look_after_orphans)
        self.watch_no_more()
        self.output.end_attempt()
        if self.refused is not None:
            raise self.refused

    def attend(self) -> None:
        """The processes are on their way: begin with all that could wait until then."""
        self.loop.timers.append(self.door or Later(time.monotonic() + DOOR_AFTER_S, self.open_door))
        self.loop.guard(self.watch_progress)
        self.loop.guard(self.check_beside)
        self.loop.guard(self.watch_preemption)
        self.loop.guard(self.listen_to_nccl)
        self.loop.guard(self.watch_contact)

    def environment(self, child: Child) -> dict[str, str]:
        """Return what a process gets from this very run."""
        settings = super().environment(child)
        if (self.watch.preemption is not None or self.may_be_preempted) and self.deadline_file is not None:
            settings[DEADLINE_FILE] = self.deadline_file
        if self.watch.restarts:
            settings[RESTART_COUNT] = str(self.attempt)
            settings[MAX_RESTARTS] = str(self.watch.restarts)
        return settings | self.plan_witness(child)

    # --- beside the processes: a job runs without, too

    def spared(self) -> tuple[int, ...]:
        """Our own children that are none of the job."""
        checking = () if self.checking is None or self.checking.pid is None else (self.checking.pid,)
        asked = () if self.door is None else self.door.helpers()
        return (*super().spared(), *checking, *asked)

    def forget_child(self, pid: int) -> None:
        """A child of ours has ended that is none of the job's processes: its pid is free for others."""
        super().forget_child(pid)
        if self.checking is not None and pid == self.checking.pid:
            self.checking.pid = None
        if self.door is not None:
            self.door.forget(pid)

    def check_beside(self) -> None:
        """Have somebody look at this node, now that the processes are on their way; once is enough."""
        if self.checks is None or self.refused is not None:
            return
        if self.checking is None:
            from launcher.run.checking import Checking

            try:
                self.checking = Checking(self.checks, self.loop, self.say)
            except OSError:
                return  # whatever the kernel lacks, the job may need the more
        self.loop.timers.append(self.checking)

    def open_door(self) -> None:
        """Let our user ask what the processes do; nothing happens until somebody does."""
        if not self.answers or self.refused is not None:
            return
        if self.door is None:
            from launcher.status.door import Door

            self.door = Door(self)
            self.door.open()
            self.door.serve_metrics()
        self.loop.timers.append(self.door)

    def close_door(self) -> None:
        """Answer no more."""
        if self.door is not None:
            self.loop.guard(self.door.close)

    def describe_state(self) -> str:
        """Return what the processes of this node do as a whole, in a word or two."""
        if self.running:
            return "stopping" if self.stopper.begun else "running"
        return "ended"

    def describe_nodes(self) -> dict[str, object] | None:
        """Return which of the job's nodes are there; None where nobody looks after that."""
        return None

    def watch_preemption(self) -> None:
        """Ask whether this machine is to be taken back, where that is planned."""
        planned = self.watch.preemption
        if planned is None or self.refused is not None:
            return
        if self.preemption is None:
            from launcher.preemption.watch import Watch

            self.preemption = Watch(planned, self.watch.grace_s, self.loop, self.say, self.on_preemption)
        self.loop.timers.append(self.preemption)

    def on_preemption(self, kind: str, what: str, left_s: float) -> bool:
        """This machine is to be taken back, or is not any more; return whether the processes end for it."""
        return self.respond(kind, what, left_s)

    def respond(self, kind: str, what: str, left_s: float, node: int | None = None) -> bool:
        """Do here what is to be done when a machine of the job is taken back: ours, or another node's."""
        if self.response is None:
            from launcher.preemption.response import Response

            self.response = Response(self)
        return self.response.on_event(kind, what, left_s, node)

    @property
    def is_preempted(self) -> bool:
        """Whether the processes were told to end because a machine is taken back."""
        return self.response is not None and self.response.has_begun

    @property
    def deadline_file(self) -> str | None:
        """Path of the file in which the processes find until when; None where there is no folder."""
        return None if self.folder.path is None else f"{self.folder.path}/deadline.json"

    # --- the end

    def finish(self) -> int:
        """Say how it ended, and return the status."""
        self.tell_logs()
        survivors = self.find_survivors()
        first = self.first
        if self.response is not None and self.response.has_begun:
            return self.response.finish()
        if first is None and survivors:
            self.say(f"{len(survivors)} survive SIGKILL: {'; '.join(map(describe, survivors[:20]))}")
            return 128 + signal.SIGKILL
        if first is None:
            return self.end_of_stall()
        self.loop.guard(lambda: self.report(first, survivors))
        return self.find_status(first)

    def tell_logs(self) -> None:
        """Say where the logs are, if there are some."""
        if self.folder.keeps and self.folder.path is not None:
            self.say(f"logs: {self.folder.path}")

    def find_survivors(self) -> list[int]:
        """Return who is still there after SIGKILL; the kernel holds them (D state)."""
        leaders = self.stopper.leaders() if self.stopper.gave_up else []
        return [*leaders, *find_descendants(leaders)]

    def end_of_stall(self) -> int:
        """Nobody has failed, but a job that was ended because it hung has not succeeded."""
        if self.mismatch is not None:
            self.say(f"ended as a failure: {self.mismatch[0]}")
            return HardwareMissing.exit_status
        if self.stalled is None:
            return 0
        self.say(f"ended as a failure: {self.stalled}")
        return STALLED

    def report(self, first: Process, survivors: Sequence[int]) -> None:
        """Give the verdict."""
        verdict = self.find_verdict(first, survivors)
        if verdict is not None:
            # At a terminal of its own the reason stands right above, in the process's words.
            typed = self.shares_terminal and not first.child.called and (first.code or 0) > 0
            self.publish(verdict, shown=not typed)

    def find_verdict(self, first: Process, survivors: Sequence[int]) -> Verdict | None:
        """Return the verdict on the processes of this node; None where nobody has failed."""
        from launcher.run.report import judge

        return judge(self, first, survivors)

    def publish(self, verdict: Verdict, *, shown: bool) -> None:
        """Say the verdict where people and platforms look for it."""
        from launcher.run.report import publish

        publish(verdict, self.output, self.watch, self.environ, shown=shown)
