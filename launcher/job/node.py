"""What one node of a job does, as a pure function: `step(state, event, now)`; see `launcher.job.controller`.

    waiting --> running --> stopping --> ended --> waiting ...
                                           +--> over

A node sends a heartbeat every `BEAT_S` seconds, and node 0 answers each. The lease of its processes counts
from the last heartbeat that was answered, by the clock of this node, so that no message that was on its way
for long can prolong it. Node 0 has heard that heartbeat later than it was sent. So when node 0 has waited for
the lease, nothing of the node runs any more.
"""

from __future__ import annotations

from launcher.core.errors import EXIT_NOT_READY
from launcher.core.frozen import Enum, frozen, replace
from launcher.core.signal import signal
from launcher.failure.arbiter import EVENTS_OF_NODE, GAVE_UP, LATENESS_NS, RANK, Event
from launcher.job import events
from launcher.job.commands import EndAttempt, EndJob, Stop
from launcher.job.settings import UNREAD_S
from launcher.job.state import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from launcher.failure.model import Verdict

LATE_S = 1.0
"""A step that comes later than this shows that this launcher stood still, and not node 0."""
SLACK_S = 5.0
"""Extra seconds, so that node 0 gives the roll call up first and reports which nodes are missing."""


class NodePhase(Enum):
    """What a node is doing."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"
    OVER = "over"


# --- what happens to a node: also Stop, Again, Over (node 0), Received, Ready (which it sends on), and Tick


@frozen
class Begin:
    """Node 0 has started an attempt; ``rank``: of this node in it, None if it is a spare one."""

    attempt: int
    rank: int | None


@frozen
class Connected:
    """Node 0 has let this node in."""


@frozen
class Answered:
    """Node 0 has answered a heartbeat; ``sent``: when that was sent."""

    sent: float


@frozen
class Broke:
    """Something on this node ends the attempt; see `launcher.job.events.Failed`."""

    event: Event
    left_ms: int | None = None


@frozen
class Succeeded:
    """All ranks of this node have succeeded; its companions keep running for other nodes."""

    progressed: bool | None = None


@frozen
class Done:
    """All processes of this node have ended; see `launcher.job.events.Exited`."""

    status: int
    record: Verdict | None = None
    progressed: bool | None = None
    is_held: bool = False


# --- what a node does


@frozen
class Send:
    """Send node 0 an event; it is repeated when the connection is made again."""

    event: events.JobEvent


@frozen
class Run:
    """Start the processes of an attempt; whatever a launcher before this one has left is killed first."""

    attempt: int
    rank: int


@frozen
class EndProcesses:
    """Stop the processes: this signal, and SIGKILL after the grace.

    The launcher does so by itself after a failure or a signal of its own.
    """

    number: int


@frozen
class Kill:
    """Kill the processes now: another attempt may run."""

    why: str


@frozen
class Check:
    """Check that nothing of the last attempt is left, and that the node is healthy."""

    attempt: int


@frozen
class Lease:
    """Let the watchdog kill the processes at this time."""

    until: float


@frozen
class ExitLauncher:
    """End this launcher with a status.

    Attributes:
        over: How the job ended, as node 0 has told; None if that is not known.
    """

    status: int
    over: EndJob | None = None


Command = Send | Run | EndProcesses | Kill | Check | Lease | ExitLauncher


@frozen
class NodeState:
    """A node.

    Attributes:
        job: What does not change about the job.
        index: Its index among all nodes.
        phase: What it is doing.
        began: When its launcher began.
        attempt: The attempt that it runs, or ran last; -1 before the first.
        rank: The rank that it has in that; its index before the first.
        has_begun: Whether it knows that the job has started.
        is_spare: Whether it holds no rank.
        answered: When the last heartbeat that node 0 has answered was sent.
        outwaits: Seconds for which this launcher stood still since then.
        has_told_end: Whether node 0 was told how the processes ended; companions may still run.
        received: The signal that this launcher has received.
        gave_up: Whether it has given node 0 up.
        kept: Events that node 0 may not have heard, for a new connection.
        awaits: The attempt that follows, as node 0 has sent; -1 for none.
        over: How the job has ended.
        due: When to call again if nothing happens.
    """

    job: Job
    index: int
    phase: NodePhase
    began: float
    attempt: int = -1
    rank: int = 0
    has_begun: bool = False
    is_spare: bool = False
    answered: float = 0.0
    outwaits: float = 0.0
    has_told_end: bool = False
    received: events.Received | None = None
    gave_up: bool = False
    kept: tuple[events.JobEvent, ...] = ()
    awaits: int = -1
    over: EndJob | None = None
    due: float | None = None

    @property
    def lease_until(self) -> float:
        """When everything on this node must have ended."""
        return self.answered + self.job.lease_s

    @property
    def goes_alone(self) -> bool:
        """Whether only this launcher was told to stop, and the others go on without it."""
        return self.job.keep_going and self.received is not None and self.index != 0

    @property
    def runs(self) -> bool:
        """Whether it has processes."""
        return self.phase in (NodePhase.RUNNING, NodePhase.STOPPING)


def begin(job: Job, index: int, now: float) -> NodeState:
    """Return the initial state of node 0's launcher, or of one that calls node 0."""
    is_spare = index >= job.node_count
    return NodeState(job, index, NodePhase.WAITING, now, rank=index, is_spare=is_spare, answered=now, due=now)


