"""The agent of a node: a state machine around one group of processes.

    waiting -> running -> stopping -> done
                  ^           |
                  +- restarting

It owns its parts: the group of processes, the router of their output, the signal forwarder, the observers,
and the coordination with the rest of the job.
One loop waits for everything: signals (blocked, read from a descriptor), the end of each process (a pidfd),
output, and points in time. There are no handlers, so nothing is interrupted, and from the first fork on no
fault of ours ends the job.
"""

from __future__ import annotations

import gc
import os
import time

from launcher.agent.coordination import Coordination, Outcome
from launcher.agent.forwarder import GroupTarget, SignalForwarder
from launcher.agent.observers import Observers
from launcher.agent.policy import SETTLE_S, Action, Exit, State, counts, decide, may_follow, may_restart
from launcher.core.frozen import frozen
from launcher.core.members import Enum
from launcher.core.signal import signal
from launcher.output.folder import RunFolder
from launcher.output.router import OutputRouter
from launcher.process.execute import CPU_LIMIT, find_program
from launcher.process.group import ProcessGroup
from launcher.process.kernel import read_signals
from launcher.process.loop import Later, Loop
from launcher.process.signals import SI_KERNEL, SignalFile
from launcher.process.spawn import with_settings
from launcher.process.watchdog import MARK, mark_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Protocol

    from launcher.core.model import Supervision
    from launcher.failure.model import Verdict
    from launcher.failure.reason import Reason
    from launcher.process.spawn import Child, Process, Streams

    class Server(Protocol):
        """Answers questions about the job: `launcher.control.server`."""

        @property
        def due(self) -> float | None:
            """When `fire` has something to do."""

        def fire(self, now: float) -> None:
            """It is time."""

        def open(self) -> None:
            """Begin to answer."""

        def helpers(self) -> tuple[int, ...]:
            """Return the pids of children of ours that help here."""

        def answer(
            self, what: str, more: Mapping[str, object], take: Callable[[dict[str, object]], None]
        ) -> None:
            """Say what there is to say of this node, now or later."""

        def close(self) -> None:
            """Answer no more."""

    Checks = Callable[[], Sequence[str]]
    Serve = Callable[["Agent"], Server]

EVENTS_MAX = 16
"""How much of what the launcher has said is kept for later questions."""
DEADLINE_FILE = "LAUNCHER_DEADLINE"
"""Where processes find until when this machine is theirs, once that is announced."""
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"


