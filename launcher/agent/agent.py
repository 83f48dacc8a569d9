"""The agent of a node: starts, watches and stops a group of processes, one attempt after another.

It makes the parts, and carries what one of them reports to the others: the process group, the output
router, the signal forwarder, the observers, the evidence, the outcomes, and the coordination with the rest
of the job. No part knows the agent.
One loop waits for everything: signals (blocked, read from a descriptor), the exit of each process (a pidfd),
output, and timers. There are no signal handlers, so nothing is interrupted. From the first fork on, no fault
of the launcher ends the job.
"""

from __future__ import annotations

import gc
import os
import time

from launcher.agent.collector import Collector
from launcher.agent.observers import Observers
from launcher.agent.outcomes import Outcomes
from launcher.agent.runtime import Runtime
from launcher.agent.signals import GroupTarget, SignalForwarder
from launcher.core.frozen import frozen, replace
from launcher.core.signal import signal
from launcher.job.exits import SETTLE_S, Action, Exit, NodeProcesses, counts, decide, may_follow
from launcher.process.execute import CPU_LIMIT, find_program
from launcher.process.group import ProcessGroup
from launcher.process.kernel import read_signals
from launcher.process.loop import Later
from launcher.process.signal_file import SI_KERNEL, send
from launcher.process.watchdog import MARK, mark_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.agent.coordination import Coordination
    from launcher.agent.observers import Checks, QuestionServer
    from launcher.agent.runtime import NodePlace
    from launcher.core.supervision import Supervision
    from launcher.failure.reason import Reason
    from launcher.process.spawn import Child, Process, Streams

    Serve = Callable[["Agent"], QuestionServer]

AUTOTUNING = "--autotuning"
"""DeepSpeed's flag for many jobs one after the other, of which it ends some."""
FOREGROUND_S = 0.2
"""Seconds between two looks whether a job that the terminal has stopped is in the foreground."""
DEADLINE_FILE = "LAUNCHER_DEADLINE"
"""Variable with the path of the file that holds the preemption deadline of this node, once announced."""
RESTART_COUNT, ATTEMPT = "TORCHELASTIC_RESTART_COUNT", "LAUNCHER_ATTEMPT"
"""Variables with the number of the attempt, set from the first restart on: torch's, and ours."""


@frozen
class AgentParts:
    """What of an agent the coordination of its job works with.

    Attributes:
        evidence: Asks the processes what they do.
        observers: What is watched beside the processes.
        outcomes: How attempts end.
        take: Takes the processes of the next attempt, and the paths of their programs.
        stop_rest: Stops the processes because of a failure.
        on_signal: Handles a signal as if it had arrived here; the second value: from the terminal.
        clean_up: Removes the private files of this run, if the launcher was killed.
    """

    evidence: Collector
    observers: Observers
    outcomes: Outcomes
    take: Callable[[Sequence[Child], Sequence[str]], None]
    stop_rest: Callable[[], None]
    on_signal: Callable[[int, bool], None]
    clean_up: Callable[[bool], None]


