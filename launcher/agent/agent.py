"""The agent of a node: a state machine around one group of processes.

    waiting -> running -> stopping -> done
                  ^           |
                  +- restarting

It owns its parts: the process group, the output router, the signal forwarder, the observers, the evidence,
and the coordination with the rest of the job.
One loop waits for everything: signals (blocked, read from a descriptor), the exit of each process (a pidfd),
output, and timers. There are no signal handlers, so nothing is interrupted. From the first fork on, no fault
of the launcher ends the job.
"""

from __future__ import annotations

import gc
import os
import time

from launcher.agent.coordination import Coordination
from launcher.agent.forwarder import GroupTarget, SignalForwarder
from launcher.agent.observers import Observers
from launcher.agent.restarter import Restarter
from launcher.agent.timings import Timings
from launcher.core.frozen import frozen
from launcher.core.members import Enum
from launcher.core.signal import signal
from launcher.evidence.collector import Collector
from launcher.job.exits import SETTLE_S, Action, Exit, State, counts, decide, may_follow
from launcher.output.folder import DEADLINE_NAME, RunFolder
from launcher.output.router import OutputRouter
from launcher.process.execute import CPU_LIMIT, find_program
from launcher.process.group import ProcessGroup
from launcher.process.kernel import read_signals
from launcher.process.loop import Later, Loop
from launcher.process.signals import SI_KERNEL, SignalFile, send
from launcher.process.spawn import with_settings
from launcher.process.watchdog import MARK, mark_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Protocol

    from launcher.agent.template import Template
    from launcher.core.model import Supervision
    from launcher.failure.reason import Reason
    from launcher.process.spawn import Child, Process, Streams

    class Server(Protocol):
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
    Serve = Callable[["Agent"], Server]

EVENTS_MAX = 16
"""Number of the launcher's latest messages that are kept for later questions."""
FOREGROUND_S = 0.2
"""Seconds between two looks whether a job that the terminal has stopped is in the foreground."""
CLOCK_SET_NS = 100_000_000
"""A wall clock that differs by more from what it was has been set."""
DEADLINE_FILE = "LAUNCHER_DEADLINE"
"""Variable with the path of the file that holds the preemption deadline of this node, once announced."""
RESTART_COUNT, ATTEMPT = "TORCHELASTIC_RESTART_COUNT", "LAUNCHER_ATTEMPT"
"""Variables with the number of the attempt, set from the first restart on: torch's, and ours."""


