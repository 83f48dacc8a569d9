"""The head of a job that mpirun starts: runs mpirun for each attempt that the controller starts.

mpirun only places and starts the processes. All else bypasses it and goes through the launchers of the
nodes. An mpirun that gets SIGTERM, or that sees a rank fail, gives its ranks only 0.5 to 2 s. One whose
network is cut does nothing at all. The exit status of a failed job differs between mpiruns.
"""

from __future__ import annotations

import os
import stat
import time

from launcher.cluster import messages
from launcher.cluster.outcome import read_failure, read_verdict
from launcher.core.errors import EXIT_NOT_READY
from launcher.core.frozen import replace
from launcher.core.redact import printable, redact
from launcher.core.signal import signal
from launcher.failure.arbiter import FOLLOW_LOSS, PREEMPTED, STARTER, Event, find_first_event
from launcher.job import commands, events
from launcher.job.state import Phase
from launcher.machine.process import find_children
from launcher.mpi.lead import Lead
from launcher.mpi.protocol import FROM_NODE
from launcher.mpi.ranks import KILL_WAIT_S, SETTLE_S, RanksTarget
from launcher.mpi.reports import Reports, explains
from launcher.preemption.events import DUE
from launcher.process.signal_file import ending_of, name_signal
from launcher.process.spawn import Streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.agent.coordination import Coordination
    from launcher.agent.runtime import Runtime
    from launcher.failure.model import Verdict
    from launcher.process.spawn import Child

EXPLAIN_S = 2.0
"""Seconds to wait for reports after mpirun's end: a node may still tell the cause."""