class NodeTurn:
    """One step in progress."""

    def __init__(self, state: NodeState, now: float) -> None:
        self.state, self.now = state, now
        self.commands: list[Command] = []

    def change(self, **changes: object) -> None:
        """Change fields of the state."""
        self.state = replace(self.state, **changes)

    def do(self, command: Command) -> None:
        """Add a command."""
        self.commands.append(command)

    def send(self, event: events.JobEvent) -> None:
        """Send node 0 an event, and keep it for a new connection; of many failed ranks only the first."""
        if not (_is_of_rank(event) and sum(map(_is_of_rank, self.state.kept)) >= EVENTS_OF_NODE):
            self.change(kept=(*self.state.kept, event))
        self.do(Send(event))


def step(state: NodeState, event: object, now: float) -> tuple[NodeState, tuple[Command, ...]]:
    """Return the state after an event, and what to do."""
    if state.phase is NodePhase.OVER and not isinstance(event, Connected):
        return state, ()  # one that has given node 0 up may still reach it, and say so
    turn = NodeTurn(state, now)
    if state.due is not None and now > state.due + LATE_S:
        turn.change(outwaits=state.outwaits + now - state.due + UNREAD_S)
    if state.runs and state.job.restarts.most and now > state.lease_until:
        turn.do(Kill("lease"))  # this launcher stood still, and another attempt may have started
    RULES[type(event)](turn, event)
    advance(turn)
    return turn.state, tuple(turn.commands)


def _is_of_rank(event: events.JobEvent) -> bool:
    return isinstance(event, events.Failed) and event.event.kind == RANK


# --- from node 0


def connect(turn: NodeTurn, event: Connected) -> None:
    """Repeat what node 0 may not have heard."""
    for kept in turn.state.kept:
        turn.do(Send(kept))


def answer(turn: NodeTurn, event: Answered) -> None:
    """Renew the lease, from the time at which the heartbeat was sent."""
    state = turn.state
    if event.sent > state.answered:
        turn.change(answered=event.sent, outwaits=0.0)
        if state.runs and state.job.restarts.most:
            turn.do(Lease(turn.state.lease_until))


def start(turn: NodeTurn, event: Begin) -> None:
    """Run the processes of the attempt, unless this node has no rank in it, or has run it already."""
    state = turn.state
    turn.change(has_begun=True)
    if event.attempt <= state.attempt or state.runs or state.gave_up:
        return
    if event.rank is None:
        turn.change(is_spare=True)
        return
    kept = tuple(one for one in state.kept if isinstance(one, events.Failed) and one.attempt == event.attempt)
    turn.change(attempt=event.attempt, is_spare=False, has_told_end=False, kept=kept)
    if state.job.restarts.most and turn.now > state.lease_until:
        turn.change(phase=NodePhase.ENDED)  # this launcher stood still, and that attempt may be over
        turn.send(events.Exited(state.index, EXIT_NOT_READY, event.attempt))
        return
    turn.change(phase=NodePhase.RUNNING, rank=event.rank)
    turn.do(Lease(turn.state.lease_until))
    turn.do(Run(event.attempt, event.rank))
    if state.received is not None:  # on the way to node 0 this crossed the start
        turn.send(state.received)
        end(turn, state.received.number)


def stop(turn: NodeTurn, event: Stop) -> None:
    """Stop the processes."""
    if event.attempt == turn.state.attempt:
        end(turn, event.number or signal.SIGTERM)


def end(turn: NodeTurn, number: int) -> None:
    """Stop the processes, once."""
    if turn.state.phase is NodePhase.RUNNING:
        turn.change(phase=NodePhase.STOPPING)
        turn.do(EndProcesses(number))


def again(turn: NodeTurn, event: EndAttempt) -> None:
    """Check that nothing of the attempt is left; node 0 does not wait longer for what still runs."""
    state = turn.state
    turn.change(has_begun=True)
    if event.attempt > max(state.attempt, state.awaits) and not state.gave_up:
        turn.change(awaits=event.attempt)
        if state.runs:
            end_rest(turn, "late")
        elif state.phase is NodePhase.ENDED:
            check(turn)