class Phase(Enum):
    """What the agent is doing."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    RESTARTING = "restarting"
    DONE = "done"


@frozen
class NodePlace:
    """Place of this node in the job, for messages and records."""

    node_rank: int | None = None
    world_size: int | None = None


class Agent:
    """Runs the processes of this node, from the rendezvous to the failure report.

    Attributes:
        place: Node rank and world size.
        watch: How to watch, stop and report the processes.
        environ: The launcher's own environment.
        run_id: Name of this run, for its folder and for the mark of the processes that it starts.
        began_s: Start time of the agent, monotonic seconds.
        started_mono_ns: Start time of the attempt, monotonic nanoseconds.
        attempt: 0 for the first attempt, plus one for each restart.
        first: The process that failed first.
        told_before: The signal that told us to stop before any process had failed.
        reason: The launcher's own reason for ending the job.
        command: The user's command, if the processes run something else.
        timings: The moments of this job.
        template: Forks the ranks (``--preload``); None to start each by itself.
        said: The launcher's latest messages, each with its time (monotonic seconds).
    """

    def __init__(
        self,
        watch: Supervision,
        place: NodePlace,
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
        """Set up the parts and read signals from now on; start no process.

        Args:
            watch: How to watch, stop and report the processes.
            place: Node rank and world size.
            environ: The launcher's own environment: TMPDIR, NO_COLOR, the platform's variables.
            coordination: Coordination with the rest of the job; None on one node.
            single: Whether there will be one process.
            log_id: Name of the log folder, if not that of this run.
            run_id: Name of this run; empty for a random one.
            checks: Checks this node while the processes run, in a process of its own, and returns lines to
                print; None for no checks.
            serve: Makes the server that answers questions about the job; None for no server.
            command: The user's command, if the processes run something else.
        """
        self.watch, self.place, self.environ, self.command = watch, place, environ, command
        self.coordination = coordination or Coordination()
        self.run_id = run_id or os.urandom(8).hex()
        self.began_s, self.started_mono_ns, self.attempt = time.monotonic(), time.monotonic_ns(), 0
        self._wall_ahead_ns = 0
        self.said: list[tuple[float, str]] = []
        self.timings = Timings(self.began_s)
        self.renew: Callable[[], None] | None = None
        self.template: Template | None = None
        self._is_done = self._is_restarting = self._has_begun = False
        self._clear()
        signals = SignalFile()
        # A single process at a terminal decides by itself what a Ctrl-C means, and writes to the terminal.
        self.shares_terminal = self.coordination.shares_terminal and single and os.isatty(0)
        self.folder = RunFolder(watch.log_dir, log_id or self.run_id, place.node_rank, environ)
        self.loop = Loop(self.say)
        self.output = OutputRouter(
            watch, self.loop, environ, several=not single, shares_terminal=self.shares_terminal,
            lends_terminal=self.coordination.lends_terminal, node=place.node_rank,
        )  # fmt: skip
        self.group = ProcessGroup(
            self, self.loop, signals, self.say,
            grace_s=watch.grace_s, to_group=watch.signal_to == "group",
        )  # fmt: skip
        self.signals = signals
        own = GroupTarget(self.group)
        self.target = self.coordination.attach(self) or own
        says = self.say if self.coordination.speaks else _say_nothing
        self.forwarder = SignalForwarder(self.target, watch, says, shares_terminal=self.shares_terminal)
        self.observers = Observers(self, checks, serve)
        self.evidence = Collector(self)
        self.restarter = Restarter(self)
        self.output.progress = self.restarter.progress
        self.loop.add(signals.fd, self._on_signals)

    def _clear(self) -> None:
        """Forget the failures of the previous attempt."""
        self.first: Process | None = None
        self.told_before: int | None = None
        self.reason: Reason | None = None
        self.failed: list[Process] = []
        self._settles = False

    def take(self, children: Sequence[Child], paths: Sequence[str]) -> None:
        """Take the processes to start: the companions, then the ranks by local rank.

        Args:
            children: The processes, in the order in which they start.
            paths: Paths of their programs, see `find_programs`.
        """
        self.group.take(children, paths)
        self.output.expect(several=len(children) > 1)
        self.preload(children, paths)

    def preload(self, children: Sequence[Child], paths: Sequence[str]) -> None:
        """Have modules imported, if that was asked for and not begun, by a process that forks the ranks.

        Args:
            children: The processes of this node, as far as they are known.
            paths: Paths of their programs.
        """
        if self.watch.preload is None or self.template is not None or not children:
            return
        from launcher.agent.template import Template

        loop, group = self.loop, self.group
        template = Template(self.watch.preload, loop, group.helpers, self.signals, self.output, self.folder)
        template.start(children, paths[-1], {MARK: mark_of(self.run_id, self.environ)})
        self.template = group.template = template

    def say(self, text: str, event: str, **fields: object) -> None:
        """Print a message on standard error, between the lines of the processes; see `Say`."""
        self.output.say(text, event, **fields)
        self.said.append((time.monotonic(), text))
        del self.said[:-EVENTS_MAX]

    @property
    def started_ns(self) -> int:
        """Start time of the attempt in nanoseconds since 1970, by the clock as it is set now.

        The clock may have been set since the start, so times after it are given in seconds after the start.
        """
        ahead_ns = time.time_ns() - time.monotonic_ns()
        if abs(ahead_ns - self._wall_ahead_ns) > CLOCK_SET_NS:  # less is the time between the two calls
            self._wall_ahead_ns = ahead_ns
        return self.started_mono_ns + self._wall_ahead_ns

    def at_ns(self, mono_ns: int) -> int:
        """Return a time of the monotonic clock as nanoseconds since 1970, right against `started_ns`."""
        return self.started_ns + mono_ns - self.started_mono_ns

    @property
    def phase(self) -> Phase:
        """What the agent is doing."""
        if self._is_done:
            return Phase.DONE
        if self._is_restarting:
            return Phase.RESTARTING
        if not self._has_begun:
            return Phase.WAITING
        return Phase.STOPPING if self.is_ending else Phase.RUNNING

    @property
    def is_ending(self) -> bool:
        """Whether the processes are being stopped, or are asked what they do because they are to be."""
        return self.group.stopper.begun or self.evidence.stops

    # --- the whole run

    def run(self) -> int:
        """Run all attempts until everything has ended, and return the job's status.

        Returns:
            0, the first failing process's own status, or 128+n if signal n ended it.

        Raises:
            LauncherError: The nodes do not come together (75, 78), a process cannot be started (126, 127), or
                a log file cannot be written (75); all processes that were started are gone by then.
        """
        try:
            self.coordination.gather()
            if not self.coordination.has_work:
                told = self.forwarder.told
                return self._finish() if told is None else self.restarter.exit_status(128 + told)
            if self.coordination.has_others:
                self.observers.note_together()
            self._run_attempt()
            while self.coordination.restarts():
                self._run_attempt()
            self.observers.end()
            return self._finish()
        except Exception as error:
            reason = error
            self.loop.guard(lambda: self.restarter.note_error(reason))
            raise
        finally:
            self._is_done = True
            self._close()

    def begin_again(self, attempt: int) -> None:
        """Note that another attempt begins."""
        self.attempt, self._is_restarting = attempt, True

    def _run_attempt(self) -> None:
        """Run one attempt: start everything, and wait until everything has ended."""
        self._clear()
        moments = self.timings.begin()
        self.restarter.begin()
        self.group.begin_attempt()
        self.evidence.begin()
        self.loop.timers[:] = [self.group.stopper, self.output, self.forwarder, self.evidence]
        self._has_begun = True
        self.coordination.begin()
        if self.template is not None:
            if self.coordination.guards and not self.coordination.has_others:  # others: it needs their lease
                self.group.start_watchdog(self.run_id, self.clean_up)
            self.observers.answer()
            self.template.wait(lambda: self.group.stopper.number is not None)
            moments.imported = time.monotonic()
        if self.coordination.guards:  # before the first process: we may be killed while we start them
            self.group.start_watchdog(self.run_id, self.clean_up, self.coordination.lease_until)
        self.started_mono_ns = time.monotonic_ns()
        self.output.first_s = None
        self.group.start()
        moments.started = time.monotonic()
        self.forwarder.release()
        if self.template is not None:
            self.group.stopper.tell_new()  # a signal may have come while modules were imported
            if not self.watch.restarts.most:
                self.template.close()
        self._is_restarting = False
        self.coordination.began()
        gc.enable()
        self.observers.begin_attempt()
        self.loop.guard(self.restarter.note_start)
        while self.group.is_busy:
            self.loop.turn(wait=not self.group.has_more)
            self.loop.guard(self.group.collect)
        if self.group.stopper.left:
            self.loop.guard(self._note_left)
        moments.ended = time.monotonic()
        self.evidence.close()
        self.observers.look()
        self.observers.end_attempt()
        self.output.end_attempt()
        if not self.shares_terminal or any((one.code or 0) < 0 for one in self.group.ended):
            self.loop.guard(self.output.stdin.restore)  # a single process that exits may have set them: stty
        self.loop.guard(self.restarter.end_attempt)
        self.observers.look()
        is_told = self.forwarder.told is not None or self.observers.is_preempted
        moments.has_failed = self.restarter.has_failed and not is_told
        if self.group.refused is not None:
            self.coordination.on_refused(self.group.refused)
            raise self.group.refused

    def _note_left(self) -> None:
        """Let the job fail if its shells have ended at once, and left what they started to be ended by us."""
        from launcher.command.words import may_be_shell
        from launcher.failure.arbiter import LEFT
        from launcher.failure.reason import LEFT_WITHIN_S, Reason

        ranks = [one for one in self.group.ended if not one.child.companion]
        is_quick = all(one.ended_ns - self.started_mono_ns < LEFT_WITHIN_S * 1e9 for one in ranks)
        is_own = self.first is None and self.reason is None and self.forwarder.told is None
        if ranks and is_quick and is_own and all(may_be_shell(one.child.argv) for one in ranks):
            self.end_for(
                Reason(
                    LEFT, f"the shell ended within {LEFT_WITHIN_S:g} s, and left {self.group.stopper.left}"
                )
            )

    def read_timings(self) -> Mapping[str, object] | None:
        """Return where the time has gone on this node so far, in seconds; None before the first attempt."""
        if not self.timings.attempts:
            return None
        if self.timings.attempts[-1].ended is None:
            self.observers.look()
        return self.timings.to_record()

    def clean_up(self) -> None:
        """Remove the private files of this run; the watchdog calls this if the launcher was killed."""
        self.folder.remove()
        self.coordination.clean_up()

    def _close(self) -> None:
        """Close all parts, and leave nothing behind."""
        self.coordination.close()
        self.evidence.close()
        self.observers.close()
        if self.template is not None:
            self.template.close()
        self.output.close()
        self.folder.remove()
        self.group.helpers.close()
        self.group.dismiss_watchdog()  # last: it also cleans up if we are killed while closing

    # --- called by the process group

    def prepare(self, index: int, child: Child) -> tuple[Child, Streams]:
        """Return a process with all its settings, and its standard streams."""
        streams = self.output.open(index, child, self.folder, self.attempt)
        mark = {MARK: mark_of(self.run_id, self.environ, self.coordination.node_mark)}
        files = self.folder.variables(self.attempt, child.folder, child.environ)
        settings = mark | files | self.observers.plan(child)
        settings |= self.restarter.count_starts(child)
        if self.deadline_file and (self.watch.preemption is not None or self.coordination.awaits_deadline):
            settings[DEADLINE_FILE] = self.deadline_file
        if self.attempt:
            settings |= {RESTART_COUNT: str(self.attempt), ATTEMPT: str(self.attempt)}
        return with_settings(child, settings), self.coordination.route(child, streams)

    def note_started(self) -> None:
        """Note that the processes prepared last have received their streams."""
        self.output.started()

    def on_stopped(self, process: Process, number: int) -> None:
        """Name a process that the terminal has stopped."""
        from launcher.output.stdin import describe_stopped

        text = describe_stopped(process, number, is_terminal=self.output.stdin.is_terminal)
        self.say(text, "rank-stopped", rank=None if process.child.called else process.child.rank)
        if process.has_terminal:
            self._continue_in_foreground(process)

    def _continue_in_foreground(self, process: Process) -> None:
        """Continue a process once we have the foreground.

        A shell's fg sends no SIGCONT to a job that runs, and the launcher was not stopped.
        """
        if process.code is None and self.output.stdin.is_in_foreground():
            send(0, signal.SIGCONT)
        elif process.code is None:
            due = time.monotonic() + FOREGROUND_S
            self.loop.timers.append(Later(due, lambda: self._continue_in_foreground(process)))

    def before_kill(self) -> None:
        """Write the failure record: the platform may kill us, too, while the processes end."""
        if self.coordination.guards:  # else another launcher writes it
            self.loop.guard(self.restarter.record_early)

    def helpers(self) -> tuple[int, ...]:
        """Return the PIDs of our children that are not processes of the job."""
        return (*self.observers.helpers(), *self.evidence.helpers(), *self.coordination.helpers())

    def on_exit(self, process: Process) -> None:
        """Handle the exit of a process: decide what it means for the others."""
        self._note_told(process)
        end, state = self._describe(process)
        action = decide(end, state)
        if counts(end, state):
            self._note_failure(process, end)
        self.observers.note_end()
        if self.group.refused is None:
            self._act(action, process)
        self.coordination.on_exit(process)

    def _note_told(self, process: Process) -> None:
        """Note that the job is told to end, if a process has died of a signal that we only forwarded."""
        number = process.passed_on
        is_ours = process.pid in self.group.stopper.told or self.forwarder.told is not None
        if number and process.status == 128 + number and not is_ours:
            self.forwarder.told = number
            self.coordination.on_told(number)

    def _describe(self, process: Process) -> tuple[Exit, State]:
        """Return the exit of a process and the state of the others, as input of the policy."""
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
        is_told = self.group.stopper.begun
        if end.failed and not is_told and (state.ranks or self.coordination.has_others):
            end = Exit(end.failed, end.companion, self._only_follows(process))
        return end, state

    def _only_follows(self, process: Process) -> bool:
        """Whether the last error output of a process reports only a failure elsewhere."""
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
        if not self.group.stopper.begun or process is self.first:
            self.failed.append(process)
            self.coordination.on_failure(process, follows=end.follows)

    def _act(self, action: Action, process: Process) -> None:
        others = len(self.group.running)
        if action is Action.STOP:
            self.say(f"{process.name} {process.end}; stopping the other {others}", "stopping")
            self.stop_rest()
        elif action is Action.SETTLE:
            self._settles = True
            what = f"it lost another process, which gets {SETTLE_S:g} s to exit and report why"
            self.say(f"{process.name} {process.end}: {what}", "settling")
            self.loop.timers.append(Later(time.monotonic() + SETTLE_S, lambda: self._stop_settled(process)))
        elif action is Action.STOP_COMPANIONS:
            self.group.stopper.begin(signal.SIGTERM)
        elif action is Action.KEEP_COMPANIONS:
            self.coordination.on_ranks_ended()
        elif action is Action.WAIT_FOR_COMPANIONS:
            due = time.monotonic() + self.watch.grace_s
            self.loop.timers.append(Later(due, self._stop_companions))

    def _stop_settled(self, process: Process) -> None:
        """Stop the others, because the rank that this process lost has not exited by itself."""
        others = len(self.group.running)
        if others and not self.is_ending:
            self.say(f"{process.name} {process.end}; stopping the other {others}", "stopping")
            self.stop_rest()

    def stop_rest(self) -> None:
        """Stop the processes because of a failure; first they are asked what they do."""
        self.evidence.ask_before_stop(lambda: self.target.stop(signal.SIGTERM))

    def _stop_companions(self) -> None:
        """Stop the companions that should have exited by themselves within the grace period."""
        running = self.group.running.values()
        if running and not self.is_ending:
            names = ", ".join(process.name for process in running)
            after = f"{self.watch.grace_s:g} s after the last rank ended"
            self.say(f"{names}: still running {after}; sending SIGTERM", "companions-late")
            self.group.stopper.begin(signal.SIGTERM)

    def end_for(self, reason: Reason) -> None:
        """End the job as a failure, for a reason of the launcher's own."""
        self.reason = self.reason or reason
        if self.group.running:
            self.stop_rest()
        self.coordination.on_reason(reason)

    # --- signals

    def _on_signals(self) -> None:
        """Handle the signals that have arrived."""
        for number, code, sender in read_signals(self.signals.fd):
            if number == signal.SIGCHLD:
                self.group.note_child()
            elif sender != os.getpid():  # a write that fails with EPIPE sends us SIGPIPE
                self.on_signal(number, from_terminal=code == SI_KERNEL)

    def on_signal(self, number: int, *, from_terminal: bool) -> None:
        """Handle a signal that arrived here or at another launcher of the job."""
        if self.coordination.takes_signal(number, from_terminal=from_terminal):
            return
        before = self.forwarder.told
        self.forwarder.on_signal(number, from_terminal=from_terminal)
        if before is None and self.forwarder.told is not None:
            self.coordination.on_told(self.forwarder.told)

    # --- the end

    @property
    def deadline_file(self) -> str | None:
        """Path of the file with the preemption deadline for the processes; None without a folder."""
        return None if self.folder.path is None else f"{self.folder.path}/{DEADLINE_NAME}"

    def describe_state(self) -> str:
        """Return the state of this node in a few words."""
        told = self.coordination.describe_state()
        if told is not None:
            return told
        if self.group.running:
            return "stopping" if self.is_ending else "running"
        if self.template is not None and not self.template.is_settled:
            return "importing"
        if self.restarter.starts_at is not None:
            return self.restarter.describe_wait(self.attempt + 1, self.restarter.starts_at)
        return "ended"

    def _finish(self) -> int:
        """Report how the job ended, and return its status."""
        if self.coordination.speaks and self.folder.keeps and self.folder.path is not None:
            self.say(f"logs: {self.folder.path}", "logs")
        status = self.coordination.finish()
        if not status:
            self.loop.guard(self.restarter.withdraw)
            self.loop.guard(self.observers.record_doubts)
        status = self.restarter.exit_status(status)
        self.loop.guard(lambda: self.restarter.summarize(status))
        if self.watch.timings and self.timings.attempts:
            self.loop.guard(lambda: self.say("\n".join(self.timings.describe()), "timings"))
        return status


