"""The processes of one attempt: starts, watches and stops them, and cleans up what they leave behind."""

from __future__ import annotations

import os
import time
from errno import EAGAIN

from launcher.core.errors import EXIT_BUG, LauncherError, attempt
from launcher.machine.process import describe_some, find_children, find_descendants
from launcher.process.execute import refusal
from launcher.process.helper import Helpers
from launcher.process.kernel import FULL, become_subreaper, collect, has_children
from launcher.process.signal_file import OF_TERMINAL
from launcher.process.spawn import (
    ExecErrors,
    Inherited,
    Process,
    cannot_start,
    change_environ,
    start,
)
from launcher.process.stop import Stopper
from launcher.process.watchdog import Watchdog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence
    from typing import Protocol

    from launcher.core.log import Say
    from launcher.process.loop import Loop
    from launcher.process.signal_file import SignalFile
    from launcher.process.spawn import Child, Streams

    class Forker(Protocol):
        """Forks ranks: `launcher.agent.template`."""

        def takes(self, child: Child) -> bool:
            """Whether a process can be a fork."""

        def fork(self, ready: Sequence[tuple[Child, Streams]]) -> list[int]:
            """Return the pids of forks, which wait for `release`; none if they must be started as ever."""

        def release(self, count: int) -> None:
            """Let the forks run."""


REAPED_AT_ONCE = 100
DESCRIBED_MAX = 20
STARTED_AT_ONCE = 32
"""Number of processes whose pipes have both ends open at a time, because of the limit of open files."""
UNGUARDED = "child processes outlive the launcher if it is killed by SIGKILL"