def check(turn: NodeTurn) -> None:
    """Check whether this node can join the next attempt."""
    turn.change(phase=NodePhase.WAITING)
    turn.do(Check(turn.state.awaits))


def over(turn: NodeTurn, event: EndJob) -> None:
    """Leave with the status of the job; what still runs is killed."""
    state = turn.state
    turn.change(over=event)
    if state.runs:
        end_rest(turn, "over")
    else:
        leave(turn)


def end_rest(turn: NodeTurn, why: str) -> None:
    """End what is still running: unneeded companions, or a lost node's processes."""
    if turn.state.has_told_end:
        end(turn, signal.SIGTERM)
    elif not turn.state.job.keep_going:
        turn.do(Kill(why))


def leave(turn: NodeTurn, own_status: int = EXIT_NOT_READY) -> None:
    """End this launcher; ``own_status``: its status if it does not know the job's."""
    state = turn.state
    known = state.over
    status = own_status if known is None else known.status
    if state.received is not None and not state.has_begun:
        status = 128 + state.received.number
    turn.change(phase=NodePhase.OVER, due=None)
    turn.do(Send(events.Left(state.index)))
    turn.do(ExitLauncher(status, known))


# --- from this node


def fail(turn: NodeTurn, event: Broke) -> None:
    """Tell node 0, and stop the other processes unless the failure only follows from another one."""
    state = turn.state
    attempt = state.attempt if state.runs else max(state.attempt, state.awaits)  # it may cross the start
    turn.send(events.Failed(state.index, event.event, attempt, event.left_ms))
    if not event.event.follows:
        end(turn, signal.SIGTERM)


def succeed(turn: NodeTurn, event: Succeeded) -> None:
    """Tell node 0 that the ranks have ended; it announces when all nodes' have."""
    state = turn.state
    if not state.has_told_end:
        turn.change(has_told_end=True)
        turn.send(events.Exited(state.index, 0, state.attempt, None, event.progressed))
    if state.over is not None or state.gave_up or state.awaits > state.attempt:
        end(turn, signal.SIGTERM)


def finish(turn: NodeTurn, event: Done) -> None:
    """Tell node 0 that nothing runs here anymore, and wait for what follows.

    Not if the others go on, and only this launcher was told to stop.
    """
    state, has_lost = turn.state, turn.state.gave_up and not turn.state.job.keep_going
    status = event.status or (EXIT_NOT_READY if has_lost else 0)
    turn.change(phase=NodePhase.ENDED, has_told_end=True)
    if not state.has_told_end:
        ended = (status, state.attempt, event.record, event.progressed, event.is_held)
        turn.send(events.Exited(state.index, *ended))
    if state.over is not None or state.gave_up:
        leave(turn)
    elif state.goes_alone:
        leave(turn, status)
    elif state.awaits > state.attempt:
        check(turn)


def receive(turn: NodeTurn, event: events.Received) -> None:
    """Tell node 0, and stop the processes. A spare node just leaves."""
    state = turn.state
    if state.received is not None:
        return
    turn.change(received=event)
    if state.is_spare and not state.runs:
        turn.change(has_begun=False)
        leave(turn)
        return
    turn.send(event)
    end(turn, event.number)


# --- time


def advance(turn: NodeTurn) -> None:
    """Give node 0 up if it has not answered for too long: no node is left to agree with."""
    state, now = turn.state, turn.now
    if state.phase is NodePhase.OVER:
        return
    until = state.answered + state.job.given_up_s + state.outwaits
    if not state.has_begun:
        until = state.began + state.job.roll_call_s + SLACK_S
        if state.is_spare and state.answered > state.began:
            until = max(until, state.answered + state.job.given_up_s + state.outwaits)
    if now >= until and not state.gave_up:
        turn.change(gave_up=True)
        if state.has_begun:
            kind = state.job.member
            what = f"{kind} {state.rank} gave {kind} 0 up: no contact for {state.job.lost_after_s:g} s"
            event = Event(state.index, GAVE_UP, int(now * 1e9), EXIT_NOT_READY, LATENESS_NS, what=what)
            turn.send(events.Failed(state.index, event, state.attempt))
        if not state.runs:
            leave(turn)
        elif state.has_told_end or not state.job.keep_going:
            end(turn, signal.SIGTERM)
    if turn.state.phase is not NodePhase.OVER:
        turn.change(due=None if turn.state.gave_up else until)


RULES: Mapping[type, Callable[[NodeTurn, Any], None]] = {
    Connected: connect,
    Answered: answer,
    Begin: start,
    Stop: stop,
    EndAttempt: again,
    EndJob: over,
    Broke: fail,
    Succeeded: succeed,
    Done: finish,
    events.Received: receive,
    events.Ready: NodeTurn.send,
    events.Tick: lambda turn, event: None,
}
"""What an event does."""
