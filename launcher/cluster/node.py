"""Coordination of one node with the others: starts with them, ends with them, reports what node 0 decides."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from launcher.agent.agent import Place, find_programs
from launcher.agent.coordination import Coordination
from launcher.cluster import preemption
from launcher.cluster.client import CoordinatorClient
from launcher.cluster.coordinator import Coordinator
from launcher.cluster.messages import (
    Again,
    Bye,
    Ended,
    Failed,
    First,
    Look,
    Looked,
    News,
    Over,
    ReadyAgain,
    Refuse,
    Start,
    Stop,
    Told,
)
from launcher.cluster.outcome import lose_coordinator, read_verdict
from launcher.cluster.questions import Questions
from launcher.cluster.refusals import node_0_missing, read_refusal
from launcher.cluster.rendezvous import LATE_COMERS_S
from launcher.cluster.rendezvous import LEAVE_S as COORDINATOR_LEAVE_S
from launcher.cluster.settings import BEAT_S
from launcher.core.errors import EXIT_NOT_READY, LauncherError, NotReady
from launcher.core.frozen import replace
from launcher.core.messages import Garbled
from launcher.core.model import NODE
from launcher.core.redact import printable, redact
from launcher.core.signal import signal
from launcher.failure.arbiter import GAVE_UP, LATENESS_NS, RANK, REFUSED, STALLED, UNMET, UNPROVEN
from launcher.failure.reason import STALLED_STATUS, Reason
from launcher.failure.transfer import fit
from launcher.identity.seats import find_rank
from launcher.preemption.events import DUE
from launcher.process.descendants import read_state
from launcher.process.signals import ENDING, name_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from launcher.cluster.settings import Shape
    from launcher.failure.model import Verdict
    from launcher.process.spawn import Child, Process

MakeChannel = Callable[["ClusterNode"], "Coordinator | CoordinatorClient"]

SUSPECTS_MAX = 8
STATES = {
    "Tt": "is stopped (state T)",
    "D": "waits for a device or a file system (state D)",
    "R": "runs (state R)",
}
"""States in which other ranks may wait for a rank, by their letters in ps, the most certain first."""
LAST_TRY_S, JOIN_TRY_S = 5.0, 1.0
"""Seconds for a node that gave up node 0 to tell it so, and for one that is told to stop while it calls."""
LEAVE_S = 1.0
"""Seconds for our last message to arrive."""
PATIENCE_S = max(COORDINATOR_LEAVE_S, LATE_COMERS_S) + LEAVE_S
PORTS_S, PORTS_EVERY_S = 5.0, 0.1
"""How long, and how often, a restart looks whether the ports of the last attempt are free."""
SAY_AFTER_S = 15.0
"""Seconds after which a node whose processes have succeeded reports that it waits."""


class ClusterNode(Coordination):
    """The agent's side of the control channel.

    Attributes:
        channel: Channel to the other nodes: `Coordinator` on node 0, `CoordinatorClient` on the others; set
            by `gather`.
        has_begun: Whether the processes have been started, or are about to be.
        agreed: Values from the start signal.
        over: How the job has ended, once node 0 has decided, or is lost.
        due: Now, if node 0 is lost and that is not handled yet; on node 0 when it renews its lease.
    """

    shares_terminal = False
    has_others = True
    awaits_deadline = True
    channel: Coordinator | CoordinatorClient

    def __init__(
        self,
        shape: Shape,
        make_channel: MakeChannel,
        make_children: Callable[[Mapping[str, object]], Sequence[Child]],
        make_twin: Callable[[ClusterNode], CoordinatorClient | None] = lambda node: None,
    ) -> None:
        """Keep the arguments for `gather`.

        Args:
            shape: The job.
            make_channel: Opens the channel.
            make_children: Makes the processes of this node from the values of the start signal.
            make_twin: On node 0, if the job's address of it is not ours: calls that address, because another
                launcher may believe to be node 0 too.
        """
        self.shape, self.speaks = shape, shape.speaks
        self.has_begun = False
        self.agreed: Mapping[str, object] | None = None
        self.over: Over | None = None
        self.subscribers: dict[type, Callable[[Any], None]] = {}
        self._make_channel, self._make_children = make_channel, make_children
        self._make_twin = make_twin
        self._refusal: Refuse | None = None
        self._stop: Stop | None = None
        self._renew_at: float | None = None
        self._is_told = False
        self._has_failed = False
        self._still_to_come: int | None = None
        self._has_told_end = False
        self.agreed_last: Mapping[str, object] | None = None
        self._again: Again | None = None
        self._attempt: int | None = None
        self._reported: First | None = None

    def say(self, text: str) -> None:
        """Print a message about the whole job, once per machine."""
        if self.speaks:
            self.agent.say(text)

    # --- the rendezvous

    def gather(self) -> None:
        """Return when all nodes are here and our processes are known, or when we are told to stop.

        Raises:
            LauncherError: The nodes will not come (75), cannot work together (78), or our processes cannot be
                started.
        """
        agent, loop = self.agent, self.agent.loop
        self.channel = self._make_channel(self)
        self.questions = Questions(self)
        preemption.subscribe(self)
        twin = self._make_twin(self)
        loop.timers[:] = [self.channel] if twin is None else [self.channel, twin]
        loop.guard(agent.observers.serve)
        loop.guard(lambda: self._check_health(0))
        if isinstance(self.channel, Coordinator):
            loop.guard(self.channel.roll.check)
        try:
            self._wait()
        finally:
            if twin is not None:
                twin.close()
        self.has_work = self.agreed is not None
        if self._refusal is not None:
            self._leave_refused(self._refusal)
        if agent.forwarder.told is not None:
            self._leave_waiting()
        elif self.has_work:
            self._take_children()

    def _wait(self) -> None:
        """Wait for the start, a refusal, or a signal that tells us to stop.

        Raises:
            NotReady: Node 0 has not answered in time.
        """
        agent, channel = self.agent, self.channel
        while not self._has_news and agent.forwarder.told is None:
            agent.loop.turn()
            agent.group.reap()
            if self._has_lost_coordinator:
                self.fire(time.monotonic())
            elif isinstance(channel, CoordinatorClient) and channel.is_late and self._refusal is None:
                raise NotReady(node_0_missing(self.shape.member, self.shape.timeout_s, channel.explain()))

    def _leave_waiting(self) -> None:
        """Leave as a spare node that was told to end; the job goes on without it."""
        if self.shape.is_spare and isinstance(self.channel, CoordinatorClient):
            self.channel.send(Bye())

    @property
    def _has_news(self) -> bool:
        """Whether node 0 has told whether an attempt starts."""
        return any(one is not None for one in (self.agreed, self._refusal, self.over))

    def on_twin(self, message: object) -> None:
        """Handle the refusal of another launcher that is node 0 too."""
        if isinstance(message, Refuse) and isinstance(self.channel, Coordinator):
            self.channel.roll.refuse_as(message)

    def _leave_refused(self, refusal: Refuse) -> None:
        """Leave a job that does not start.

        Raises:
            LauncherError: Why it does not start; not raised if we were told to stop.
        """
        if self.agent.forwarder.told is not None:
            self._leave()
            return
        error = read_refusal(refusal)
        for line in refusal.lines:
            self.say(line)
        channel = self.channel
        if isinstance(channel, Coordinator) and channel.membership.missing():
            for problem in error.problems:
                self.say(f"the job does not start: [{problem.code}] {problem.what}")
            self.say(f"this launcher stays {LATE_COMERS_S:g} s to tell late nodes")
            forwarder = self.agent.forwarder
            self.agent.loop.turn_until(lambda: channel.may_leave or forwarder.told is not None, PATIENCE_S)
        else:
            self._leave()
        raise error

    def _take_children(self) -> None:
        """Make our processes from the values of the start signal.

        Raises:
            LauncherError: They cannot be started.
        """
        try:
            children = self._wait_for_children()
            self.agent.take(children, find_programs(children))
        except LauncherError as error:
            self.on_refused(error)
            raise
        self.has_begun, self.agreed_last = True, self.agreed
        self.agent.attempt = self._attempt or 0

    def _wait_for_children(self) -> Sequence[Child]:
        """Return our processes; after a failure the kernel may need a moment to free their ports.

        Raises:
            LauncherError: They cannot be started.
        """
        agent, deadline = self.agent, time.monotonic() + (PORTS_S if self._attempt else 0.0)
        while True:
            try:
                return self._make_children(self.agreed or {})
            except NotReady:
                if time.monotonic() > deadline or agent.forwarder.told is not None:
                    raise
            agent.loop.turn_until(lambda: agent.forwarder.told is not None, PORTS_EVERY_S)

    def begin(self) -> None:
        """Prepare for the start of the processes."""
        self.agent.loop.timers += [self.channel, self]

    def began(self) -> None:
        """Stop the started processes if the job has ended meanwhile."""
        if self.lease_until is not None and time.monotonic() > self.lease_until:
            self.agent.group.stopper.kill()  # we stood still, and another attempt may have started
        if self._stop is not None and not self.agent.is_ending:
            self.agent.target.stop(signal.SIGTERM)

    # --- messages from node 0

    def deliver(self, message: object) -> None:
        """Handle a message of node 0."""
        match message:
            case Start():
                self._on_start(message)
            case Refuse():
                self._refusal = self._refusal or message
            case Stop() if message.attempt == (self._attempt or 0):
                self._on_stop(message)
            case Stop():
                pass  # of an attempt that is over
            case Again() if message.attempt > (self._attempt or 0):
                self._again = self._again or message
                self._end_rest()
            case Again():
                pass  # it came twice
            case News() if message.by != self.shape.node_rank:
                self.say(f"{message.what} (--keep-going: this node goes on)")
            case Look():
                self.tell(self._look())
            case Over():
                self.over = self.over or message
                self._end_rest()
            case _:
                subscriber = self.subscribers.get(type(message))
                if subscriber is not None:
                    self.agent.loop.guard(lambda: subscriber(message))

    def _on_start(self, start: Start) -> None:
        """Take part in an attempt, unless the message came twice or this node is a spare one.

        Raises:
            Garbled: It gives places to nodes that the job does not have.
        """
        if self.agreed is not None or self._attempt not in (None, start.attempt):
            return
        rank = find_rank(self.shape.index, self.shape.node_count, read_seats(start.agreed, self.shape))
        if rank is None:
            return
        if self.shape.member == NODE:
            self.shape = replace(self.shape, node_rank=rank, is_spare=False)
            self.agent.place = Place(rank, self.shape.world_size)
        self.agreed, self._attempt = start.agreed, start.attempt
        if isinstance(self.channel, Coordinator):
            self.on_heard()
        self._stop = self._again = None  # what a spare node has heard of earlier attempts

    def _end_rest(self) -> None:
        """Stop what still runs here when the attempt is over: companions, or all of a node that was lost."""
        self._end_companions()
        agent = self.agent
        if self.has_begun and agent.group.running and not agent.is_ending and not self.shape.keep_going:
            agent.target.stop(signal.SIGTERM)

    def _on_stop(self, stop: Stop) -> None:
        """Stop our processes, because something on some node ends the job."""
        if self._stop is not None:
            return
        self._stop = stop
        is_ours = stop.by == self.shape.node_rank
        if stop.left_ms is not None and not is_ours and self.has_begun:
            left_s = preemption.read_left_s(stop.left_ms)
            self.agent.observers.respond(DUE, stop.what, left_s, stop.by)
        elif stop.told is not None:
            if not is_ours:
                self.say(f"{stop.what}: passing it on to all {self.shape.member}s")
                self._is_told = True
                self._pass_on_for_job(stop.told)
        else:
            if not is_ours:
                count = len(self.agent.group.running)
                stopping = f"; stopping {count} process{'' if count == 1 else 'es'} here" if count else ""
                self.say(f"{stop.what}{stopping}")
            if self.has_begun and not self.agent.is_ending:
                self.agent.target.stop(signal.SIGTERM)

    def _pass_on_for_job(self, told: int) -> None:
        """Forward the signal that told another node to stop.

        The platform sends such a signal to all nodes, so we have received it too or will; it is forwarded
        only once.
        """
        forwarder = self.agent.forwarder
        if forwarder.told is not None:
            return
        self._still_to_come = told
        ending = told if told in ENDING else signal.SIGTERM
        if self.has_begun:
            forwarder.on_signal(ending, from_terminal=False)
        else:
            forwarder.told = ending

    @property
    def due(self) -> float | None:
        """Now, if node 0 is lost and that is not handled yet; on node 0 when it renews its lease."""
        return 0.0 if self._has_lost_coordinator and self.over is None else self._renew_at

    def fire(self, now: float) -> None:
        """Stop, or with ``--keep-going`` go on, because node 0 is lost and no node is left to agree with.

        On node 0: renew the lease.
        """
        if isinstance(self.channel, Coordinator):
            self.on_heard()
            return
        if self.over is not None:
            return
        what, self.over = lose_coordinator(self.shape)
        if self.shape.keep_going:
            self.say(f"{what} (--keep-going: this node goes on)")
            self._end_companions()
        else:
            self._on_stop(Stop(what, -1))

    @property
    def _has_lost_coordinator(self) -> bool:
        return isinstance(self.channel, CoordinatorClient) and self.channel.is_lost

    # --- messages from this node

    def tell(self, message: object) -> None:
        """Send a message to node 0, which may be this node."""
        if isinstance(self.channel, Coordinator):
            self.channel.hear_own(message)
        else:
            self.channel.send(message)

    def tell_event(self, kind: str, status: int, what: str, **more: Any) -> None:
        """Report an event that ends the job; ``more``: fields of `Failed`."""
        self._has_failed = True
        offset = self.channel.offset if isinstance(self.channel, CoordinatorClient) else None
        add_ns, within_ns = (0, 0) if offset is None else (offset.add_ns, offset.delay_ns // 2)
        what = printable(redact(what))
        at_ns = time.monotonic_ns() + add_ns
        attempt = self._attempt or 0
        self.tell(Failed(kind, at_ns, status, within_ns + LATENESS_NS, what, attempt=attempt, **more))

    def on_heard(self) -> None:
        """Renew the lease of our processes, because node 0 was heard, or is this node and runs."""
        if not self.agent.watch.restarts.most:
            return
        now = time.monotonic()
        self.lease_until = now + self.shape.lease_s
        if isinstance(self.channel, Coordinator):
            self._renew_at = now + BEAT_S
        if self.agent.group.watchdog is not None:
            self.agent.group.watchdog.renew(self.lease_until)

    def on_lost(self) -> None:
        """Report that we gave up node 0, which was silent for too long; it may still hear us."""
        after = f"{self.shape.lost_after_s:g} s"
        kind = self.shape.member
        what = f"{kind} {self.shape.node_rank} gave {kind} 0 up: no contact for {after}"
        self.tell_event(GAVE_UP, EXIT_NOT_READY, what)

    def takes_signal(self, number: int, *, from_terminal: bool) -> bool:
        """Handle a signal before the start, or one that we have already received through another node."""
        forwarder = self.agent.forwarder
        if not self.has_begun:
            if number in ENDING and forwarder.told is None:
                forwarder.told = number
                self.on_told(number)
            return True
        if number == self._still_to_come:
            self._still_to_come = None
            others = f"the other {self.shape.member}s"
            self.say(f"{name_signal(number)}: already forwarded to the processes, as on {others}")
            return True
        return False

    def on_told(self, number: int) -> None:
        """Tell the job that this node was told to stop, unless the job told us."""
        if not self._is_told and not self.shape.is_spare:
            self._is_told = True
            self.tell(Told(int(number), name_signal(number)))

    def on_ranks_ended(self) -> None:
        """Report that this node's ranks have ended; node 0 reports when those of all nodes have."""
        self._tell_end(self._make_end(0, None))
        self._end_companions()

    def _end_companions(self) -> None:
        """Stop our companions, once the ranks of all nodes have ended."""
        agent = self.agent
        is_over = self.over is not None or self._again is not None
        if self._has_told_end and is_over and agent.group.running and not agent.is_ending:
            agent.group.stopper.begin(signal.SIGTERM)

    def _make_end(self, status: int, verdict: Verdict | None) -> Ended:
        progress = self.agent.restarter.progress
        progressed = None if progress is None else progress.has_progressed()
        return Ended(status, None if verdict is None else fit(verdict), self._attempt or 0, progressed)

    def _tell_end(self, ended: Ended) -> None:
        if not self._has_told_end:
            self._has_told_end = True
            self.tell(ended)

    def on_failure(self, process: Process, *, follows: bool) -> None:
        """Report the failure of a process of ours, with its time by node 0's clock."""
        if process.child.called and self.agent.told_before is not None:
            return  # an agent that was told to stop, as we were: nothing has failed
        what = f"{process.name} {process.end}"
        asked = process.passed_on in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
        child = process.child
        self.tell_event(
            RANK, process.status, what,
            asked=asked, follows=follows, rank=child.rank, local_rank=child.local_rank, pid=process.pid,
            code=process.code or 0, called=child.called,
        )  # fmt: skip

    def on_reason(self, reason: Reason) -> None:
        """Report that this node ends the job for a reason of its own."""
        before = {UNPROVEN: "not the required fabric: ", UNMET: "--require-meeting: "}
        status = STALLED_STATUS if reason.status is None else reason.status
        self.tell_event(reason.kind, status, before.get(reason.kind, "") + reason.what)

    def decides(self, reason: Reason) -> bool:
        """Whether node 0 asks all nodes before the end: the first silent node may not be the cause."""
        return reason.kind == STALLED and not self.shape.keep_going

    def _look(self) -> Looked:
        """Return the states of this node's ranks."""
        found: dict[str, list[str]] = {state: [] for state in STATES}
        ranks = [one for one in self.agent.group.running.values() if not one.child.companion]
        for one in ranks:
            state = read_state(one.pid) or ""
            for kind, words in STATES.items():
                if state in kind:
                    found[kind].append(f"{one.name} {words}")
        stopped, stuck, busy = (tuple(names[:SUSPECTS_MAX]) for names in found.values())
        return Looked(stopped, stuck, busy, len(ranks))

    def on_refused(self, error: LauncherError) -> None:
        """Report that our processes cannot be started: the other nodes would wait for them."""
        what = "; ".join(f"[{problem.code}] {problem.what}" for problem in error.problems)
        self.agent.loop.guard(lambda: self.tell_event(REFUSED, error.exit_status, what))
        self.tell(self._make_end(error.exit_status, None))
        self.agent.loop.turn_until(lambda: self.over is not None, self.shape.grace_s + LEAVE_S)
        self._leave()

    def on_preemption(self, kind: str, what: str, left_s: float, *, ends: bool) -> None:
        """Tell all nodes that this node is to be preempted, or no longer."""
        preemption.tell(self, kind, what, left_s, ends or self._has_ended_well)

    @property
    def _has_ended_well(self) -> bool:
        """Whether our processes have succeeded, and we wait for other nodes while nothing ends the job."""
        agent = self.agent
        is_ending = self._stop is not None or agent.forwarder.told is not None or self._has_failed
        return not self._has_ranks and agent.first is None and not is_ending

    @property
    def _has_ranks(self) -> bool:
        return any(not one.child.companion for one in self.agent.group.running.values())

    # --- questions about the job

    def answer(
        self, what: str, more: Mapping[str, object], take: Callable[[dict[str, object]], None]
    ) -> None:
        """Answer a question about this node, now or later; no question comes before the server exists."""
        server = self.agent.observers.server
        if server is not None:
            server.answer(what, more, take)

    def describe_state(self) -> str | None:
        """Return what the node waits for; None while its ranks run."""
        if self.shape.is_spare:
            return f"spare {self.shape.member}, waits to take the place of a lost one"
        if not self.has_begun:
            return f"waits for the other {self.shape.member}s"
        return None if self._has_ranks else f"ended, waits for the other {self.shape.member}s"

    def describe_nodes(self) -> dict[str, object]:
        """Return the counts of all, present and lost nodes of the job, as far as this node knows."""
        if isinstance(self.channel, Coordinator):
            return self.channel.count_nodes()
        heard = 1 + self.channel.is_connected
        return {"count": self.shape.node_count, "heard": heard, "lost": int(self.channel.is_lost)}

    # --- the end

    def restarts(self) -> bool:
        """Whether another attempt follows; returns when all nodes start it."""
        self._end_attempt()
        again = self._again
        if again is None:
            return False
        own = self.agent.restarter.find_outcome().verdict
        self.agent.loop.guard(lambda: self._report(again.over, own))
        self.say(again.why)
        self._clear(again.attempt)
        self._check_health(again.attempt)
        self._turn_while(lambda: not self._has_news)
        if self.agreed is None:
            return False
        self.agent.begin_again(again.attempt)
        self._take_children()
        return True

    def _check_health(self, attempt: int) -> None:
        """Tell node 0 that this node is ready for an attempt, or what the health command found."""
        argv = self.agent.watch.restarts.health_argv
        if argv:
            from launcher.recovery.health import ask_health

            ask_health(argv, self.agent.group.helpers, lambda what: self.tell(ReadyAgain(attempt, what)))
        elif attempt:
            self.tell(ReadyAgain(attempt))

    def _clear(self, attempt: int) -> None:
        """Forget the attempt that has ended; the next one is awaited."""
        self.agreed, self._again, self._stop = None, None, None
        self.has_begun = self._has_failed = self._has_told_end = False
        self._attempt = attempt

    def _end_attempt(self) -> None:
        """Tell node 0 how our processes ended, and wait until it has told what follows."""
        outcome = self.agent.restarter.find_outcome()
        if outcome.line:
            self.say(outcome.line)
        has_given_up = self._has_lost_coordinator and not self.shape.keep_going
        status = outcome.status or (EXIT_NOT_READY if has_given_up else 0)
        self._tell_end(self._make_end(status, outcome.verdict))
        say_at = time.monotonic() + SAY_AFTER_S

        def is_waiting() -> bool:
            nonlocal say_at
            if time.monotonic() > say_at and not outcome.status and self._stop is None:
                say_at = float("inf")
                self.say("the processes of this node have succeeded; waiting for those of the other nodes")
            return self.over is None and self._again is None

        self._turn_while(is_waiting)

    def _turn_while(self, is_waiting: Callable[[], bool]) -> None:
        """Run the loop while a message of node 0 is awaited; no longer than node 0 can be heard."""
        agent = self.agent
        while is_waiting():
            if self._has_lost_coordinator:
                self.fire(time.monotonic())
                return
            agent.loop.turn()
            agent.loop.guard(agent.group.collect)

    def finish(self) -> int:
        """Report how the job ended, and return its status."""
        outcome, over = self.agent.restarter.find_outcome(), self.over
        self._leave()
        if over is None or (self.shape.keep_going and self._has_lost_coordinator):
            if outcome.verdict is not None:
                self.agent.restarter.publish(outcome.verdict, shown=self.speaks)
            return outcome.status if over is None else outcome.status or EXIT_NOT_READY
        self.agent.loop.guard(lambda: self._report(over, outcome.verdict))
        if over.why:
            self.say(over.why)
        return over.status

    def _report(self, over: Over, own: Verdict | None) -> None:
        """Report once which process failed first, with the same words on every node."""
        if over.first is not None and over.first == self._reported:
            return
        self._reported = over.first
        verdict = read_verdict(over, own, self.shape, self.agent.started_ns, self.agent.attempt)
        if verdict is not None:
            self.agent.restarter.publish(verdict, shown=self.speaks)

    def _leave(self) -> None:
        """Leave the channel: a node at once, node 0 when all nodes have heard the end."""
        channel, loop = self.channel, self.agent.loop
        if isinstance(channel, Coordinator):
            loop.turn_until(lambda: channel.may_leave, PATIENCE_S)
            return
        if channel.is_lost:  # otherwise the others would take the job for a success
            loop.turn_until(lambda: channel.has_told_all, LAST_TRY_S)
        elif channel.is_calling:  # otherwise the others would wait for this node
            loop.turn_until(lambda: channel.has_told_all or not channel.is_calling, JOIN_TRY_S)
        channel.send(Bye())

    def close(self) -> None:
        """Close the channel."""
        if hasattr(self, "channel"):
            self.channel.close()


def read_seats(agreed: Mapping[str, object], shape: Shape) -> dict[int, int]:
    """Return the ranks of nodes that took the place of others, by index, as the start signal has them.

    Raises:
        Garbled: A node or a place that the job does not have, or two nodes with one place.
    """
    told = agreed.get("seats", {})
    indices = {str(index): index for index in range(shape.node_count + shape.spare_count)}
    ranks = range(shape.node_count)
    if not isinstance(told, dict) or not all(index in indices for index in told):
        raise Garbled("seats of nodes that are none of the job")
    if not all(type(rank) is int and rank in ranks for rank in told.values()):
        raise Garbled("seats that are none of the job")
    if len(set(told.values())) < len(told):
        raise Garbled("a seat of two nodes")
    return {indices[index]: rank for index, rank in told.items()}
