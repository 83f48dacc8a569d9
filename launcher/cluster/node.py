"""Coordination of one node with the others: starts with them, ends with them, does what node 0 decides.

`launcher.job.node` says what a node does in which state; here messages, signals and the ends of processes
become its events, and its commands are carried out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from launcher.agent.agent import find_programs
from launcher.agent.coordination import Coordination
from launcher.agent.readiness import Readiness
from launcher.agent.runtime import NodePlace
from launcher.cluster import messages
from launcher.cluster.agreed import name_mark, read_rank
from launcher.cluster.client import CoordinatorClient
from launcher.cluster.clocks import read_clock
from launcher.cluster.coordinator import Coordinator
from launcher.cluster.outcome import lose_coordinator, read_refusal, read_verdict
from launcher.cluster.questions import Questions
from launcher.core.errors import EXIT_NOT_READY, LauncherError, NotReady
from launcher.core.frozen import replace
from launcher.core.model import NODE
from launcher.core.redact import printable, redact
from launcher.core.shorten import fit
from launcher.core.signal import signal
from launcher.failure.arbiter import GAVE_UP, PREEMPTED, RANK, REFUSED, UNMET, UNPROVEN, Event
from launcher.hang.model import Hung, Look, Seen
from launcher.job import commands, events, node
from launcher.job.refusals import node_0_missing
from launcher.job.settings import BEAT_S, LATE_COMERS_S, LEAVE_S, SAY_EVERY_S
from launcher.job.state_machine import StateMachine
from launcher.preemption.events import ANNOUNCED, DUE, LATEST_S, WITHDRAWN
from launcher.process.loop import Every
from launcher.process.signal_file import ENDING_IDLE, ending_of, name_signal
from launcher.recovery.policy import Decision
from launcher.remote.starter import tell_starter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from launcher.agent.agent import AgentParts
    from launcher.agent.runtime import Runtime
    from launcher.cluster.settings import Shape
    from launcher.process.spawn import Child, Process

    Channel = Coordinator | CoordinatorClient
    MakeChannel = Callable[["ClusterNode"], Channel]
    MakeChildren = Callable[[messages.Start], Sequence[Child]]

LAST_TRY_S, JOIN_TRY_S = 5.0, 1.0
"""Seconds for a node that gave up node 0 to tell it so, and for one that is told to stop while it calls."""
ARRIVE_S = 1.0
"""Seconds for our last message to arrive."""
PATIENCE_S = max(LEAVE_S, LATE_COMERS_S) + ARRIVE_S
NOTICE_LENGTH = 400
BEFORE = {UNPROVEN: "not the required fabric: ", UNMET: "--require-meeting: "}
"""What comes before a reason of a node's own to end the job."""


