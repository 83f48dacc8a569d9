"""Start the processes of this node, watch them, and end with the status of the first that failed.

One loop waits for everything: signals (blocked, read from a descriptor), the end of each process (a
pidfd), their output, and points in time. There are no handlers, so nothing is interrupted, and from
the first fork on no fault of ours ends the job.
"""

from __future__ import annotations

import gc
import os
import time

from launcher.errors import EXIT_BUG, HardwareMissing, LauncherError, NotReady, Problem
from launcher.frozen import frozen
from launcher.model import Supervision
from launcher.run.execute import CPU_LIMIT, find_program, refusal
from launcher.run.family import describe, find_children, find_descendants
from launcher.run.folder import ERROR_FILE, NCCL_FILE, STACKS_FILE, RunFolder
from launcher.run.guardian import MARK, Guardian, mark_of
from launcher.run.kernel import become_subreaper, read_signals
from launcher.run.loop import Later, Loop
from launcher.run.output import Output
from launcher.run.process import Process
from launcher.run.relay import Relay
from launcher.run.sig import signal
from launcher.run.signals import SI_KERNEL, Watched, name_signal
from launcher.run.spawn import Child, Inherited, Refusals, Streams, change_environ, start
from launcher.run.stopping import Stopper
from launcher.run.watching import Watching

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.run.checking import Checking
    from launcher.run.spawn import Changes
    from launcher.run.verdict import Verdict


FILES = {ERROR_FILE: "error.json", STACKS_FILE: "stacks.txt"}
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"
REAPED_AT_ONCE = 100
STARTED_AT_ONCE = 32
"""Both ends of the pipes of so many are open at a time: the limit of open files is not for us alone."""
UNGUARDED = "what the processes start outlives the launcher if that is killed by SIGKILL"
STALLED = 1
"""Our status where a stalled job was ended and all of its processes say 0."""


@frozen
class Node:
    """Where we are, for messages and records."""

    node_rank: int | None = None
    world_size: int | None = None


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
    supervisor.checks = checks
    return supervisor.run()


