"""The parent of this node's processes: forks them, hears how they end, collects what they leave behind.

What all of that means for the job is for `launcher.run.supervise` to say.
"""

from __future__ import annotations

import os
import time

from launcher.errors import EXIT_BUG, LauncherError
from launcher.frozen import frozen
from launcher.output.folder import ERROR_FILE, RunFolder
from launcher.output.router import Output
from launcher.process.descendants import find_children
from launcher.process.execute import refusal
from launcher.process.kernel import become_subreaper, read_signals
from launcher.process.loop import Loop
from launcher.process.signals import SI_KERNEL, Watched, signal
from launcher.process.spawn import (
    Child,
    Inherited,
    Process,
    Refusals,
    Streams,
    cannot_start,
    change_environ,
    start,
    with_settings,
)
from launcher.process.stop import Stopper
from launcher.process.watchdog import MARK, Guardian, mark_of
from launcher.run.relay import Relay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.model import Supervision
    from launcher.process.spawn import Changes

REAPED_AT_ONCE = 100
STARTED_AT_ONCE = 32
"""Both ends of the pipes of so many are open at a time: the limit of open files is not for us alone."""
UNGUARDED = "what the processes start outlives the launcher if that is killed by SIGKILL"
EVENTS_MAX = 16
"""How much of what the launcher has said is kept for who asks later."""


@frozen
class Node:
    """Where we are, for messages and records."""

    node_rank: int | None = None
    world_size: int | None = None


class Parent:
    """The processes of one attempt after the other, from the fork to the last orphan.

    Attributes:
        may_share_terminal: Whether a single process is what the user types to.
        log_id: What the folder of the logs is called after, if not after this run.
        said: What was said last, and when (monotonic seconds).
        processes: All that this attempt has started, in that order.
        running: Those that have not ended, by pid.
        ended: Those that have, in the kernel's order.
        first: Who has failed first.
        refused: Why not all could be started.
    """

    may_share_terminal = True
    log_id = ""

    def __init__(
        self,
        children: Sequence[Child],
        paths: Sequence[str],
        watch: Supervision,
        node: Node,
        environ: Mapping[str, str],
    ) -> None:
        self.watch, self.node, self.environ = watch, node, environ
        self.watched = Watched()
        # A script that calls exec leaves us its children: tee, a sidecar. They are none of the job.
        self.inherited = set(find_children(os.getpid()))
        become_subreaper()
        self.run_id = os.urandom(8).hex()
        self.began_s = time.monotonic()
        self.said: list[tuple[float, str]] = []
        # On a terminal a single process stays in our group: it may read what is typed, and gets
        # Ctrl-C from the terminal itself. Several get a group each, and hear of it from us.
        self.shares_terminal = self.may_share_terminal and len(children) == 1 and os.isatty(0)
        self.folder = RunFolder(watch.log_dir, self.log_id or self.run_id, node.node_rank, environ)
        self.loop = Loop(self.say)
        self.output = Output(
            watch, self.loop, environ, several=len(children) > 1, shares_terminal=self.shares_terminal
        )
        self.guardian: Guardian | None = None
        self.relay = self.make_relay()
        self.attempt = 0
        self.more = self.news = False
        self.has_ends = True  # an orphan may have ended before we could hear of it
        self.refused: LauncherError | None = None
        self.loop.add(self.watched.fd, self.on_signals)
        self.take_children(children, paths)

    def take_children(self, children: Sequence[Child], paths: Sequence[str]) -> None:
        """Take what is to be started; before the start."""
        self.children, self.paths = children, paths
        self.has_ranks = not all(child.companion for child in children)
        self.output.expect(several=len(children) > 1)

    def make_relay(self) -> Relay:
        """Return what decides what a signal means for the job."""
        return Relay(self.watch, shares_terminal=self.shares_terminal, say=self.say)

    def say(self, text: str) -> None:
        """Say something on standard error, between the lines of the processes."""
        self.output.say(text)
        self.said.append((time.monotonic(), text))
        del self.said[:-EVENTS_MAX]

    def spared(self) -> tuple[int, ...]:
        """Our own children that are none of the job."""
        guardian = () if self.guardian is None or self.guardian.pid is None else (self.guardian.pid,)
        return (*guardian, *self.inherited)

    # --- start

    def begin_attempt(self) -> None:
        """Be ready to start everybody: nothing of an attempt before counts any more."""
        self.processes: list[Process] = []
        self.running: dict[int, Process] = {}
        self.ended: list[Process] = []
        self.first: Process | None = None
        self.refused = None
        self.stopper = Stopper(
            self.watch.grace_s,
            to_group=self.watch.signal_to == "group",
            spare=self.spared,
            say=self.say,
        )
        self.relay.attach(self.stopper, self.running)

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

    def environment(self, child: Child) -> dict[str, str]:
        """Return what a process gets from this very run."""
        mark = {MARK: mark_of(self.run_id, self.environ)}
        return mark | self.folder.variables(self.attempt, child.folder)

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

    # --- events

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
        self.forget_process(process)
        self.act_on_end(process)
        self.news = True

    def forget_process(self, process: Process) -> None:
        """It runs no more."""
        del self.running[process.pid]
        self.stopper.started.discard(process.pid)
        self.ended.append(process)

    def act_on_end(self, process: Process) -> None:
        """Do what the end of a process means for the others; whoever inherits knows."""

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
                self.news = True
                self.forget_child(found.si_pid)
        return True

    def forget_child(self, pid: int) -> None:
        """A child of ours has ended that is none of the job's processes: its pid is free for others."""
        self.inherited.discard(pid)
        if self.guardian is not None and pid == self.guardian.pid:
            self.guardian.lose()
            self.say(f"somebody has killed the launcher's guardian: {UNGUARDED}")

    def note_lost(self) -> None:
        """No child is left: whoever is still thought to run was taken from us."""
        for process in list(self.running.values()):
            self.say(f"{process.name}: somebody else has taken its status")
            process.code, process.ended_ns = EXIT_BUG, time.time_ns()
            self.forget_process(process)
            self.first = self.first or process

    def has_leftovers(self) -> bool:
        """Whether the job has left somebody behind; then that is ended too."""
        if not self.stopper.leaders():
            return False
        self.stopper.sweep()
        return True