class ClusterNode:
    """The agent's side of the control channel.

    Attributes:
        shape: The job, and this node's place in it.
        parts: The parts of the agent; set before it runs, like `runtime`.
        runtime: Values and tools of the launcher.
        agreed: Values of the start signal of the attempt that runs, or ran last; None before the first.
        over: How the job has ended, once node 0 has decided, or is lost.
        subscribers: Handlers of messages of node 0 that are not the channel's own, by type.
        channel: Channel to the other nodes: `Coordinator` on node 0, `CoordinatorClient` on the others; set
            by `gather`.
        machine: What this node does; set by `gather`.
    """

    parts: AgentParts
    runtime: Runtime
    channel: Channel
    machine: StateMachine[node.NodeState]

    def __init__(
        self,
        shape: Shape,
        make_channel: MakeChannel,
        make_children: MakeChildren,
        make_twin: Callable[[ClusterNode], CoordinatorClient | None] = lambda node: None,
    ) -> None:
        """Keep the arguments for `gather`.

        Args:
            shape: The job.
            make_channel: Opens the channel.
            make_children: Makes the processes of this node from the values of the start signal.
            make_twin: On node 0, if the job's address or port of it is not ours: calls that, because another
                launcher may believe to be node 0 too.
        """
        self.shape = shape
        self.agreed: messages.Start | None = None
        self.over: messages.Over | messages.Refuse | None = None
        self.subscribers: dict[type, Callable[[Any], None]] = {messages.NodeNotice: self._on_notice}
        self._make_channel, self._make_children = make_channel, make_children
        self._make_twin = make_twin
        self._stop: commands.Stop | None = None
        self._has_begun = self._has_failed = False
        self._told = messages.Start()
        self._again: messages.Again | None = None
        self._to_check: int | None = None
        self._still_to_come: int | None = None

    def say(self, text: str, event: str, **fields: object) -> None:
        """Print a message about the whole job, once per machine."""
        if self.shape.speaks:
            self.runtime.say(text, event, **fields)

    def coordinate(self) -> Coordination:
        """Return what the agent asks and reports."""
        return Coordination(
            self.gather, shares_terminal=False, has_others=True,
            speaks=self.shape.speaks, awaits_deadline=True, name_run=self._name_run,
            find_mark=lambda: name_mark(self._name_run(self.runtime.run_id), self.shape.index),
            find_questions=lambda: self.questions,
            find_lease=lambda: self.state.lease_until if self.runtime.watch.restarts.most else None,
            begin=self._keep_time, began=self.began, takes_signal=self.takes_signal, on_told=self.on_told,
            on_ranks_ended=lambda: self.feed(node.Succeeded(self.parts.observers.progressed)),
            on_failure=self.on_failure, send_evidence=lambda message: self.channel.send(message),
            joins_hangs=not self.shape.keep_going,
            on_reason=lambda why: self._tell_event(why.kind, why.status, BEFORE.get(why.kind, "") + why.what),
            on_refused=self.on_refused, on_preemption=self.on_preemption, describe_state=self.describe_state,
            read_delay_s=lambda: self.channel.delay_s, describe_nodes=lambda: self.channel.count_nodes(),
            restarts=self.restarts, finish=self.finish,
            report_killed=lambda: self.channel.report_killed(), close=self.close,
        )  # fmt: skip

    def _name_run(self, own: str) -> str:
        """Return the name of this run: node 0's own, which the start signal carries."""
        return own if self.shape.index == 0 else (self.agreed or messages.Start()).run or ""

    # --- the state of this node

    @property
    def state(self) -> node.NodeState:
        """What this node does."""
        return self.machine.state

    def feed(self, event: object) -> None:
        """Handle an event of this node, and do what follows."""
        self.machine.feed(event)

    def _do(self, command: node.Command) -> None:
        runtime = self.runtime
        match command:
            case node.Send():
                self._send(command.event)
            case node.Run():  # `gather` or `restarts` has waited for this, and starts the processes
                self.agreed, self._stop, self._again = self._told, None, None
                self._has_begun = self._has_failed = False
                if self.shape.member == NODE:
                    self.shape = replace(self.shape, node_rank=command.rank, is_spare=False)
                    runtime.place = NodePlace(command.rank, self.shape.world_size)
                runtime.output.set_node(runtime.place.node_rank)
            case node.EndProcesses() if self.state.has_told_end:
                if runtime.group.running and not runtime.is_ending:
                    runtime.group.stopper.begin(signal.SIGTERM)  # companions
            case node.EndProcesses() if self.state.gave_up:
                self._obey(commands.Stop(self.state.attempt, lose_coordinator(self.shape)[0], -1))
            case node.EndProcesses():
                pass  # the agent has stopped them itself, or a `Stop` of node 0 has
            case node.Kill():
                if runtime.group.running:
                    runtime.target.kill()
            case node.Check():
                self._to_check = command.attempt
            case node.Lease() if runtime.watch.restarts.most and runtime.group.watchdog is not None:
                runtime.group.watchdog.renew(command.until)

    def _awaits_start(self) -> bool:
        """Whether the next attempt has not started yet; meanwhile check this node's readiness."""
        if self._to_check is not None:
            attempt, self._to_check = self._to_check, None
            self._readiness.check(attempt)
        return self.state.phase in (node.NodePhase.WAITING, node.NodePhase.ENDED)

    # --- the start

    def gather(self) -> bool:
        """Wait until all nodes are here, or we are told to stop; return whether our processes are known.

        Raises:
            LauncherError: The nodes will not come (75), cannot work together (78), or our processes cannot be
                started.
        """
        runtime, observers, shape = self.runtime, self.parts.observers, self.shape
        rule = runtime.watch.restarts
        roll_call_s = shape.timeout_s if shape.index else math.inf  # node 0 decides how long it takes
        begun = node.begin(shape.make_job(rule, roll_call_s), shape.index, time.monotonic())
        self.machine = StateMachine(node.step, begun, self._do)
        self.channel = channel = self._make_channel(self)
        wait_for_gpus = self.parts.outcomes.wait_for_gpus
        self._readiness = Readiness(
            runtime.loop, runtime.group, rule.health_argv, wait_for_gpus, self.feed, shape.index
        )
        self.questions = Questions(channel, lambda: self.shape, channel.send, lambda: observers.server)
        self.subscribers |= self.questions.handlers
        twin = self._make_twin(self)
        runtime.loop.timers[:] = [] if twin is None else [twin]
        self._keep_time()
        runtime.loop.guard(observers.serve)
        runtime.loop.guard(lambda: self._readiness.check(0))
        if isinstance(channel, Coordinator):
            begin = channel.feed
            runtime.loop.guard(lambda: begin(events.Tick()))
        try:
            runtime.group.turn_while(lambda: self._awaits_start() and runtime.forwarder.told is None)
        finally:
            if twin is not None:
                twin.close()
        if isinstance(self.over, messages.Refuse) and runtime.forwarder.told is None:
            self._leave_refused(self.over)
        elif self.agreed is not None:  # a signal that crosses the start stops what has been started
            self._take_children()
        elif runtime.forwarder.told is not None:
            self._leave()
        elif self.over is None and isinstance(channel, CoordinatorClient):
            raise NotReady(node_0_missing(shape.member, shape.timeout_s, channel.find_reason()))
        return self.agreed is not None

    def _leave_refused(self, refusal: messages.Refuse) -> None:
        """Leave a job that does not start.

        Raises:
            LauncherError: Why it does not start.
        """
        error = read_refusal(refusal)
        for line in refusal.lines:
            self.say(line, "nodes-differ")
        if isinstance(self.channel, Coordinator) and self.channel.state.missing:
            for problem in error.problems:
                self.say(f"the job does not start: [{problem.code}] {problem.what}", "not-started")
            self.say(f"this launcher stays {LATE_COMERS_S:g} s to inform late nodes", "late-nodes")
        self._leave()
        raise error

    def _take_children(self) -> None:
        """Make our processes from the values of the start signal.

        Raises:
            LauncherError: They cannot be started.
        """
        self.runtime.attempt = self.state.attempt
        try:
            children = self._make_children(self.agreed or messages.Start())
            self.parts.take(children, find_programs(children))
        except LauncherError as error:
            self.on_refused(error)
            raise
        self._has_begun = True

    def _keep_time(self) -> None:
        """Have the loop call what is due here; node 0 answers itself."""
        timers = self.runtime.loop.timers
        timers += [self.channel, self.machine, self.questions]
        if not self.shape.index:
            self.feed(node.Answered(time.monotonic()))
            timers.append(Every(BEAT_S, lambda: self.feed(node.Answered(time.monotonic()))))

    def began(self) -> None:
        """Stop the started processes if the job ended in the meantime or we were paused."""
        self.feed(events.Tick())
        told = self.runtime.forwarder.told  # on the way to node 0 this crossed the start
        if (told is not None or self._stop is not None) and not self.runtime.is_ending:
            self.runtime.target.stop(signal.SIGTERM)

    # --- from node 0

    def deliver(self, message: object) -> None:
        """Handle a message of node 0."""
        runtime = self.runtime
        match message:
            case messages.Start():
                rank = read_rank(message, self.shape)
                self._told = message
                if not self.shape.index:
                    tell_starter(runtime.environ)
                self.feed(node.Begin(message.attempt, rank))
            case commands.Stop() if message.attempt == self.state.attempt:
                self._obey(message)
                self.feed(message)
            case messages.Again() if message.attempt > self.state.attempt:
                self._again = message
                if self.agreed is None:
                    run = message.run if message.run.isalnum() else ""
                    self._readiness.end_predecessor(name_mark(run, self.shape.index))
                self.feed(commands.EndAttempt(message.attempt, commands.EndJob(0), Decision(True, "")))
            case commands.Stop() | messages.Again():
                pass  # of an attempt that is over, or twice
            case commands.News():
                if message.by != self.shape.node_rank:
                    self.say(f"{message.why} (--keep-going: this node goes on)", "elsewhere")
            case Look() | Hung() | Seen():
                runtime.loop.guard(lambda: self.parts.evidence.hear(message))
            case messages.Over() | messages.Refuse():
                self.over = self.over or message
                self.feed(commands.EndJob(message.status))
            case _:
                subscriber = self.subscribers.get(type(message))
                if subscriber is not None:
                    runtime.loop.guard(lambda: subscriber(message))

    def _obey(self, stop: commands.Stop) -> None:
        """Stop our processes, because something on some node ends the job."""
        runtime, parts, shape = self.runtime, self.parts, self.shape
        if self._stop is not None:
            return
        self._stop = stop
        is_ours = stop.by == shape.node_rank
        if stop.left_ms is not None and not is_ours and self._has_begun:
            parts.observers.preemption.respond(DUE, stop.why, read_left_s(stop.left_ms), stop.by)
        elif stop.number is not None:
            if not is_ours:
                self.say(f"{stop.why}: passing it on to all {shape.member}s", "signal")
                if runtime.forwarder.told is None:  # it comes here, too: a platform tells all nodes to stop
                    self._still_to_come, runtime.told_by = stop.number, stop.why
                    ending = ending_of(stop.number)
                    if self._has_begun:
                        runtime.forwarder.on_signal(ending, from_terminal=False)
                    else:
                        runtime.forwarder.told = ending
        else:
            if not is_ours:
                count = len(runtime.group.running)
                stopping = f"; stopping {count} process{'' if count == 1 else 'es'} here" if count else ""
                self.say(f"{stop.why}{stopping}", "stopping")
            if self._has_begun and not runtime.is_ending:
                parts.stop_rest()

    def _on_notice(self, noticed: messages.NodeNotice) -> None:
        """Handle a preemption notice of another node, or its withdrawal, that node 0 has passed on."""
        by, notice, shape = noticed.by, noticed.notice, self.shape
        if by == shape.node_rank:
            return  # it is our own notice
        what = f"{shape.member} {by}: {notice.what[:NOTICE_LENGTH]}"
        if shape.keep_going:
            self.runtime.say(
                f"preemption: {what}: {notice.kind} (--keep-going: this node goes on)", "elsewhere"
            )
        elif notice.kind in (ANNOUNCED, WITHDRAWN) and self._has_begun:
            self.parts.observers.preemption.respond(notice.kind, what, read_left_s(notice.left_ms), by)

    # --- to node 0

    def _send(self, event: events.JobEvent) -> None:
        """Send node 0 an event of this node."""
        if isinstance(event, events.Failed) and event.event.kind == GAVE_UP:  # it has our clock's time
            at_ns, within_ns = read_clock(self.channel.offset, event.event.at_ns)
            event = replace(event, event=replace(event.event, at_ns=at_ns, within_ns=within_ns))
            if self.over is None:  # none is left to agree with
                what, self.over = lose_coordinator(self.shape)
                if self.shape.keep_going:
                    self.say(f"{what} (--keep-going: this node goes on)", "elsewhere")
        elif isinstance(event, events.Exited) and event.record is not None:
            event = replace(event, record=fit(event.record))
        if not isinstance(event, events.Left):  # it leaves when its last message has arrived
            self.channel.send(event)

    def _tell_event(self, kind: str, status: int, what: str, left_ms: int | None = None, **more: Any) -> None:
        """Report an event that ends the attempt; ``more``: fields of `Event`."""
        self._has_failed = True
        at_ns, within_ns = read_clock(self.channel.offset, time.monotonic_ns())
        what, index = printable(redact(what)), self.shape.index
        self.feed(node.Broke(Event(index, kind, at_ns, status, within_ns, what=what, **more), left_ms))

    # --- from the agent

    def takes_signal(self, number: int, from_terminal: bool) -> bool:
        """Handle a signal before the start, or one that we have already received through another node."""
        forwarder = self.runtime.forwarder
        if not self._has_begun:
            if number in ENDING_IDLE and forwarder.told is None:
                forwarder.told = number
                self.on_told(number)
            return True
        if number == self._still_to_come:
            self._still_to_come = None
            others = f"the other {self.shape.member}s"
            self.say(f"{name_signal(number)}: already forwarded to the processes, as on {others}", "signal")
            return True
        return False

    def on_told(self, number: int) -> None:
        """Tell the job that this node was told to stop."""
        if not self.shape.is_spare:
            self.feed(events.Received(self.shape.index, int(number), name_signal(number)))

    def on_failure(self, process: Process, follows: bool) -> None:
        """Report the failure of one of our processes, timed by node 0's clock."""
        child = process.child
        if child.called and self.runtime.told_before is not None:
            return  # an agent that was told to stop, as we were: nothing has failed
        facts = {"rank": child.rank, "local_rank": child.local_rank, "pid": process.pid}
        self._tell_event(
            RANK, process.status, f"{process.name} {process.end}",
            asked=process.passed_on in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL), follows=follows,
            facts={**facts, "code": process.code or 0}, called=child.called,
        )  # fmt: skip

    def on_refused(self, error: LauncherError) -> None:
        """Leave the job, because our processes cannot be started: the other nodes would wait for them."""
        self.runtime.loop.guard(lambda: self._tell_event(REFUSED, error.exit_status, error.summary))
        self.feed(node.Done(error.exit_status))
        self.runtime.loop.turn_until(lambda: self.over is not None, self.shape.grace_s + ARRIVE_S)
        self._leave()

    def on_preemption(self, kind: str, what: str, left_s: float, ends: bool) -> None:
        """Tell all nodes that this node is to be preempted, or no longer; ``ends``: the job ends by that."""
        left_ms, runtime = int(left_s * 1000), self.runtime
        is_ending = self._stop is not None or runtime.forwarder.told is not None or self._has_failed
        has_ended_well = not runtime.group.has_ranks and runtime.first is None and not is_ending
        if kind != DUE:
            self.channel.send(messages.MachineNotice(kind, what[:NOTICE_LENGTH], left_ms))
        elif ends or runtime.watch.restarts.most or has_ended_well:
            self._tell_event(PREEMPTED, EXIT_NOT_READY, what, left_ms)

    def describe_state(self) -> str | None:
        """Return what the node waits for; None while its ranks run."""
        member = self.shape.member
        if self.shape.is_spare:
            return f"spare {member}, waits to take the place of a lost one"
        if self._again is not None or (self.state.attempt > 0 and not self._has_begun):
            number = self.state.attempt if self._again is None else self._again.attempt
            return self.parts.outcomes.describe_wait(number, self.channel.starts_at)
        if not self._has_begun:
            return f"waits for the other {member}s"
        return None if self.runtime.group.has_ranks else f"ended, waits for the other {member}s"

    # --- the end

    def restarts(self) -> bool:
        """Whether another attempt follows; returns when all nodes start it.

        Raises:
            LauncherError: Our processes cannot be started.
        """
        self._end_attempt()
        again = self._again
        if again is None or self.over is not None:
            return False
        self._report(again.over)
        self.say(again.why, "restart")
        self._has_begun = False
        self.runtime.group.turn_while(self._awaits_start)
        if self.state.phase is node.NodePhase.OVER:
            return False
        self._take_children()
        return True

    def _end_attempt(self) -> None:
        """Tell node 0 how our processes ended, and wait until it has told what follows."""
        outcome = self.parts.outcomes.find()
        is_held, progressed = bool(self.runtime.group.find_survivors()), self.parts.observers.progressed
        self.feed(node.Done(outcome.status, outcome.verdict, progressed, is_held))
        say_at = time.monotonic() + SAY_EVERY_S

        def is_waiting() -> bool:
            nonlocal say_at
            if time.monotonic() > say_at and not outcome.status and self._stop is None:
                say_at = float("inf")
                self.say(
                    "the processes of this node have succeeded; waiting for those of the other nodes",
                    "node-done",
                )
            return self._again is None and self.state.phase is not node.NodePhase.OVER

        self.runtime.group.turn_while(is_waiting)

    def _report(self, over: messages.Over) -> None:
        """Report once which process failed first."""
        runtime, shape, outcomes = self.runtime, self.shape, self.parts.outcomes
        own = outcomes.find().verdict
        # In a rehearsal all nodes share one screen: without node 0, node 1 reports.
        stands_in = self.state.gave_up and runtime.environ.get("LAUNCHER_REHEARSED") == "1"
        outcomes.report_job(
            over.first,
            lambda: read_verdict(over, own, shape, runtime.started_ns, runtime.attempt),
            speaks=shape.speaks or stands_in,
        )

    def finish(self, report: Callable[[], int]) -> int:
        """Report how the job ended, and return its status."""
        over, outcomes = self.over, self.parts.outcomes
        outcome = outcomes.find()
        self._leave()
        if not isinstance(over, messages.Over) or (self.shape.keep_going and self.state.gave_up):
            if outcome.verdict is not None:
                speaks = self.shape.speaks
                outcomes.publish(outcome.verdict, shown=speaks, speaks=speaks)
            return outcome.status if over is None else outcome.status or EXIT_NOT_READY
        if not over.leaves:
            self._report(over)
        if over.why:
            self.say(over.why, "no-restart")
        outcomes.is_stopped = over.is_stopped
        return over.status

    def _leave(self) -> None:
        """Leave the channel: immediately, or on node 0 once all nodes know the end."""
        channel, loop, forwarder = self.channel, self.runtime.loop, self.runtime.forwarder
        if isinstance(channel, Coordinator):
            before, patience_s = forwarder.told, PATIENCE_S + self.shape.given_up_s
            loop.turn_until(lambda: channel.may_leave or forwarder.told != before, patience_s)
            return
        if self.state.gave_up or (self.state.goes_alone and self.over is None):
            # otherwise the others would take the job for a success
            loop.turn_until(lambda: channel.has_told_all, LAST_TRY_S)
        elif channel.is_calling:  # otherwise the others would wait for this node
            loop.turn_until(lambda: channel.has_told_all or not channel.is_calling, JOIN_TRY_S)
        channel.send(events.Left(self.shape.index))

    def close(self) -> None:
        """Close the channel."""
        if hasattr(self, "channel"):
            self.channel.close()


def read_left_s(left_ms: int) -> float:
    """Return the seconds until a node is preempted, from its message."""
    return min(max(0, left_ms), int(LATEST_S * 1000)) / 1000