class Head(Lead):
    """Coordination of mpirun with the nodes.

    Attributes:
        ending: The ranks as the target of signals.
        reports: What the nodes report of the ranks.
    """

    _again: messages.Again | None = None

    def coordinate(self) -> Coordination:
        """Return what the agent asks and reports."""
        return replace(
            super().coordinate(), route=self.route, helpers=self.helpers, on_told=self.on_told,
            on_reason=lambda reason: self._fail_here(reason.kind, reason.status, reason.what),
            on_preemption=self.on_preemption, restarts=self.restarts, finish=self.finish,
        )  # fmt: skip

    def attach(self, runtime: Runtime) -> RanksTarget:
        """Create the parts, and return the ranks of all nodes as the target of signals."""
        super().attach(runtime)
        self.channel.subscribers |= dict.fromkeys(FROM_NODE, self._on_report)
        grace_s = runtime.watch.grace_s
        self._world_size = self.job.shape.world_size or 0
        self.ending = RanksTarget(
            self.nodes, self._world_size, grace_s, runtime.say, self.channel.broadcast, runtime.group
        )
        per_node = self._world_size // len(self.nodes)
        self.reports = Reports(self.nodes, per_node, self.ending, self._fail, self._note_signal)
        return self.ending

    def route(self, child: Child, streams: Streams) -> Streams:
        """Give mpirun an empty standard input if rank 0 reads ours itself."""
        if self.job.briefing.stdin is None:
            return streams
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return Streams(null, streams.stdout, streams.stderr)

    def helpers(self) -> tuple[int, ...]:
        """Return our children that are not the job's, so that we do not stop them.

        What mpirun leaves behind becomes our child. While ranks run on this node, that is for others to end:
        the ranks have their grace, and the end of the job is the end of the rest.
        """
        left = find_children(os.getpid()) if self.nodes[0].running else ()
        return tuple(pid for pid in left if pid not in self.runtime.group.running)

    def begin(self) -> None:
        """Forget the attempt before, and start the timers of the end and of the counting."""
        self._again = None
        self.ending.begin_attempt()
        self.reports.begin_attempt()
        super().begin()
        self.runtime.loop.timers += [self.ending, self.reports]

    # --- to the controller

    def _on_report(self, index: int, message: object) -> None:
        """Handle a message about ranks of a node."""
        if self.channel.state.phase in (Phase.RUNNING, Phase.STOPPING):
            self.reports.take(self.nodes[index], message)

    def on_preemption(self, kind: str, what: str, left_s: float, ends: bool) -> None:
        """Report that this node is preempted."""
        if kind == DUE and (ends or self.runtime.watch.restarts.most):
            self._fail_here(PREEMPTED, EXIT_NOT_READY, what, int(left_s * 1000))

    def _fail_here(self, kind: str, status: int, what: str, left_ms: int | None = None) -> None:
        """Report an event of this node that is not the end of a rank."""
        event = Event(0, kind, time.monotonic_ns(), status, what=printable(redact(what)))
        failed = events.Failed(0, event, self.attempt, left_ms)
        self.channel.feed(read_failure(0, self.nodes[0].name_in_full, failed))

    def _fail(self, event: Event) -> None:
        """Report what ends the attempt; a rank that was asked to end stops the others, too."""
        self.channel.feed(events.Failed(event.node, event, self.attempt))
        if event.asked:
            self._stop_ranks(event.what)

    def _note_signal(self, number: int) -> None:
        """Treat the job as stopped: a rank died of a signal that was only forwarded."""
        if self.runtime.forwarder.told is None:
            self.runtime.forwarder.told = number
            self.on_told(number)

    # --- from the controller

    def deliver(self, message: object) -> None:
        """Handle a message for this node, as the others get it."""
        super().deliver(message)
        match message:
            case commands.Stop(number=int(number)) if message.by:
                self.runtime.say(f"{message.why}: passing it on to all ranks", "signal")
                self.runtime.told_by = message.why
                self.parts.on_signal(ending_of(number), False)
            case commands.Stop():
                self._stop_ranks(message.why)
            case messages.Again():
                self._again = message

    def _stop_ranks(self, why: str) -> None:
        """Stop the ranks, which would otherwise wait for what has ended forever."""
        if not self.ending.begun and self.runtime.group.running:
            others = self.ending.count
            self.runtime.say(
                f"{why}; stopping the other {'one' if others == 1 else others}" if others else why, "stopping"
            )
            self.ending.stop(signal.SIGTERM)

    # --- the end of an attempt

    def restarts(self) -> bool:
        """Whether mpirun starts again; returns when all nodes are ready for that, and it is time."""
        self._await_reports()
        self._end_attempt()
        again = self._again
        if again is None:
            return False
        self.parts.outcomes.report_job(again.over.first, lambda: self.judge(again.over))
        self.runtime.say(again.why, "restart")
        self.runtime.group.turn_while(lambda: self.channel.state.phase is Phase.BETWEEN)
        if self.channel.state.phase is Phase.OVER:
            return False
        self.runtime.attempt = self.attempt
        return True

    def _await_reports(self) -> None:
        """Wait until all ranks have ended and what ended the attempt is known, once mpirun has ended."""
        mpirun, ending, grace_s = self.runtime.group.processes[0], self.ending, self.runtime.watch.grace_s
        wait_for = self.runtime.loop.turn_until
        wait_for(lambda: ending.has_ended, EXPLAIN_S)  # ranks may report later than mpirun ends
        if ending.count and not ending.begun:
            self.runtime.say(f"mpirun has ended; stopping {ending.describe()}", "stopping")
            ending.stop(signal.SIGTERM)
        wait_for(lambda: ending.has_ended, grace_s + 2 * KILL_WAIT_S)
        if mpirun.status and not self.failures:
            wait_for(lambda: bool(self.failures), EXPLAIN_S)
        first = find_first_event(self.failures, {})
        if first is not None and first.kind in FOLLOW_LOSS:
            wait_for(lambda: find_first_event(self.failures, {}) is not first, SETTLE_S / 2)
        if self.runtime.forwarder.told is None:
            self.reports.check_all(succeeded=not self.failures and not mpirun.status)

    def _end_attempt(self) -> None:
        """Report that the ranks of all nodes have ended."""
        runtime, told = self.runtime, self.runtime.forwarder.told
        mpirun = runtime.group.processes[0]
        first = find_first_event(self.failures, {})
        status, record = 0, self.reports.find_verdict(first)
        if first is None and told is not None:
            status = 0 if len(self.reports.ends) >= self._world_size else 128 + told
        elif first is None or explains(mpirun, first):  # its own messages say why
            outcome = self.parts.outcomes.find()
            status, record = outcome.status, outcome.verdict
            if mpirun.status:
                event = Event(0, STARTER, mpirun.ended_ns, mpirun.status, what=f"{mpirun.name} {mpirun.end}")
                self._fail(first := event)
        status = status if first is None else first.status
        progressed = self.parts.observers.progressed
        for node in self.nodes:
            verdict = record if first is not None and node.index == first.node else None
            ended = events.Exited(node.index, status, self.attempt, verdict, progressed)
            self.channel.feed(ended)

    # --- the end of the job

    def judge(self, over: messages.Over) -> Verdict | None:
        """Return the verdict on the whole job, with the ends of all ranks; None if nothing has failed."""
        runtime, number = self.runtime, self.runtime.forwarder.told
        verdict = read_verdict(over, None, self.job.shape, runtime.started_ns, self.attempt)
        first = None if over.first is None else over.first.event
        if verdict is None or first is None or first.kind == STARTER:
            return verdict
        told = None if number is None else name_signal(number)
        return replace(
            verdict, started_ns=runtime.started_ns, ended_ns=runtime.at_ns(first.at_ns),
            node_rank=first.node, others=self.reports.describe_others(first, told), told=told,
        )  # fmt: skip

    def finish(self, report: Callable[[], int]) -> int:
        """Report how the job ended, and return its status."""
        over = self.over
        assert isinstance(over, messages.Over)  # noqa: S101 - no other attempt follows
        if over.status:
            self.close()
        self.parts.outcomes.report_job(over.first, lambda: self.judge(over))
        if over.why:
            self.runtime.say(over.why, "no-restart")
        return over.status


def find_stdin() -> str | None:
    """Return the path at which rank 0, on our node, can read our standard input.

    Returns:
        The descriptor in /proc for a file or a pipe; None for a socket, which has no path; /dev/null for all
        else, such as a terminal.
    """
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return os.devnull
    if stat.S_ISSOCK(mode):
        return None
    return f"/proc/{os.getpid()}/fd/0" if stat.S_ISREG(mode) or stat.S_ISFIFO(mode) else os.devnull