class ProcessGroup:
    """The children of the launcher that belong to the job, from the fork to the last orphan.

    Attributes:
        children: The processes to start.
        processes: All processes that this attempt has started, in start order.
        running: Those that have not ended, by pid.
        ended: Those that have ended, in the kernel's order.
        refused: The reason why not all could be started; None if there is none.
        stopper: Stops the processes.
        helpers: Children of ours outside the job, which do work that would block the loop.
        template: Forks the ranks if that was asked for; None to start each by itself.
        watchdog: Kills the processes if the launcher is killed; None before the start, or if it cannot start.
        has_more: Whether there may be more orphans to reap at once.
    """

    def __init__(
        self,
        loop: Loop,
        signals: SignalFile,
        say: Say,
        *,
        prepare: Callable[[int, Child], tuple[Child, Streams]],
        note_started: Callable[[], None],
        on_exit: Callable[[Process], None],
        on_stopped: Callable[[Process, int], None],
        before_kill: Callable[[], None],
        list_helpers: Callable[[], Iterable[int]],
        grace_s: float,
        to_group: bool,
    ) -> None:
        """Prepare; start nothing.

        Args:
            loop: Waits for the processes to end.
            signals: Holds the signal mask that processes get back.
            say: Prints one line.
            prepare: Returns a process as it is to be started, and its standard streams, from its index.
            note_started: Notes that the processes prepared last were forked and have their streams.
            on_exit: Handles the exit of a process.
            on_stopped: Handles a process that the terminal has stopped, by SIGTTIN or SIGTTOU.
            before_kill: Does what must be done before the processes get SIGKILL at the end of the grace.
            list_helpers: Returns the PIDs of our other children that are not processes of the job.
            grace_s: Seconds between the first signal and SIGKILL.
            to_group: Whether signals go to whole process groups.
        """
        # A script that calls exec leaves us its children: tee, a sidecar. They do not belong to the job.
        self.inherited = set(find_children(os.getpid()))
        become_subreaper()
        # Supervision needs these two calls: if they are refused, fail before there is a process
        has_children()
        os.kill(os.getpid(), 0)
        self.children: Sequence[Child] = ()
        self.processes: list[Process] = []
        self.running: dict[int, Process] = {}
        self.ended: list[Process] = []
        self.refused: LauncherError | None = None
        self.watchdog: Watchdog | None = None
        self._make_watchdog: Callable[[], Watchdog] | None = None
        self.helpers = Helpers(loop)
        self.template: Forker | None = None
        self.has_more = False
        self._paths: Sequence[str] = ()
        self._loop, self._signals, self._say = loop, signals, say
        self._prepare, self._note_started, self._on_exit = prepare, note_started, on_exit
        self._on_stopped, self._before_kill, self._list_helpers = on_stopped, before_kill, list_helpers
        self._grace_s, self._to_group = grace_s, to_group
        self._has_news = False
        self._has_ends = True  # an orphan may have ended before we watched for SIGCHLD
        self.stopper = self._make_stopper()

    def take(self, children: Sequence[Child], paths: Sequence[str]) -> None:
        """Take the processes to start, and the paths of their programs."""
        self.children, self._paths = children, paths

    def _make_stopper(self) -> Stopper:
        return Stopper(
            self._grace_s, self._loop, to_group=self._to_group, spare=self._spared,
            before_kill=self._before_kill, say=self._say,
        )  # fmt: skip

    def _spared(self) -> tuple[int, ...]:
        """Return the pids of our own children that do not belong to the job."""
        watchdog = () if self.watchdog is None or self.watchdog.pid is None else (self.watchdog.pid,)
        return (*watchdog, *self.inherited, *self.helpers.pids, *self._list_helpers())

    # --- start

    def begin_attempt(self) -> None:
        """Forget the previous attempt, and prepare to start all processes."""
        self.processes, self.running, self.ended = [], {}, []
        self.refused = None
        self.stopper = self._make_stopper()

    def start(self) -> None:
        """Fork all processes; errors of exec arrive later, as events."""
        errors = ExecErrors()
        self._loop.add(errors.fd, lambda: self._on_exec_errors(errors))
        try:
            for first in range(0, len(self.children), STARTED_AT_ONCE):
                self._start_some(range(len(self.children))[first : first + STARTED_AT_ONCE], errors)
        except LauncherError as error:
            self.refuse(error)
        except OSError as error:
            self.refuse(self._explain(error))
        errors.close_writing()

    def _explain(self, error: OSError) -> LauncherError:
        if error.errno in FULL:  # no further module can be loaded
            return cannot_start(error)
        from launcher.process.refused import explain

        return explain(error) or cannot_start(error)

    def _start_some(self, indices: Sequence[int], errors: ExecErrors) -> None:
        """Start a few processes, and watch for their end.

        Between the first and the last fork there is nothing but forks: the kernel must copy each page that we
        write to in between, and the new processes compete with us for the CPUs.
        """
        inherited = Inherited(os.environ)
        ready = []
        for index in indices:
            child, streams = self._prepare(index, self.children[index])
            ready.append((index, child, streams, inherited.plan(child.environ)))
        back = inherited.plan_own()
        forked = self._fork([(index, child, streams) for index, child, streams, _ in ready])
        started = []
        try:
            for index, child, streams, changes in ready:
                change_environ(changes)
                pid = forked.get(index)
                if pid is None:
                    pid = self._start_one(index, child, streams, errors)
                started.append((child, pid, streams.has_terminal))
        finally:
            change_environ(back)
            self._note_started()
            for child, pid, has_terminal in started:
                self._watch(Process(child, pid, has_terminal=has_terminal))
            if self.template is not None:
                self.template.release(len(forked))

    def _start_one(self, index: int, child: Child, streams: Streams, errors: ExecErrors) -> int:
        """Start a process; if the kernel has no more, replace the watchdog with it."""
        path, watchdog = self._paths[index], self.watchdog
        try:
            return start(index, child, path, streams, self._signals, errors)
        except OSError as error:
            if error.errno != EAGAIN or watchdog is None or watchdog.pid is None:
                raise
            self.watchdog = self._make_watchdog = None
            watchdog.dismiss()
            self._say_unguarded(error)
        return start(index, child, path, streams, self._signals, errors)

    def _say_unguarded(self, error: OSError) -> None:
        self._say(f"no watchdog ({error.strerror}): {UNGUARDED}", "no-watchdog")

    def _fork(self, ready: Sequence[tuple[int, Child, Streams]]) -> dict[int, int]:
        """Return the pid of each process that the template has forked, by its index."""
        if self.template is None:
            return {}
        taken = [(index, child, streams) for index, child, streams in ready if self.template.takes(child)]
        pids = self.template.fork([one[1:] for one in taken]) if taken else []
        return dict(zip((index for index, _, _ in taken), pids, strict=False))

    def _watch(self, process: Process) -> None:
        """Watch for the end of a process that was started."""
        pid = process.pid
        self.processes.append(process)
        self.running[pid] = process
        self.stopper.started.add(pid)
        if process.child.called and not process.child.companion:
            self.stopper.agents.add(pid)
        if not process.has_terminal:
            self.stopper.groups.add(pid)
        if self.watchdog is not None:
            self.watchdog.tell(pid)
        try:
            process.pidfd = os.pidfd_open(pid)
            self._loop.add(process.pidfd, lambda: self.on_end(process))
        except OSError:
            pass  # an old kernel or a strict seccomp profile: SIGCHLD reports the end, in no exact order

    def start_watchdog(
        self, run_id: str | None, clean_up: Callable[[bool], None], lease_until: float | None = None
    ) -> None:
        """Start the process that kills the others if the launcher is killed; the job runs without it, too.

        Args:
            run_id: See `Watchdog`.
            clean_up: See `Watchdog`.
            lease_until: When it also kills them if the launcher stands still; None for never.
        """
        self._make_watchdog = lambda: Watchdog(run_id, clean_up, has_lease=lease_until is not None)
        try:
            self.watchdog = self.watchdog or self._make_watchdog()
            if lease_until is not None:
                self.watchdog.renew(lease_until)
        except OSError as error:
            self._say_unguarded(error)

    def _replace_watchdog(self) -> None:
        """Start another watchdog in place of one that was killed, once in an attempt; its lease follows."""
        make, self._make_watchdog = self._make_watchdog, None
        self.watchdog = None if make is None else attempt(make)
        if self.watchdog is None:
            self._say(f"the launcher's watchdog was killed: {UNGUARDED}", "watchdog-killed")
            return
        self._say("the launcher's watchdog was killed: another one replaces it", "watchdog-killed")
        for group in filter(None, self.stopper.groups):
            self.watchdog.tell(group)

    def _on_exec_errors(self, errors: ExecErrors) -> None:
        """Handle errors of exec: if one process cannot exec, none of them may run."""
        found, complete = errors.read()
        for index, number in found:
            error = OSError(number, os.strerror(number))
            self.refuse(refusal(self.children[index].argv[0], error))
        if complete:
            self._loop.remove(errors.fd)
            os.close(errors.fd)

    def refuse(self, error: LauncherError) -> None:
        """Kill the started processes because not all can be started."""
        self.refused = self.refused or error
        self.stopper.kill()

    # --- ends

    def note_child(self) -> None:
        """Note that SIGCHLD has arrived."""
        self._has_ends = True

    def on_end(self, process: Process) -> None:
        """Collect a process that has ended, as the kernel reports, and notify the owner."""
        if process.code is not None:
            return
        self._has_ends = True  # waitid lists it before orphans that have ended, too
        process.ended_ns = process.ended_ns or time.monotonic_ns()
        code = collect(process.pid)
        if process.pidfd is not None:
            self._loop.remove(process.pidfd)
            os.close(process.pidfd)
            process.pidfd = None
        if code is None:
            return  # a debugger holds its status; SIGCHLD arrives when it is ours
        process.code = code
        process.passed_on = self.stopper.told.get(process.pid, process.passed_on)
        self._forget(process)
        self._on_exit(process)
        self._has_news = True

    def _forget(self, process: Process) -> None:
        del self.running[process.pid]
        self.stopper.started.discard(process.pid)
        self.ended.append(process)

    def collect(self) -> None:
        """Reap orphans that have ended, and signal newly adopted ones if the job is being stopped."""
        if self._has_ends:
            self._has_ends = False
            self.has_more = self._has_ends = self.reap()
            self._find_stopped()
        if self._has_news:
            self._has_news = False
            for group in self.stopper.forget_groups():
                if self.watchdog is not None:
                    self.watchdog.forget(group)
            self.stopper.tell_new()

    def turn_while(self, is_waiting: Callable[[], bool]) -> None:
        """Run the loop while something is awaited, and collect what ends meanwhile."""
        while is_waiting():
            self._loop.turn(wait=not self.has_more)
            self._loop.guard(self.collect)

    def reap(self, spared: Container[int] = ()) -> bool:
        """Reap children that have ended, but those whose status others wait for; return if there may be more.

        One call reaps a limited number: a program that forks faster than we reap must not block our timers.
        """
        for _ in range(REAPED_AT_ONCE):
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                self._note_lost()
                return False
            process = None if found is None else self.running.get(found.si_pid)
            if found is None or found.si_pid in spared:
                return False
            if process is not None and process.pidfd is not None:
                return False  # its pidfd is handled in its turn, and then we reap again
            if process is not None:
                self.on_end(process)
            else:
                collect(found.si_pid)
                self._has_news = True
                self._forget_child(found.si_pid)
        return True

    def _find_stopped(self) -> None:
        """Tell the owner about processes that the terminal has stopped: they would wait without a word."""
        try:
            while self.running and (found := os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WNOHANG)) is not None:
                process = self.running.get(found.si_pid)
                if process is not None and found.si_status in OF_TERMINAL:
                    self._on_stopped(process, found.si_status)
        except ChildProcessError:
            pass  # all have ended, and none can be stopped any more

    def _forget_child(self, pid: int) -> None:
        """Forget a reaped child that is not a process of the job: its pid can be reused."""
        self.inherited.discard(pid)
        if self.watchdog is not None and pid == self.watchdog.pid:
            self.watchdog.lose()
            self._replace_watchdog()
        self.helpers.forget(pid)

    def _note_lost(self) -> None:
        """Report the processes that still seem to run although no child is left: their status is lost."""
        for process in list(self.running.values()):
            self._say(f"{process.name}: another program has collected its exit status", "status-lost")
            process.code, process.ended_ns = EXIT_BUG, time.monotonic_ns()
            self._forget(process)
            self._on_exit(process)

    # --- the end

    @property
    def has_ranks(self) -> bool:
        """Whether a process that is no companion runs."""
        return any(not one.child.companion for one in self.running.values())

    @property
    def is_busy(self) -> bool:
        """Whether any process is left, of the job or left behind by it; the latter are stopped, too."""
        if self.stopper.gave_up:
            return False
        if self.running:
            return True
        if not self.stopper.leaders():
            return False
        self.stopper.sweep()
        return True

    def find_survivors(self) -> list[int]:
        """Return the processes that still exist after SIGKILL; the kernel holds them (D state)."""
        leaders = self.stopper.leaders() if self.stopper.gave_up else []
        return [*leaders, *find_descendants(leaders)]

    def describe_survivors(self) -> list[str]:
        """Return a description of each of these processes."""
        return describe_some(self.find_survivors(), DESCRIBED_MAX)

    def dismiss_watchdog(self) -> None:
        """End the watchdog. If a fault of ours ends us before the processes, it stays, and kills them."""
        if self.watchdog is not None and (self.stopper.gave_up or not self.running):
            self.watchdog.dismiss()