class Agent:
    """Runs the processes of this node, from the rendezvous to the failure report.

    Attributes:
        runtime: The values and tools of the launcher, and what has happened so far.
        coordination: The rest of the job.
        evidence: Asks the processes what they do.
        observers: What is watched beside the processes.
        outcomes: How attempts end.
        parts: The parts for the coordination.
    """

    def __init__(
        self,
        watch: Supervision,
        place: NodePlace,
        environ: Mapping[str, str],
        coordination: Coordination,
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
            coordination: Coordination with the rest of the job.
            single: Whether there will be one process.
            log_id: Name of the log directory, if not that of this run.
            run_id: Name of this run; empty for a random one.
            checks: Checks this node while the processes run, in a process of its own, and returns lines to
                print; None for no checks.
            serve: Makes the server that answers questions about the job; None for no server.
            command: The user's command, if the processes run something else.
        """
        self.coordination = coordination
        self._settles = False
        self.runtime = runtime = Runtime(
            watch,
            place,
            environ,
            single=single,
            shares_terminal=coordination.shares_terminal,
            lends_terminal=coordination.lends_terminal,
            log_id=log_id,
            run_id=run_id,
            command=command,
        )
        self.group = runtime.group = ProcessGroup(
            runtime.loop, runtime.signals, runtime.say,
            prepare=self._prepare, note_started=runtime.output.started, on_exit=self._on_exit,
            on_stopped=self._on_stopped, before_kill=self._before_kill, list_helpers=self._list_helpers,
            grace_s=watch.grace_s, to_group=watch.signal_to == "group",
        )  # fmt: skip
        runtime.target = coordination.attach(runtime) or GroupTarget(runtime.group)
        says = runtime.say if coordination.speaks else _say_nothing
        runtime.forwarder = SignalForwarder(
            runtime.target, watch, says, shares_terminal=runtime.shares_terminal
        )
        self.evidence = Collector(runtime, coordination)
        self.observers = Observers(
            runtime, coordination, self.evidence, self.end_for, checks,
            None if serve is None else lambda: serve(self),
        )  # fmt: skip
        self.outcomes = Outcomes(runtime, coordination, self.observers, self.evidence)
        self.parts = AgentParts(
            self.evidence, self.observers, self.outcomes,
            self.take, self.stop_rest, self.on_signal, self.clean_up,
        )  # fmt: skip
        runtime.loop.add(runtime.signals.fd, self._on_signals)

    def take(self, children: Sequence[Child], paths: Sequence[str]) -> None:
        """Take the processes to start: the companions, then the ranks by local rank.

        Args:
            children: The processes, in the order in which they start.
            paths: Paths of their programs, see `find_programs`.
        """
        self.group.take(children, paths)
        self.runtime.output.expect(several=len(children) > 1)
        self.preload(children, paths)

    def preload(self, children: Sequence[Child], paths: Sequence[str]) -> None:
        """Have modules imported, if that was asked for and not begun, by a process that forks the ranks.

        Args:
            children: The processes of this node, as far as they are known.
            paths: Paths of their programs.
        """
        runtime = self.runtime
        if runtime.watch.preload is None or runtime.template is not None or not children:
            return
        from launcher.agent.template import Template

        loop, group = runtime.loop, self.group
        template = Template(
            runtime.watch.preload, loop, group.helpers, runtime.signals, runtime.output, runtime.folder
        )
        template.start(children, paths[-1], {MARK: mark_of(runtime.run_id, runtime.environ)})
        runtime.template = group.template = template

    # --- the whole run

    def run(self) -> int:
        """Run all attempts until everything has ended, and return the job's status.

        Returns:
            0, the first failing process's own status, or 128+n if signal n ended it.

        Raises:
            LauncherError: The nodes do not come together (75, 78), a process cannot be started (126, 127), or
                a log file cannot be written (75); all processes that were started are gone by then.
        """
        runtime = self.runtime
        try:
            if not self.coordination.gather():
                told = runtime.forwarder.told
                return self._finish() if told is None else self.outcomes.exit_status(128 + told)
            if self.coordination.has_others:
                self.observers.note_together()
            self._run_attempt()
            while self.coordination.restarts():
                self._run_attempt()
            self.observers.end()
            return self._finish()
        except Exception as error:
            reason = error
            runtime.loop.guard(lambda: self.outcomes.note_error(reason))
            raise
        finally:
            self._close()

    def _run_attempt(self) -> None:
        """Run one attempt: start everything, and wait until everything has ended."""
        runtime = self.runtime
        runtime.clear()
        self._settles = False
        moments = runtime.timings.begin()
        self.outcomes.begin()
        self.observers.begin()
        self.group.begin_attempt()
        self.evidence.begin()
        runtime.loop.timers[:] = [self.group.stopper, runtime.output, runtime.forwarder, self.evidence]
        self.coordination.begin()
        if runtime.template is not None:
            if self.coordination.guards and not self.coordination.has_others:  # others: it needs their lease
                self.group.start_watchdog(runtime.run_id, self.clean_up)
            self.observers.answer()
            runtime.template.wait(lambda: self.group.stopper.number is not None)
            moments.imported = time.monotonic()
        if self.coordination.guards:  # before the first process: we may be killed while we start them
            self.group.start_watchdog(runtime.run_id, self.clean_up, self.coordination.find_lease())
        runtime.started_mono_ns = time.monotonic_ns()
        runtime.output.first_s = None
        before = os.times()
        self.group.start()
        moments.started = time.monotonic()
        runtime.forwarder.release()
        if runtime.template is not None:
            self.group.stopper.tell_new()  # a signal may have come while modules were imported
            if not runtime.watch.restarts.most:
                runtime.template.close()
        self.coordination.began()
        gc.enable()
        self.observers.begin_attempt()
        runtime.loop.guard(self.outcomes.note_start)
        self.group.turn_while(lambda: self.group.is_busy)
        if self.group.stopper.left:
            now = os.times()
            used_s = now.children_user + now.children_system - before.children_user - before.children_system
            runtime.loop.guard(lambda: self._note_left(used_s))
        moments.ended = time.monotonic()
        self.evidence.close()
        self.observers.look()
        self.observers.end_attempt()
        runtime.output.end_attempt()
        if not runtime.shares_terminal or any((one.code or 0) < 0 for one in self.group.ended):
            runtime.loop.guard(runtime.output.stdin.restore)  # stty: a single process may have set them
        if self.observers.progress is not None:
            runtime.loop.guard(self.observers.progress.finish)
        self.observers.look()
        is_told = runtime.forwarder.told is not None or self.observers.is_preempted
        moments.has_failed = self.outcomes.has_failed and not is_told
        if self.group.refused is not None:
            self.coordination.on_refused(self.group.refused)
            raise self.group.refused

    def _note_left(self, used_s: float) -> None:
        """Fail the job if its processes ended with 0 and left work for us to end.

        A command that starts the ranks ended while one was running: DeepSpeed's does if a signal ends its
        launcher. Or a shell ended at once, or setsid, which leaves its command behind where it leads a
        process group, as our processes do. A shell that has waited for work of its own since it started them
        has left a daemon.

        Args:
            used_s: CPU time of the processes of this attempt that have ended and been waited for.
        """
        from launcher.command.fronts import find_front
        from launcher.command.words import may_be_shell, name_program
        from launcher.core.ranks import name_ranks
        from launcher.failure.arbiter import LEFT
        from launcher.failure.reason import (
            LEFT_RANKS_FIX,
            LEFT_WITHIN_S,
            LEFT_WORK_CPU_S,
            LEFT_WORK_S,
            Reason,
        )

        runtime = self.runtime
        ranks = [one for one in self.group.ended if not one.child.companion]
        is_quick = all(one.ended_ns - runtime.started_mono_ns < LEFT_WITHIN_S * 1e9 for one in ranks)
        is_own = runtime.first is None and runtime.reason is None and runtime.forwarder.told is None
        left = f"and left {self.group.stopper.left}"
        still = self._find_left_ranks(ranks[0].child) if is_own and ranks else []
        if still:
            what = f"{ranks[0].child.name} ended with 0 before {name_ranks(still)} did, {left}"
            self.end_for(Reason(LEFT, what, LEFT_RANKS_FIX))
            return
        lines = [one.child.argv for one in ranks]
        fronts = [line[: find_front(line).count] for line in lines]
        parted = [any(name_program(word) == "setsid" for word in front) for front in fronts]
        starters = [
            part or may_be_shell(line[len(front) :])
            for part, line, front in zip(parted, lines, fronts, strict=True)
        ]
        left_at_s = self.group.stopper.left_at_s
        awake_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
        last_s = max((one.ended_ns for one in ranks), default=0) / 1e9 + awake_s
        has_worked = left_at_s is not None and last_s - left_at_s > LEFT_WORK_S and used_s > LEFT_WORK_CPU_S
        if ranks and is_quick and is_own and all(starters) and not has_worked:
            what = f"{'setsid' if any(parted) else 'the shell'} ended within {LEFT_WITHIN_S:g} s"
            fix = "`setsid --wait`, or without setsid" if any(parted) else ""
            self.end_for(Reason(LEFT, f"{what}, {left}", fix))

    def _find_left_ranks(self, starter: Child) -> list[int]:
        """Return the ranks that a command for starting them has left behind; none of an autotuner's trials.

        A rank's command line has the last word of the script and its arguments; what a rank starts has not.
        """
        if not starter.called or any(word.startswith(AUTOTUNING) for word in starter.argv):
            return []
        found = self.group.stopper.left_ranks
        return sorted(rank for rank, line in found.items() if starter.argv[-1] in line)

    def clean_up(self, is_clear: bool) -> None:
        """Remove the private files of this run; the watchdog calls this if the launcher was killed.

        Args:
            is_clear: Whether nothing that the launcher has started runs any more.
        """
        self.runtime.folder.remove()
        self.coordination.clean_up()
        if is_clear:
            self.coordination.report_killed()

    def _close(self) -> None:
        """Close all parts, and leave nothing behind."""
        runtime = self.runtime
        self.coordination.close()
        self.evidence.close()
        self.observers.close(self.outcomes.status, self.outcomes.cause, self.outcomes.error)
        if runtime.template is not None:
            runtime.template.close()
        runtime.output.close()
        runtime.folder.remove()
        self.group.helpers.close()
        self.group.dismiss_watchdog()  # last: it also cleans up if we are killed while closing

    # --- called by the process group

    def _prepare(self, index: int, child: Child) -> tuple[Child, Streams]:
        """Return a process with all its settings, and its standard streams."""
        runtime = self.runtime
        streams = runtime.output.open(index, child, runtime.folder, runtime.attempt)
        mark = {MARK: mark_of(runtime.run_id, runtime.environ, self.coordination.find_mark())}
        files = runtime.folder.variables(runtime.attempt, child.folder, child.environ)
        settings = mark | files | self.observers.plan(child)
        settings |= runtime.count_starts(child)
        if runtime.deadline_file and (
            runtime.watch.preemption is not None or self.coordination.awaits_deadline
        ):
            settings[DEADLINE_FILE] = runtime.deadline_file
        if runtime.attempt:
            settings |= {RESTART_COUNT: str(runtime.attempt), ATTEMPT: str(runtime.attempt)}
        started = replace(child, environ={**child.environ, **settings})
        return started, self.coordination.route(child, streams)

    def _on_stopped(self, process: Process, number: int) -> None:
        """Name a process that the terminal has stopped."""
        runtime = self.runtime
        from launcher.output.stdin import describe_stopped

        text = describe_stopped(process, number, is_terminal=runtime.output.stdin.is_terminal)
        runtime.say(text, "rank-stopped", rank=None if process.child.called else process.child.rank)
        if process.has_terminal:
            self._continue_in_foreground(process)

    def _continue_in_foreground(self, process: Process) -> None:
        """Continue a process once we have the foreground.

        A shell's fg sends no SIGCONT to a job that runs, and the launcher was not stopped.
        """
        runtime = self.runtime
        if process.code is None and runtime.output.stdin.is_in_foreground():
            send(0, signal.SIGCONT)
        elif process.code is None:
            due = time.monotonic() + FOREGROUND_S
            runtime.loop.timers.append(Later(due, lambda: self._continue_in_foreground(process)))

    def _before_kill(self) -> None:
        """Write the failure record: the platform may kill us, too, while the processes end."""
        if self.coordination.guards:  # else another launcher writes it
            self.runtime.loop.guard(self.outcomes.record_early)

    def _list_helpers(self) -> tuple[int, ...]:
        """Return the PIDs of our children that are not processes of the job."""
        return (*self.observers.helpers(), *self.evidence.helpers(), *self.coordination.helpers())

    def _on_exit(self, process: Process) -> None:
        """Handle the exit of a process: decide what it means for the others."""
        self._note_told(process)
        end, state = self._describe(process)
        action = decide(end, state)
        if counts(end, state):
            self._note_failure(process, end)
        self.observers.network.note_end()
        if self.group.refused is None:
            self._act(action, process)

    def _note_told(self, process: Process) -> None:
        """Treat the job as stopped if a process died of a signal that we only forwarded."""
        runtime = self.runtime
        number = process.passed_on
        is_ours = process.pid in self.group.stopper.told or runtime.forwarder.told is not None
        if number and process.status == 128 + number and not is_ours:
            runtime.forwarder.told = number
            self.coordination.on_told(number)

    def _describe(self, process: Process) -> tuple[Exit, NodeProcesses]:
        """Return the exit of a process and the state of the others, as input of the policy."""
        running = self.group.running.values()
        companions = [one.child for one in running if one.child.companion]
        state = NodeProcesses(
            ranks=len(running) - len(companions),
            companions=len(companions),
            finishing=any(child.finishes for child in companions),
            has_ranks=not all(child.companion for child in self.group.children),
            stopping=self.runtime.is_ending,
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
        runtime = self.runtime

        def look() -> bool:
            index = self.group.processes.index(process)
            runtime.output.read_rest(index)
            if not may_follow(runtime.output.read_errors(index)):
                return False
            from launcher.agent.ends import only_follows

            return only_follows(runtime, process)

        return runtime.loop.guarded(look, False)

    def _note_failure(self, process: Process, end: Exit) -> None:
        runtime = self.runtime
        if runtime.first is None:
            runtime.first = process
            runtime.forwarder.note_end()
            runtime.told_before = runtime.forwarder.told
            self.observers.note_failure()
        if not self.group.stopper.begun or process is runtime.first:
            runtime.failed.append(process)
            self.coordination.on_failure(process, end.follows)

    def _act(self, action: Action, process: Process) -> None:
        runtime = self.runtime
        if action is Action.STOP:
            self._stop_others(process)
        elif action is Action.SETTLE:
            self._settles = True
            what = f"it lost another process, which gets {SETTLE_S:g} s to exit and report why"
            runtime.say(f"{process.name} {process.end}: {what}", "settling")
            due = time.monotonic() + SETTLE_S  # then the rank that it lost has not exited by itself
            runtime.loop.timers.append(Later(due, lambda: self._stop_others(process)))
        elif action is Action.STOP_COMPANIONS:
            self.group.stopper.begin(signal.SIGTERM)
        elif action is Action.KEEP_COMPANIONS:
            self.coordination.on_ranks_ended()
        elif action is Action.WAIT_FOR_COMPANIONS:
            due = time.monotonic() + runtime.watch.grace_s
            runtime.loop.timers.append(Later(due, self._stop_companions))

    def _stop_others(self, process: Process) -> None:
        """Stop the others because a process has failed, unless they are stopped already."""
        runtime = self.runtime
        others = len(self.group.running)
        if others and not runtime.is_ending:
            runtime.say(
                f"{process.name} {process.end}; stopping the other {'one' if others == 1 else others}",
                "stopping",
            )
            self.stop_rest()

    def stop_rest(self) -> None:
        """Stop the processes because of a failure; first they are asked what they do."""
        self.evidence.ask_before_stop(lambda: self.runtime.target.stop(signal.SIGTERM))

    def _stop_companions(self) -> None:
        """Stop the companions that should have exited by themselves within the grace period."""
        runtime = self.runtime
        running = self.group.running.values()
        if running and not runtime.is_ending:
            names = ", ".join(process.name for process in running)
            after = f"{runtime.watch.grace_s:g} s after the last rank ended"
            runtime.say(f"{names}: still running {after}; sending SIGTERM", "companions-late")
            self.group.stopper.begin(signal.SIGTERM)

    def end_for(self, reason: Reason) -> None:
        """End the job as a failure, for a reason of the launcher's own."""
        runtime = self.runtime
        runtime.reason = runtime.reason or reason
        if self.group.running:
            self.stop_rest()
        self.coordination.on_reason(reason)

    # --- signals

    def _on_signals(self) -> None:
        """Handle the signals that have arrived."""
        for number, code, sender in read_signals(self.runtime.signals.fd):
            if number == signal.SIGCHLD:
                self.group.note_child()
            elif sender != os.getpid():  # a write that fails with EPIPE sends us SIGPIPE
                self.on_signal(number, code == SI_KERNEL)

    def on_signal(self, number: int, from_terminal: bool) -> None:
        """Handle a signal that arrived here or at another launcher of the job."""
        runtime = self.runtime
        if self.coordination.takes_signal(number, from_terminal):
            return
        before = runtime.forwarder.told
        runtime.forwarder.on_signal(number, from_terminal=from_terminal)
        if before is None and runtime.forwarder.told is not None:
            self.coordination.on_told(runtime.forwarder.told)

    # --- the end

    def _record_doubts(self) -> None:
        """Write a record of a job that ended with 0 although a warning says that it may have failed."""
        if self.observers.doubts:
            from launcher.agent.report import record_doubts

            record_doubts(self.runtime, self.observers)

    def describe_state(self) -> str:
        """Return the state of this node in a few words."""
        runtime = self.runtime
        told = self.coordination.describe_state()
        if told is not None:
            return told
        if self.group.running:
            return "stopping" if runtime.is_ending else "running"
        if runtime.template is not None and not runtime.template.is_settled:
            return "importing"
        if self.outcomes.starts_at is not None:
            return self.outcomes.describe_wait(runtime.attempt + 1, self.outcomes.starts_at)
        return "ended"

    def describe(self) -> dict[str, object]:
        """Return for a status: this node's state and timings, and the job's nodes, failures and progress."""
        return {
            "state": self.describe_state(),
            "nodes": self.coordination.describe_nodes(),
            "timings": self.observers.read_timings(),
            "failed": self.outcomes.failed,
            "progress_s": self.observers.progress_s,
            "delay_s": self.coordination.read_delay_s(),
        }

    def _finish(self) -> int:
        """Report how the job ended, and return its status."""
        runtime = self.runtime
        if self.coordination.speaks and runtime.folder.keeps and runtime.folder.path is not None:
            runtime.say(f"logs: {runtime.folder.path}", "logs")
        status = self.coordination.finish(self.outcomes.report)
        if not status:
            runtime.loop.guard(self.outcomes.withdraw)
            runtime.loop.guard(self._record_doubts)
        status = self.outcomes.exit_status(status)
        runtime.loop.guard(lambda: self.outcomes.summarize(status))
        if runtime.watch.timings and runtime.timings.attempts:
            runtime.loop.guard(lambda: runtime.say("\n".join(runtime.timings.describe()), "timings"))
        return status


def _say_nothing(text: str, event: str, **fields: object) -> None:
    """Print nothing: not every one of a thousand ranks needs to report the same."""


def find_programs(children: Sequence[Child]) -> list[str]:
    """Return the path of each process's program.

    Raises:
        CommandNotFound, CommandNotExecutable: A program cannot be started.
    """
    return [find_program(child.argv[0], child.environ) for child in children]


def widen_cpus() -> None:
    """Undo the CPU binding that mpirun gave us; the kernel limits the result to the cgroup's cpuset."""
    os.sched_setaffinity(0, range(CPU_LIMIT))