class Phase(Enum):
    """What the agent does."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    RESTARTING = "restarting"
    DONE = "done"


@frozen
class Place:
    """Where we are, for messages and records."""

    node_rank: int | None = None
    world_size: int | None = None


class Agent:
    """The processes of this node, from the first wait to the last word.

    Attributes:
        place: Where we are.
        watch: How the processes are watched.
        environ: Our own environment.
        run_id: Names this run: its folder, and the mark of what it has started.
        began_s: When we began, monotonic seconds.
        attempt: 0 for the first, one more for each restart.
        first: The process that failed first.
        told_before: The signal by which we were told to end before anything had failed.
        reason: Why we have ended the job ourselves.
        command: What the user asked to run, where the processes are something else.
        said: What was said last, and when (monotonic seconds).
    """

    def __init__(
        self,
        watch: Supervision,
        place: Place,
        environ: Mapping[str, str],
        coordination: Coordination | None = None,
        *,
        single: bool = True,
        log_id: str = "",
        run_id: str = "",
        checks: Checks | None = None,
        serve: Serve | None = None,
        command: Sequence[str] = (),
    ) -> None:
        """Begin to listen to signals; nothing is started.

        Args:
            watch: How the processes are watched.
            place: Where we are.
            environ: Our own environment: TMPDIR, NO_COLOR, what names the platform.
            coordination: With the rest of the job; None on one node.
            single: There will be one process.
            log_id: What the folder of the logs is called after, if not after this run.
            run_id: Names this run, if that is given.
            checks: Looks at this node while the processes run, in a process of its own, and returns lines to
                be said; None for nothing to look at.
            serve: Makes what answers questions about the job; None for nothing.
            command: What the user asked to run, where the processes are something else.
        """
        self.watch, self.place, self.environ, self.command = watch, place, environ, command
        self.coordination = coordination or Coordination()
        self.run_id = run_id or os.urandom(8).hex()
        self.began_s, self._started_ns, self.attempt = time.monotonic(), time.monotonic_ns(), 0
        self.said: list[tuple[float, str]] = []
        self._is_done = self._is_restarting = self._has_begun = False
        self._clear()
        signals = SignalFile()
        # On a terminal a single process stays in our group: it may read what is typed, and gets
        # Ctrl-C from the terminal itself. Several get a group each, and hear of it from us.
        self.shares_terminal = self.coordination.shares_terminal and single and os.isatty(0)
        self.folder = RunFolder(watch.log_dir, log_id or self.run_id, place.node_rank, environ)
        self.loop = Loop(self.say)
        self.output = OutputRouter(
            watch, self.loop, environ, several=not single, shares_terminal=self.shares_terminal
        )
        self.group = ProcessGroup(
            self, self.loop, signals, self.say,
            grace_s=watch.grace_s, to_group=watch.signal_to == "group", own_groups=not self.shares_terminal,
        )  # fmt: skip
        self.signals = signals
        own = GroupTarget(self.group, shares_terminal=self.shares_terminal)
        self.target = self.coordination.attach(self) or own
        says = self.say if self.coordination.speaks else _say_nothing
        self.forwarder = SignalForwarder(self.target, watch, says, shares_terminal=self.shares_terminal)
        self.observers = Observers(self, checks, serve)
        self.loop.add(signals.fd, self._on_signals)

    def _clear(self) -> None:
        """Nothing of an attempt before counts any more."""
        self.first: Process | None = None
        self.told_before: int | None = None
        self.reason: Reason | None = None
        self.failed: list[Process] = []
        self._settles = False

    def take(self, children: Sequence[Child], paths: Sequence[str]) -> None:
        """Take the processes that are to be started: the companions, then the ranks by local rank.

        Args:
            children: They are started in this order.
            paths: Of their programs, see `find_programs`.
        """
        self.group.take(children, paths)
        self.output.expect(several=len(children) > 1)

    def say(self, text: str) -> None:
        """Say something on standard error, between the lines of the processes."""
        self.output.say(text)
        self.said.append((time.monotonic(), text))
        del self.said[:-EVENTS_MAX]

    @property
    def started_ns(self) -> int:
        """When the attempt was started, nanoseconds since 1970 by the clock as it is now.

        It may have been set meanwhile; what has happened since is said in seconds after the start.
        """
        return time.time_ns() - (time.monotonic_ns() - self._started_ns)

    @property
    def phase(self) -> Phase:
        """What the agent does."""
        if self._is_done:
            return Phase.DONE
        if self._is_restarting:
            return Phase.RESTARTING
        if not self._has_begun:
            return Phase.WAITING
        return Phase.STOPPING if self.group.stopper.begun else Phase.RUNNING

    @property
    def is_ending(self) -> bool:
        """Whether the processes are being ended."""
        return self.group.stopper.begun

    # --- the whole run

    def run(self) -> int:
        """Run until all has ended, as often as restarts allow; return the job's status.

        Returns:
            0, the first failing process's own status, or 128+n if signal n ended it.

        Raises:
            LauncherError: The nodes do not come together (75, 78), a process cannot be started (126, 127), a
                log file cannot be written (75); processes that were started are gone then.
        """
        try:
            self.coordination.gather()
            if self.forwarder.told is not None:
                return 128 + self.forwarder.told
            self._run_attempt()
            while self._may_restart and self.first is not None:
                self.attempt += 1
                self.say(
                    f"{self.first.name} {self.first.end}: restart {self.attempt} of {self.watch.restarts}"
                )
                self._is_restarting = True
                self._run_attempt()
            self.observers.end()
            return self._finish()
        finally:
            self._is_done = True
            self._close()

    @property
    def _may_restart(self) -> bool:
        return may_restart(
            failed=self.first is not None,
            told=self.forwarder.told is not None or self.observers.is_preempted,
            reasoned=self.reason is not None,
            attempt=self.attempt,
            restarts=self.watch.restarts,
        )

    def _run_attempt(self) -> None:
        """One attempt: start everything, and wait until everything has ended."""
        self._clear()
        self.group.begin_attempt()
        self.loop.timers[:] = [self.group.stopper, self.output, self.forwarder]
        self._has_begun = True
        self.coordination.begin()
        self._started_ns = time.monotonic_ns()
        self.group.start()
        self._is_restarting = False
        self.coordination.began()
        if self.group.refused is None and self.coordination.guards:
            self.group.start_watchdog(self.run_id, self.clean_up)
        gc.enable()
        self.observers.begin_attempt()
        while self.group.is_busy:
            self.loop.turn(wait=not self.group.has_more)
            self.loop.guard(self.group.collect)
        self.observers.end_attempt()
        self.output.end_attempt()
        if self.group.refused is not None:
            self.coordination.on_refused(self.group.refused)
            raise self.group.refused

    def clean_up(self) -> None:
        """Remove what is ours alone; what the watchdog does for a launcher that was killed."""
        self.folder.remove()
        self.coordination.clean_up()

    def _close(self) -> None:
        """Leave nothing behind."""
        self.coordination.close()
        self.observers.close()
        self.output.close()
        self.folder.remove()
        self.group.helpers.close()
        self.group.dismiss_watchdog()  # last: what is killed while ending leaves nothing either

    # --- what the group of processes asks

    def prepare(self, index: int, child: Child) -> tuple[Child, Streams]:
        """Return a process as it is to be started, and its standard streams."""
        streams = self.output.open(index, child, self.folder, self.attempt)
        mark = {MARK: mark_of(self.run_id, self.environ)}
        settings = mark | self.folder.variables(self.attempt, child.folder) | self.observers.plan(child)
        if self.deadline_file and (self.watch.preemption is not None or self.coordination.awaits_deadline):
            settings[DEADLINE_FILE] = self.deadline_file
        if self.attempt:
            settings[RESTART_COUNT] = str(self.attempt)
        return with_settings(child, settings), self.coordination.route(child, streams)

    def note_started(self) -> None:
        """The last processes that were prepared have their streams."""
        self.output.started()

    def helpers(self) -> tuple[int, ...]:
        """Return our children that are none of the job's processes."""
        return (*self.observers.helpers(), *self.coordination.helpers())

    def on_exit(self, process: Process) -> None:
        """A process has ended: decide what that means for the others."""
        end, state = self._describe(process)
        action = decide(end, state)
        if counts(end, state):
            self._note_failure(process, end)
        self.observers.note_end()
        if self.group.refused is None:
            self._act(action, process)
        self.coordination.on_exit(process)

    def _describe(self, process: Process) -> tuple[Exit, State]:
        """Return the end of a process, and the state of the others, for the policy."""
        running = self.group.running.values()
        companions = [one.child for one in running if one.child.companion]
        state = State(
            ranks=len(running) - len(companions),
            companions=len(companions),
            finishing=any(child.finishes for child in companions),
            has_ranks=not all(child.companion for child in self.group.children),
            stopping=self.is_ending,
            settling=self._settles,
            elsewhere=self.coordination.has_others,
        )
        end = Exit(bool(process.status), process.child.companion)
        if end.failed and not state.stopping and (state.ranks or self.coordination.has_others):
            end = Exit(end.failed, end.companion, self._only_follows(process))
        return end, state

    def _only_follows(self, process: Process) -> bool:
        """Whether the last words of a process only tell of a failure elsewhere."""
        found: list[bool] = []

        def look() -> None:
            index = self.group.processes.index(process)
            self.output.read_rest(index)
            if not may_follow(self.output.read_errors(index)):
                return
            from launcher.agent.report import only_follows

            found.append(only_follows(self, process))

        self.loop.guard(look)
        return bool(found) and found[0]

    def _note_failure(self, process: Process, end: Exit) -> None:
        if self.first is None:
            self.first = process
            self.forwarder.note_end()
            self.told_before = self.forwarder.told
            self.observers.note_failure()
        if not self.is_ending or process is self.first:
            self.failed.append(process)
            self.coordination.on_failure(process, follows=end.follows)

    def _act(self, action: Action, process: Process) -> None:
        others = len(self.group.running)
        if action is Action.STOP:
            self.say(f"{process.name} {process.end}; stopping the other {others}")
            self.target.stop(signal.SIGTERM)
        elif action is Action.SETTLE:
            self._settles = True
            self.say(
                f"{process.name} {process.end}: it has lost another process, which has {SETTLE_S:g} s to end "
                "by itself and to say why"
            )
            self.loop.timers.append(Later(time.monotonic() + SETTLE_S, lambda: self._stop_settled(process)))
        elif action is Action.STOP_COMPANIONS:
            self.group.stopper.begin(signal.SIGTERM)
        elif action is Action.KEEP_COMPANIONS:
            self.coordination.on_ranks_ended()
        elif action is Action.WAIT_FOR_COMPANIONS:
            due = time.monotonic() + self.watch.grace_s
            self.loop.timers.append(Later(due, self._stop_companions))

    def _stop_settled(self, process: Process) -> None:
        """The rank that others have lost does not end by itself."""
        others = len(self.group.running)
        if others and not self.is_ending:
            self.say(f"{process.name} {process.end}; stopping the other {others}")
            self.target.stop(signal.SIGTERM)

    def _stop_companions(self) -> None:
        """The time is over of companions that end by themselves."""
        running = self.group.running.values()
        if running and not self.is_ending:
            names = ", ".join(process.name for process in running)
            self.say(f"{names}: still there {self.watch.grace_s:g} s after the last rank; SIGTERM")
            self.group.stopper.begin(signal.SIGTERM)

    def end_for(self, reason: Reason) -> None:
        """End the job as a failure, for a reason of our own."""
        self.reason = self.reason or reason
        if self.coordination.decides(reason):
            pass  # on all nodes at once, by what it finds there
        elif self.group.running:
            self.target.stop(signal.SIGTERM)
        elif self.first is None:
            self.first = next((one for one in self.group.ended if not one.child.companion), None)
        self.coordination.on_reason(reason)

    # --- signals

    def _on_signals(self) -> None:
        """Signals have arrived."""
        for number, code, sender in read_signals(self.signals.fd):
            if number == signal.SIGCHLD:
                self.group.note_child()
            elif sender != os.getpid():  # EPIPE comes with a SIGPIPE from ourselves
                self.on_signal(number, from_terminal=code == SI_KERNEL)

    def on_signal(self, number: int, *, from_terminal: bool) -> None:
        """A signal has arrived, here or at another launcher of the job."""
        if self.coordination.takes_signal(number, from_terminal=from_terminal):
            return
        before = self.forwarder.told
        self.forwarder.on_signal(number, from_terminal=from_terminal)
        if before is None and self.forwarder.told is not None:
            self.coordination.on_told(self.forwarder.told)

    # --- the end

    @property
    def deadline_file(self) -> str | None:
        """Path of the file in which the processes find until when; None where there is no folder."""
        return None if self.folder.path is None else f"{self.folder.path}/deadline.json"

    def describe_state(self) -> str:
        """Return what the processes of this node do as a whole, in a word or two."""
        told = self.coordination.describe_state()
        if told is not None:
            return told
        if self.group.running:
            return "stopping" if self.is_ending else "running"
        return "ended"

    def _finish(self) -> int:
        """Say how it ended, and return the status."""
        if self.coordination.speaks and self.folder.keeps and self.folder.path is not None:
            self.say(f"logs: {self.folder.path}")
        return self.coordination.finish()

    def find_outcome(self) -> Outcome:
        """Return how the processes of this node ended; all of them have.

        What tells failures apart takes longer to load than all that a good end needs.
        """
        has_failed = self.first is not None or self.reason is not None or self.observers.is_preempted
        if not has_failed and not self.group.find_survivors():
            return Outcome(0)
        found: list[Outcome] = []

        def find() -> None:
            from launcher.agent.report import find_outcome

            found.append(find_outcome(self))

        self.loop.guard(find)
        return found[0] if found else Outcome(0 if self.first is None else self.first.status)

    def tell(self, outcome: Outcome) -> int:
        """Say how the processes of this node ended, and return the status."""
        if outcome.line:
            self.say(outcome.line)
        if outcome.verdict is not None:
            self.coordination.publish(outcome.verdict, shown=outcome.shown)
        return outcome.status

    def publish(self, verdict: Verdict, *, shown: bool) -> None:
        """Give the verdict to people and platforms."""
        from launcher.agent.report import publish

        self.loop.guard(lambda: publish(self, verdict, shown=shown))