class Supervisor:
    """The processes of this node, from the first fork to the last word.

    Attributes:
        may_share_terminal: Whether a single process is what the user types to.
        log_id: What the folder of the logs is called after, if not after this run.
        checks: See `supervise`.
    """

    may_share_terminal = True
    log_id = ""
    checks: Callable[[], Sequence[str]] | None = None

    def __init__(
        self,
        children: Sequence[Child],
        paths: Sequence[str],
        watch: Supervision,
        node: Node,
        environ: Mapping[str, str],
    ) -> None:
        self.children, self.paths, self.watch, self.node, self.environ = children, paths, watch, node, environ
        self.watched = Watched()
        # A script that calls exec leaves us its children: tee, a sidecar. They are none of the job.
        self.inherited = set(find_children(os.getpid()))
        become_subreaper()
        self.run_id = os.urandom(8).hex()
        # On a terminal a single process stays in our group: it may read what is typed, and gets
        # Ctrl-C from the terminal itself. Several get a group each, and hear of it from us.
        self.shares_terminal = self.may_share_terminal and len(children) == 1 and os.isatty(0)
        self.folder = RunFolder(watch.log_dir, self.log_id or self.run_id, node.node_rank, environ)
        self.loop = Loop(self.say)
        self.output = Output(
            watch, self.loop, environ, several=len(children) > 1, shares_terminal=self.shares_terminal
        )
        self.guardian: Guardian | None = None
        self.checking: Checking | None = None
        self.relay = self.make_relay()
        self.watching: Watching | None = None
        self.attempt = 0
        self.more = self.news = False
        self.has_ends = True  # an orphan may have ended before we could hear of it
        self.stalled: str | None = None
        self.mismatch: tuple[str, str] | None = None
        self.nccl_path: str | None = None
        self.has_ranks = not all(child.companion for child in children)
        self.loop.add(self.watched.fd, self.on_signals)

    def make_relay(self) -> Relay:
        """Return what decides what a signal means for the job."""
        return Relay(self.watch, shares_terminal=self.shares_terminal, say=self.say)

    def say(self, text: str) -> None:
        """Say something on standard error, between the lines of the processes."""
        self.output.say(text)

    def run(self) -> int:
        """Run until all has ended, as often as restarts allow."""
        try:
            while True:
                self.run_once()
                if self.first is None or self.relay.told is not None or self.attempt >= self.watch.restarts:
                    break
                if self.mismatch is not None:
                    break
                self.attempt += 1
                self.say(
                    f"{self.first.name} {self.first.end}: restart {self.attempt} of {self.watch.restarts}"
                )
            if self.checking is not None:
                self.loop.guard(self.checking.end)
            return self.finish()
        finally:
            self.output.close()
            self.folder.remove()
            if self.checking is not None:
                self.checking.reap()
            if self.guardian is not None:  # last: who is killed while ending leaves nothing either
                self.guardian.dismiss()

    # --- start

    def run_once(self) -> None:
        """One attempt: start everything, and wait until everything has ended."""
        self.processes: list[Process] = []
        self.running: dict[int, Process] = {}
        self.ended: list[Process] = []
        self.first: Process | None = None
        self.told_before: int | None = None
        self.refused: LauncherError | None = None
        self.stopper = Stopper(
            self.watch.grace_s,
            to_group=self.watch.signal_to == "group",
            spare=self.spared,
            say=self.say,
        )
        self.relay.attach(self.stopper, self.running)
        before = None if self.watching is None else self.watching.before
        self.watching = watching = Watching(
            self.watch, self.loop, self.output, self.environ, self.running, before
        )
        self.loop.timers[:] = [self.stopper, self.output, self.relay]
        self.started_ns = time.time_ns()
        self.start_all()
        gc.enable()
        self.loop.guard(
            lambda: watching.begin(
                self.stop_stalled, lambda: self.stopper.begun, self.folder.path, self.node.world_size
            )
        )
        self.loop.guard(self.check_beside)
        self.loop.guard(lambda: watching.listen(self.nccl_path, self.stop_unproven, keeps=self.folder.keeps))
        while (self.running or self.has_leftovers()) and not self.stopper.gave_up:
            self.loop.turn(wait=not self.more)
            self.loop.guard(self.look_after_orphans)
        self.loop.guard(watching.end)
        self.folder.keeps = self.folder.keeps or bool(watching.stall_reports)
        self.output.end_attempt()
        if self.refused is not None:
            raise self.refused

    def spared(self) -> tuple[int, ...]:
        """Our own children that are none of the job."""
        guardian = () if self.guardian is None or self.guardian.pid is None else (self.guardian.pid,)
        helpers = () if self.watching is None else self.watching.helpers()
        checking = () if self.checking is None or self.checking.pid is None else (self.checking.pid,)
        return (*guardian, *helpers, *checking, *self.inherited)

    def start_all(self) -> None:
        """Fork everybody; whether each could exec arrives later, as events."""
        refusals = Refusals()
        self.loop.add(refusals.fd, lambda: self.on_refusals(refusals))
        try:
            for first in range(0, len(self.children), STARTED_AT_ONCE):
                self.start_some(range(len(self.children))[first : first + STARTED_AT_ONCE], refusals)
        except LauncherError as error:
            self.refuse(error)
        except OSError as error:
            self.refuse(cannot_start(error))
        refusals.close_writing()
        if self.refused is None:
            self.start_guardian()

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

    def start_guardian(self) -> None:
        """Have somebody who takes the job along should we be killed; it runs without, too."""
        try:
            self.guardian = self.guardian or Guardian(self.run_id, self.remove_traces)
            for process in self.processes:
                self.guardian.tell(process.pid)
        except OSError as error:
            self.say(f"no guardian ({error.strerror}): {UNGUARDED}")

    def remove_traces(self) -> None:
        """Remove what is ours alone; what the guardian does for a launcher that was killed."""
        self.folder.remove()

    def start_some(self, indices: Sequence[int], refusals: Refusals) -> None:
        """Start a few processes, and watch for their end.

        Nothing but forks between the first and the last: what we write to in between is a page that
        the kernel has to copy, and the processes compete with us for the CPUs.
        """
        own_group = not self.shares_terminal
        inherited = Inherited(os.environ)
        ready = [(index, *self.prepare(index, inherited)) for index in indices]
        back = inherited.plan_own()
        started = []
        try:
            for index, child, streams, changes in ready:
                change_environ(changes)
                pid = start(
                    index, child, self.paths[index], streams, self.watched, refusals, own_group=own_group
                )
                started.append((child, pid))
        finally:
            change_environ(back)
            self.output.started()
            for child, pid in started:
                self.watch_process(Process(child, pid, child.environ.get(ERROR_FILE)), own_group)

    def prepare(self, index: int, inherited: Inherited) -> tuple[Child, Streams, Changes]:
        """Return a process as it is to be started, its standard streams, and changes of our environment."""
        child = self.children[index]
        streams = self.output.open(index, child, self.folder, self.attempt)
        child = with_settings(child, self.environment(child))
        return child, streams, inherited.plan(child.environ)

    def watch_process(self, process: Process, own_group: bool) -> None:
        """Watch for the end of a process that was started."""
        pid = process.pid
        self.processes.append(process)
        self.running[pid] = process
        self.stopper.started.add(pid)
        if own_group:
            self.stopper.groups.add(pid)
        try:
            process.pidfd = os.pidfd_open(pid)
            self.loop.add(process.pidfd, lambda: self.on_end(process))
        except OSError:
            pass  # an old kernel or a strict seccomp profile: SIGCHLD tells us, in no exact order

    def environment(self, child: Child) -> dict[str, str]:
        """Return what a process gets from this very run."""
        settings = {MARK: mark_of(self.run_id, self.environ)}
        for name, file in FILES.items():
            path = self.folder.file(self.attempt, child.folder, file)
            if path is not None:
                settings[name] = path
        if self.watch.restarts:
            settings[RESTART_COUNT] = str(self.attempt)
            settings[MAX_RESTARTS] = str(self.watch.restarts)
        return settings | self.plan_witness(child)

    def plan_witness(self, child: Child) -> dict[str, str]:
        """Return what makes rank 0's NCCL write where we read, if it is to be heard."""
        proof = self.watch.proof
        if proof is None or child.rank:
            return {}
        self.nccl_path = self.folder.make_file(self.attempt, child.folder, "nccl.log")
        if self.nccl_path is None:
            self.say("the fabric is not verified: there is no folder for what NCCL writes")
            return {}
        return {**dict(proof.settings), NCCL_FILE: self.nccl_path}

    def stop_stalled(self, reason: str) -> None:
        """The job hangs, and is to end as a failure."""
        self.stalled = self.stalled or reason
        self.stopper.begin(signal.SIGTERM)

    def stop_unproven(self, reason: str, fix: str) -> None:
        """NCCL uses another network than the one that must be used: the job is to end as a failure."""
        self.mismatch = self.mismatch or (reason, fix)
        self.say(f"not the fabric that is required, the job ends: {reason}; fix: {fix}")
        self.stopper.begin(signal.SIGTERM)

    # --- events

    def on_refusals(self, refusals: Refusals) -> None:
        """A process could not exec: nothing of this job is worth keeping."""
        found, complete = refusals.read()
        for index, number in found:
            error = OSError(number, os.strerror(number))
            self.refuse(refusal(self.children[index].argv[0], error))
        if complete:
            self.loop.remove(refusals.fd)
            os.close(refusals.fd)

    def refuse(self, error: LauncherError) -> None:
        """Not all processes can be started: end those that are."""
        self.refused = self.refused or error
        self.stopper.kill()

    def on_signals(self) -> None:
        """Signals have arrived."""
        for number, code, sender in read_signals(self.watched.fd):
            # EPIPE comes with a SIGPIPE from ourselves.
            self.has_ends = self.has_ends or number == signal.SIGCHLD
            if number != signal.SIGCHLD and sender != os.getpid():
                self.relay.pass_on(number, from_terminal=code == SI_KERNEL)

    def on_end(self, process: Process) -> None:
        """The kernel's notice that a process has ended."""
        if process.code is not None:
            return
        self.has_ends = True  # it stood before orphans that have ended, too
        process.ended_ns = process.ended_ns or time.time_ns()
        pid, status = os.waitpid(process.pid, os.WNOHANG)
        if process.pidfd is not None:
            self.loop.remove(process.pidfd)
            os.close(process.pidfd)
            process.pidfd = None
        if not pid:
            return  # a debugger has its status, and SIGCHLD tells us when we may have it
        process.code = os.waitstatus_to_exitcode(status)
        process.passed_on = self.stopper.told.get(process.pid, process.passed_on)
        del self.running[process.pid]
        self.stopper.started.discard(process.pid)
        self.ended.append(process)
        if process.status and self.first is None and not (process.child.companion and self.ranks_have_ended):
            self.first = process
            self.relay.note_end()
            self.told_before = self.relay.told
            if self.watching is not None:
                self.loop.guard(self.watching.note_failure)
            if not self.stopper.begun and self.refused is None:
                self.stop_others(process)
        if self.ranks_have_ended and not self.stopper.begun:
            self.end_companions(asked=not process.child.companion)
        self.news = True

    @property
    def ranks_have_ended(self) -> bool:
        """Whether all ranks of this node have ended; what becomes of their companions does not count then."""
        return self.has_ranks and all(process.child.companion for process in self.running.values())

    def end_companions(self, *, asked: bool = False) -> None:
        """The ranks have ended: tell their companions to, but leave those time that end by themselves.

        Args:
            asked: The last rank has just ended, and the time begins.
        """
        if any(process.child.finishes for process in self.running.values()):
            if asked:
                due = time.monotonic() + self.watch.grace_s
                self.loop.timers.append(Later(due, self.stop_companions))
        elif self.running:
            self.stopper.begin(signal.SIGTERM)

    def stop_companions(self) -> None:
        """The time is over of companions that end by themselves."""
        if self.running and not self.stopper.begun:
            names = ", ".join(process.name for process in self.running.values())
            self.say(f"{names}: still there {self.watch.grace_s:g} s after the last rank; SIGTERM")
            self.stopper.begin(signal.SIGTERM)

    def stop_others(self, process: Process) -> None:
        """One has failed: the others would wait for it forever."""
        others = len(self.running)
        if others:
            self.say(f"{process.name} {process.end}; stopping the other {others}")
            self.stopper.begin(signal.SIGTERM)

    def look_after_orphans(self) -> None:
        """Collect those who have ended, and tell those who became ours since that we are ending."""
        if self.has_ends:
            self.has_ends = False
            self.more = self.has_ends = self.reap()
        if self.news:
            self.news = False
            for group in self.stopper.forget_groups():
                if self.guardian is not None:
                    self.guardian.forget(group)
            self.stopper.tell_new()

    def reap(self) -> bool:
        """Collect orphans that have ended; return whether there may be more.

        Not all at once: whoever forks faster than we collect must not keep us from the clock.
        """
        for _ in range(REAPED_AT_ONCE):
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                self.note_lost()
                return False
            process = None if found is None else self.running.get(found.si_pid)
            if found is None or (process is not None and process.pidfd is not None):
                return False  # its pidfd comes in its turn, and then we look again
            if process is not None:
                self.on_end(process)
            else:
                os.waitpid(found.si_pid, 0)
                self.inherited.discard(found.si_pid)
                self.news = True
                if self.checking is not None and found.si_pid == self.checking.pid:
                    self.checking.pid = None
                if self.guardian is not None and found.si_pid == self.guardian.pid:
                    self.guardian.lose()
                    self.say(f"somebody has killed the launcher's guardian: {UNGUARDED}")
        return True

    def note_lost(self) -> None:
        """No child is left: whoever is still thought to run was taken from us."""
        for process in list(self.running.values()):
            self.say(f"{process.name}: somebody else has taken its status")
            process.code, process.ended_ns = EXIT_BUG, time.time_ns()
            del self.running[process.pid]
            self.stopper.started.discard(process.pid)
            self.ended.append(process)
            self.first = self.first or process

    def has_leftovers(self) -> bool:
        """Whether the job has left somebody behind; then that is ended too."""
        if not self.stopper.leaders():
            return False
        self.stopper.sweep()
        return True

    # --- the end

    def finish(self) -> int:
        """Say how it ended, and return the status."""
        self.tell_logs()
        survivors = self.find_survivors()
        first = self.first
        if first is None and survivors:
            self.say(f"{len(survivors)} survive SIGKILL: {'; '.join(map(describe, survivors[:20]))}")
            return 128 + signal.SIGKILL
        if first is None:
            return self.end_of_stall()
        self.loop.guard(lambda: self.report(first, survivors))
        return first.status if self.mismatch is None else HardwareMissing.exit_status

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
        from launcher.run.report import judge

        ends = [first, *(process for process in self.ended if process is not first)]
        deaths = [one.death(self.output.read_errors(self.processes.index(one))) for one in ends]
        is_agent = bool(first.child.called) and not first.child.companion
        if is_agent:
            self.say(f"{first.name} {first.end}")
            from launcher.run.root_cause import read_root_cause

            if self.told_before is not None:
                return  # its own traceback is about the signal, and nobody has failed
            deaths = [read_root_cause(deaths[0]) or deaths[0]]
        told = name_signal(self.told_before) if self.told_before is not None else None
        verdict = judge(
            deaths[0],
            deaths[1:],
            before=None if self.watching is None else self.watching.before,
            after=None if self.watching is None else self.watching.after,
            survivors=survivors,
            node_rank=self.node.node_rank,
            world_size=self.node.world_size,
            attempt=self.attempt,
            started_ns=self.started_ns,
            told=told,
            reason=self.stalled,
            mismatch=self.mismatch,
        )
        # At a terminal of its own the reason stands right above, in the process's words.
        self.publish(verdict, shown=not (self.shares_terminal and not is_agent and (first.code or 0) > 0))

    def publish(self, verdict: Verdict, *, shown: bool) -> None:
        """Say the verdict where people and platforms look for it."""
        from launcher.run.report import publish

        publish(verdict, self.output, self.watch, self.environ, shown=shown)


def with_settings(child: Child, settings: Mapping[str, str]) -> Child:
    """Return the child with a few more variables."""
    return Child(**{**vars(child), "environ": {**child.environ, **settings}})


def cannot_start(error: OSError) -> NotReady:
    """Return why the kernel gives us no more processes or descriptors."""
    fix = "raise the limit that is reached: ulimit -u, ulimit -n, pids.max of the container"
    return NotReady(Problem("cannot-start", f"cannot start a process: {error.strerror}", "this node", fix))
