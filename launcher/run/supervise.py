"""Start the processes of this node, watch them, and end with the status of the first that failed.

One loop waits for everything: signals (blocked, read from a descriptor), the end of each process (a
pidfd), their output, and points in time. There are no handlers, so nothing is interrupted, and from
the first fork on no fault of ours ends the job.
"""

from __future__ import annotations

import os
import time

from launcher.errors import EXIT_BUG, LauncherError, NotReady, Problem
from launcher.frozen import frozen
from launcher.host import Host
from launcher.model import Supervision
from launcher.run.execute import find_program, refusal
from launcher.run.family import describe, find_descendants
from launcher.run.folder import ERROR_FILE, STACKS_FILE, RunFolder
from launcher.run.guardian import MARK, Guardian
from launcher.run.kernel import become_subreaper, read_signals
from launcher.run.loop import Later, Loop
from launcher.run.output import Output
from launcher.run.sig import signal
from launcher.run.signals import ENDING, SI_KERNEL, Watched, name_signal
from launcher.run.spawn import Child, Refusals, start
from launcher.run.stopping import Stopper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.run.counters import Counters
    from launcher.run.progress import Progress
    from launcher.run.stall import Stall
    from launcher.run.verdict import Death

RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"
CPU_LIMIT = 8192
"""More than the kernel numbers (NR_CPUS); numbers may have holes, so the count says nothing."""
REAPED_AT_ONCE = 100
STATUS_AFTER_S = 1.0
"""On a terminal a status line appears after this."""
SILENCE_AFTER_S = 59.0
"""In a log nothing is said about progress before this."""
TWICE_S = 2.0
"""Two Ctrl-C within this time are one request to end now."""
UNGUARDED = "what the processes start outlives the launcher if that is killed by SIGKILL"
STALLED = 1
"""Our status where a stalled job was ended and all of its processes say 0."""


@frozen
class Node:
    """Where we are, for messages and records."""

    node_rank: int | None = None
    world_size: int | None = None


class Process:
    """One process that was started.

    Attributes:
        code: As `os.waitstatus_to_exitcode` has it, None while it runs.
        ended_ns: When the kernel told of its end, nanoseconds since 1970.
        passed_on: The last signal that was passed on to it.
    """

    def __init__(self, child: Child, pid: int) -> None:
        self.child = child
        self.pid = pid
        self.pidfd: int | None = None
        self.code: int | None = None
        self.ended_ns = 0
        self.passed_on: int | None = None

    @property
    def status(self) -> int:
        """The status as a shell would say it; 0 while it runs."""
        code = self.code or 0
        return code if code >= 0 else 128 - code