def _say_nothing(text: str) -> None:
    """Of a thousand ranks each need not say it."""


def run_processes(
    children: Sequence[Child],
    watch: Supervision,
    place: Place,
    environ: Mapping[str, str],
    *,
    widen: bool = False,
    checks: Checks | None = None,
    serve: Serve | None = None,
) -> int:
    """Run processes on this node alone to their end, and return the job's status; see `Agent`.

    Args:
        children: The companions, then the processes by local rank: they are started in this order.
        watch: How they are watched.
        place: Where we are.
        environ: Our own environment.
        widen: Leave the CPUs that mpirun has bound us to.
        checks: Looks at this node while the processes run.
        serve: Makes what answers questions about the job.

    Raises:
        LauncherError: A process cannot be started (126, 127), a log file cannot be written (75).
    """
    paths = find_programs(children)
    if widen:
        widen_cpus()
    agent = Agent(watch, place, environ, single=len(children) == 1, checks=checks, serve=serve)
    agent.take(children, paths)
    return agent.run()


def find_programs(children: Sequence[Child]) -> list[str]:
    """Return the path of the program of each process.

    Raises:
        CommandNotFound, CommandNotExecutable: One cannot be started.
    """
    return [find_program(child.argv[0], child.environ) for child in children]


def widen_cpus() -> None:
    """Leave the CPUs that mpirun has bound us to; the kernel cuts this down to the cgroup's cpuset."""
    os.sched_setaffinity(0, range(CPU_LIMIT))