def _say_nothing(text: str, event: str, **fields: object) -> None:
    """Print nothing: not every one of a thousand ranks needs to report the same."""


def run_processes(
    children: Sequence[Child],
    watch: Supervision,
    place: NodePlace,
    environ: Mapping[str, str],
    *,
    widen: bool = False,
    checks: Checks | None = None,
    serve: Serve | None = None,
    renew: Callable[[], Sequence[Child]] | None = None,
) -> int:
    """Run processes on this node only, and return the job's status; see `Agent`.

    Args:
        children: The companions, then the ranks by local rank, in the order in which they start.
        watch: How to watch, stop and report them.
        place: Node rank and world size.
        environ: The launcher's own environment.
        widen: Whether to undo the CPU binding that mpirun gave us.
        checks: Checks this node while the processes run.
        serve: Makes the server that answers questions about the job.
        renew: Returns the processes of another attempt; None if they are the same.

    Raises:
        LauncherError: A process cannot be started (126, 127), or a log file cannot be written (75).
    """
    paths = find_programs(children)
    if widen:
        widen_cpus()
    agent = Agent(watch, place, environ, single=len(children) == 1, checks=checks, serve=serve)
    agent.take(children, paths)
    if renew is not None:
        agent.renew = lambda: agent.take(renew(), paths)
    return agent.run()


def find_programs(children: Sequence[Child]) -> list[str]:
    """Return the path of each process's program.

    Raises:
        CommandNotFound, CommandNotExecutable: A program cannot be started.
    """
    return [find_program(child.argv[0], child.environ) for child in children]


def widen_cpus() -> None:
    """Undo the CPU binding that mpirun gave us; the kernel limits the result to the cgroup's cpuset."""
    os.sched_setaffinity(0, range(CPU_LIMIT))