def supervise(
    children: Sequence[Child],
    watch: Supervision,
    node: Node,
    environ: Mapping[str, str],
    *,
    widen_cpus: bool = False,
) -> int:
    """Run all children to their end and return the job's status.

    Args:
        children: The processes, by local rank.
        watch: How they are watched.
        node: Where we are.
        environ: Our own environment: TMPDIR, NO_COLOR, what names the platform.
        widen_cpus: Leave the CPUs that mpirun has bound us to.

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
    return Supervisor(children, paths, watch, node, environ).run()


class Supervisor:
    """The processes of this node, from the first fork to the last word."""

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
        become_subreaper()
        self.run_id = os.urandom(8).hex()
        # On a terminal a single process stays in our group: it may read what is typed, and gets
        # Ctrl-C from the terminal itself. Several get a group each, and hear of it from us.
        self.shares_terminal = len(children) == 1 and os.isatty(0)
        self.folder = RunFolder(watch.log_dir, self.run_id, node.node_rank, environ)
        self.loop = Loop(self.say)
        self.output = Output(watch, self.loop, environ, shares_terminal=self.shares_terminal)
        self.guardian: Guardian | None = None
        self.told: int | None = None
        self.attempt = 0
        self.more = self.news = False
        self.interrupted_at = -TWICE_S
        self.before: Counters | None = None
        self.after: Counters | None = None
        self.stalled: str | None = None
        self.progress: Progress | None = None
        self.stall: Stall | None = None
        self.loop.add(self.watched.fd, self.on_signals)

    def say(self, text: str) -> None:
        """Say something on standard error, between the lines of the processes."""
        self.output.say(text)

    def run(self) -> int:
        """Run until all has ended, as often as restarts allow."""
        try:
            while True:
                self.run_once()
                if self.first is None or self.told is not None or self.attempt >= self.watch.restarts:
                    break
                self.attempt += 1
                self.say(f"{self.name(self.first)} failed: restart {self.attempt} of {self.watch.restarts}")
            return self.finish()
        finally:
            if self.guardian is not None:
                self.guardian.dismiss()
            self.output.close()
            self.folder.remove()

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
            self.watch.grace_s, to_group=self.watch.signal_to == "group", spare=self.spared, say=self.say
        )
        self.loop.timers[:] = [self.stopper, self.output]
        self.started_ns = time.time_ns()
        self.start_all()
        self.loop.guard(self.start_watching)
        while (self.running or self.has_leftovers()) and not self.stopper.gave_up:
            self.loop.turn(wait=not self.more)
            self.loop.guard(self.look_after_orphans)
        self.end_watching()
        self.output.end_attempt()
        if self.refused is not None:
            raise self.refused

    def spared(self) -> tuple[int, ...]:
        """Our own children that are none of the job."""
        guardian = () if self.guardian is None or self.guardian.pid is None else (self.guardian.pid,)
        return guardian if self.stall is None else (*guardian, *self.stall.helpers())

    def start_all(self) -> None:
        """Fork everybody; whether each could exec arrives later, as events."""
        refusals = Refusals()
        self.loop.add(refusals.fd, lambda: self.on_refusals(refusals))
        try:
            for index, (child, path) in enumerate(zip(self.children, self.paths, strict=True)):
                self.start(index, child, path, refusals)
        except LauncherError as error:
            self.refuse(error)
        except OSError as error:
            self.refuse(cannot_start(error))
        refusals.close_writing()
        if self.refused is None:
            self.start_guardian()

    def start_guardian(self) -> None:
        """Have somebody who takes the job along should we be killed; it runs without, too."""
        try:
            self.guardian = self.guardian or Guardian(self.run_id, self.folder.remove)
            for process in self.processes:
                self.guardian.tell(process.pid)
        except OSError as error:
            self.say(f"no guardian ({error.strerror}): {UNGUARDED}")

    def start(self, index: int, child: Child, path: str, refusals: Refusals) -> None:
        """Start one process, and watch for its end."""
        streams = self.output.open(index, child, self.folder, self.attempt)
        own = frozen_environ(child, self.environment(child))
        own_group = not self.shares_terminal
        pid = start(index, own, path, streams, self.watched, refusals, own_group=own_group)
        self.output.started()
        process = Process(child, pid)
        self.processes.append(process)
        self.running[pid] = process
        if own_group:
            self.stopper.groups.add(pid)
        try:
            process.pidfd = os.pidfd_open(pid)
            self.loop.add(process.pidfd, lambda: self.on_end(process))
        except OSError:
            pass  # an old kernel or a strict seccomp profile: SIGCHLD tells us, in no exact order

    def environment(self, child: Child) -> dict[str, str]:
        """Return what a process gets from this very run."""
        settings = {MARK: self.run_id}
        folder = self.folder.of_process(self.attempt, child.local_rank)
        if folder is not None:
            settings[ERROR_FILE] = f"{folder}/error.json"
            settings[STACKS_FILE] = f"{folder}/stacks.txt"
        if self.watch.restarts:
            settings[RESTART_COUNT] = str(self.attempt)
            settings[MAX_RESTARTS] = str(self.watch.restarts)
        return settings

    def start_watching(self) -> None:
        """What can wait until the processes have been started: it is loaded meanwhile."""
        from launcher.run.counters import read_counters

        self.before = self.before or read_counters(Host())
        now = time.monotonic()
        if self.watch.progress is not False and self.output.sees_all:
            wait_s = STATUS_AFTER_S if self.output.screen.console.is_terminal else SILENCE_AFTER_S
            self.loop.timers.append(Later(now + wait_s, lambda: self.start_progress(now)))
        if self.watch.stall_timeout_s:
            wait_s = min(STATUS_AFTER_S, self.watch.stall_timeout_s / 10)
            self.loop.timers.append(Later(now + wait_s, lambda: self.start_stall(now)))

    def start_progress(self, started: float) -> None:
        """Begin to show that, and what, goes on."""
        from launcher.run.gauges import Gpus
        from launcher.run.progress import Progress

        self.progress = Progress(
            enabled=self.watch.progress,
            is_terminal=self.output.screen.console.is_terminal,
            started=started,
            count_up=lambda: len(self.running),
            last_output=lambda: self.output.last_s,
            show=self.output.show,
            notice=self.say,
            gpus=Gpus(self.environ.get("CUDA_VISIBLE_DEVICES")),
        )
        self.loop.timers.append(self.progress)

    def start_stall(self, started: float) -> None:
        """Begin to look for stalls."""
        from launcher.run.gauges import Gpus
        from launcher.run.stall import Stall

        self.stall = Stall(
            self.watch.stall_timeout_s,
            self.list_processes,
            lambda: self.output.last_s,
            self.say,
            self.stop_stalled if self.watch.on_stall == "stop" else None,
            self.folder.path,
            started=started,
            gpus=Gpus(self.environ.get("CUDA_VISIBLE_DEVICES")),
            world_size=self.node.world_size,
        )
        self.loop.timers.append(self.stall)

    def list_processes(self) -> list[tuple[int, int]]:
        """Return rank and pid of the processes that are to make progress."""
        if self.stopper.begun:
            return []
        return [(process.child.rank, pid) for pid, process in self.running.items()]

    def end_watching(self) -> None:
        """The processes are ending, or have ended: neither progress nor stalls are worth a word."""
        if self.stall is not None:
            self.folder.keeps = self.folder.keeps or bool(self.stall.reports)
            self.loop.guard(self.stall.close)
        if self.progress is not None:
            self.loop.guard(self.progress.close)
        self.stall = self.progress = None

    def stop_stalled(self, reason: str) -> None:
        """The job hangs, and is to end as a failure."""
        self.stalled = self.stalled or reason
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
            # SIGCHLD has only to wake us. EPIPE comes with a SIGPIPE from ourselves.
            if number != signal.SIGCHLD and sender != os.getpid():
                self.pass_on(number, from_terminal=code == SI_KERNEL)

    def on_end(self, process: Process) -> None:
        """The kernel's notice that a process has ended."""
        if process.code is not None:
            return
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
        self.ended.append(process)
        if process.status and self.first is None:
            self.first = process
            self.told_before = self.told
            self.loop.guard(self.look_at_counters)
            if not self.stopper.begun and self.refused is None:
                self.stop_others(process)
        self.news = True

    def look_at_counters(self) -> None:
        """Right after the first failure: the memory that it held is about to be freed."""
        from launcher.run.counters import read_counters

        self.after = read_counters(Host(), self.before)

    def stop_others(self, process: Process) -> None:
        """One has failed: the others would wait for it forever."""
        others = len(self.running)
        if others:
            self.say(f"{self.name(process)} {describe_end(process)}; stopping the other {others}")
            self.stopper.begin(signal.SIGTERM)

    def look_after_orphans(self) -> None:
        """Collect those who have ended, and tell those who became ours since that we are ending."""
        self.more = self.reap()
        if self.news:
            self.news = False
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
                self.news = True
                if self.guardian is not None and found.si_pid == self.guardian.pid:
                    self.guardian.lose()
                    self.say(f"somebody has killed the launcher's guardian: {UNGUARDED}")
        return True

    def note_lost(self) -> None:
        """No child is left: whoever is still thought to run was taken from us."""
        for process in list(self.running.values()):
            self.say(f"{self.name(process)}: somebody else has taken its status")
            process.code, process.ended_ns = EXIT_BUG, time.time_ns()
            del self.running[process.pid]
            self.ended.append(process)
            self.first = self.first or process

    def has_leftovers(self) -> bool:
        """Whether the job has left somebody behind; then that is ended too."""
        if not self.stopper.leaders():
            return False
        self.stopper.sweep()
        return True

    # --- signals

    def pass_on(self, number: int, *, from_terminal: bool) -> None:
        """Do with a signal what its sender wants to happen to the job."""
        reached = from_terminal and self.shares_terminal  # the terminal has told the process itself
        if number == signal.SIGHUP and os.getsid(0) == os.getpid():
            reached = False  # a hangup is for the session's leader alone, tty_signal_session_leader
        if number == signal.SIGTSTP and from_terminal:
            self.suspend(reached)
        elif number not in ENDING and self.translate(number) not in ENDING:
            self.tell_leaders(number, reached=reached, typed=from_terminal)
        elif reached and number == signal.SIGINT:
            self.interrupted()
        elif self.told is not None and number == signal.SIGINT and from_terminal:
            self.stopper.kill()  # a second Ctrl-C: now
        else:
            self.end_by(number, typed=from_terminal)

    def end_by(self, number: int, *, typed: bool) -> None:
        """We are asked to end: so are the processes, by the signal that they want to hear.

        What is typed goes to whole groups, as it does without us: a shell that waits for its child does
        nothing about a Ctrl-C that its child has not heard.
        """
        sent = self.translate(number)
        if self.told is None and self.running:
            now = "; again to end them now" if number == signal.SIGINT else ""
            to = "" if sent == number else f" as {name_signal(sent)}"
            count = f"{len(self.running)} process{'es' if len(self.running) > 1 else ''}"
            grace = f"{self.watch.grace_s:g} s until SIGKILL"
            self.say(f"{name_signal(number)}: passed on{to} to {count}, {grace}{now}")
        self.told = self.told or number
        self.stopper.begin(sent, to_group=typed)

    def interrupted(self) -> None:
        """Ctrl-C at the terminal of a single process, which has heard it, too.

        What that means is the process's to say: a prompt goes on. Whoever types it twice in a row means
        it, unless the process reads each key itself, as prompts and editors do.
        """
        now = time.monotonic()
        twice = now - self.interrupted_at < TWICE_S
        self.told, self.interrupted_at = signal.SIGINT, now
        for process in self.running.values():
            process.passed_on = signal.SIGINT
        if twice and not reads_keys(0):
            self.stopper.kill()

    def translate(self, number: int) -> int:
        """Return what is sent where a signal arrives."""
        return dict(self.watch.signal_map).get(number, number)

    def tell_leaders(self, number: int, *, reached: bool, typed: bool) -> None:
        """Pass a signal on that does not ask us to end."""
        sent = self.translate(number)
        for process in self.running.values():
            process.passed_on = sent
        if not reached:
            whole = typed or self.watch.signal_to == "group" or number == signal.SIGCONT
            for pid in self.running:
                kill(-pid if whole and not self.shares_terminal else pid, sent)

    def suspend(self, reached: bool) -> None:
        """Ctrl-Z: the processes stop, and so do we, as the shell expects."""
        if not reached:
            for pid in self.running:
                kill(-pid, signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGSTOP)

    # --- the end

    def finish(self) -> int:
        """Say how it ended, and return the status."""
        if self.folder.keeps and self.folder.path is not None:
            self.say(f"logs: {self.folder.path}")
        survivors = self.find_survivors()
        first = self.first
        if first is None and survivors:
            self.say(f"{len(survivors)} survive SIGKILL: {'; '.join(map(describe, survivors[:20]))}")
            return 128 + signal.SIGKILL
        if first is None:
            return self.end_of_stall()
        self.loop.guard(lambda: self.report(first, survivors))
        return first.status

    def find_survivors(self) -> list[int]:
        """Return who is still there after SIGKILL; the kernel holds them (D state)."""
        leaders = self.stopper.leaders() if self.stopper.gave_up else []
        return [*leaders, *find_descendants(leaders)]

    def end_of_stall(self) -> int:
        """Nobody has failed, but a job that was ended because it hung has not succeeded."""
        if self.stalled is None:
            return 0
        self.say(f"ended as a failure: {self.stalled}")
        return STALLED

    def report(self, first: Process, survivors: Sequence[int]) -> None:
        """Give the verdict."""
        from launcher.run.report import report_failure

        told = name_signal(self.told_before) if self.told_before is not None else None
        report_failure(
            self.death(first),
            [self.death(process) for process in self.ended if process is not first],
            before=self.before,
            after=self.after,
            output=self.output,
            watch=self.watch,
            environ=self.environ,
            survivors=survivors,
            node_rank=self.node.node_rank,
            world_size=self.node.world_size,
            attempt=self.attempt,
            started_ns=self.started_ns,
            told=told,
            reason=self.stalled,
        )

    def death(self, process: Process) -> Death:
        """Return what is known about the end of a process."""
        from launcher.run.verdict import Death

        child = process.child
        folder = self.folder.of_process(self.attempt, child.local_rank)
        return Death(
            rank=child.rank,
            local_rank=child.local_rank,
            pid=process.pid,
            code=process.code or 0,
            ended_ns=process.ended_ns,
            stderr=self.output.read_errors(self.processes.index(process)),
            error_file=None if folder is None else f"{folder}/error.json",
            asked=process.passed_on,
        )

    def name(self, process: Process) -> str:
        """Return how messages call a process."""
        return f"rank {process.child.rank} (pid {process.pid})"


def frozen_environ(child: Child, settings: Mapping[str, str]) -> Child:
    """Return the child with a few more variables."""
    environ = {**child.environ, **settings}
    return Child(child.rank, child.local_rank, child.argv, environ, child.route, child.cpus)


def describe_end(process: Process) -> str:
    """Return how a process has ended, in words."""
    code = process.code or 0
    return f"exited with status {code}" if code >= 0 else f"was ended by {name_signal(-code)}"


def reads_keys(fd: int) -> bool:
    """Whether the program at a terminal has asked for each key instead of lines."""
    import termios

    try:
        return not termios.tcgetattr(fd)[3] & termios.ICANON
    except termios.error:
        return False


def cannot_start(error: OSError) -> NotReady:
    """Return why the kernel gives us no more processes or descriptors."""
    fix = "raise the limit that is reached: ulimit -u, ulimit -n, pids.max of the container"
    return NotReady(Problem("cannot-start", f"cannot start a process: {error.strerror}", "this node", fix))


def kill(pid: int, number: int) -> None:
    """Send a signal to a process or, negative, to a group; nothing if it is gone."""
    try:  # noqa: SIM105 - contextlib would be one more module on the launch path
        os.kill(pid, number)
    except OSError:
        pass
