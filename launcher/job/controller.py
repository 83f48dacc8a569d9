"""The life of a job as one pure function: `step(state, event, now)` returns the next state and what to do.

    gathering --> running --> stopping --> between attempts --> running ...
                     |            |               |
                     +------------+---------------+--> over

It opens nothing, waits for nothing and reads no clock. `RULES` says what each event does in each phase; then
`advance` of the phase decides what can be decided by that time. One launcher decides for the job: the only
one, or that of node 0. `launcher.job.node` is what each node does.
"""

from __future__ import annotations

from launcher.core.frozen import replace
from launcher.job import attempt, between, events, gathering, lost_nodes
from launcher.job.commands import Close
from launcher.job.row import FrozenRow
from launcher.job.settings import SETTLE_S, UNREAD_S
from launcher.job.state import Job, Link, Node, Phase, State
from launcher.job.turn import Turn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from launcher.job.commands import JobCommand

    Rule = Callable[[Turn, Any], None]

LATE_S = 1.0
"""A step that comes later than this shows that the launcher stood still, and not the silent nodes."""
G, R, S, B, END = Phase.GATHERING, Phase.RUNNING, Phase.STOPPING, Phase.BETWEEN, Phase.OVER


def begin(job: Job, session: str, now: float, host: str = "", described: str = "") -> State:
    """Return the state of a job before any other node has joined node 0."""
    own = Node(session, 0, host, described)
    nodes: FrozenRow[Node | None] = FrozenRow((own, *[None] * (job.node_count + job.spare_count - 1)))
    holders: FrozenRow[int | None] = FrozenRow((0, *[None] * (job.node_count - 1)))
    state = State(job, Phase.GATHERING, now, nodes, holders, job.node_count - 1)
    return replace(state, due=now)


def step(state: State, event: events.JobEvent, now: float) -> tuple[State, tuple[JobCommand, ...]]:
    """Return the state after an event, and what to do.

    Args:
        state: The state before.
        event: What has happened; `Tick` for nothing but time.
        now: The time in seconds of one monotonic clock; never less than in an earlier step.
    """
    turn = Turn(state, now)
    if state.due is not None and now > state.due + LATE_S:
        lost_nodes.outwait(turn, now - state.due + UNREAD_S)
    rule = RULES[type(event)].get(turn.state.phase)
    if rule is not None:
        rule(turn, event)
    before = None
    while turn.state.phase is not before:  # the end of a phase may be that of the next one, too
        before = turn.state.phase
        late = lost_nodes.find_late(turn)
        if late:
            (gathering.forget_late if before is G else lost_nodes.lose_late)(turn, late)
        ADVANCE[turn.state.phase](turn)
    due = find_due(turn)
    if due != state.due:
        turn.change(due=due)
    return turn.state, tuple(turn.commands)


# --- the end


def advance_over(turn: Turn) -> None:
    """Leave when all nodes know how the job ended, or have had the time to hear it."""
    if turn.now >= find_leave_at(turn.state):
        turn.change(leave_by=None)
        turn.send(Close())


def find_leave_at(state: State) -> float:
    """Return until when a node may still hear how the job ended; 0 if all know it, or node 0 has left."""
    nodes = [node for index, node in enumerate(state.nodes) if index and node is not None]
    times = [hears_until(state, node) for node in nodes]
    if state.attempt is None and state.missing:  # it may still come
        times.append(state.leave_by or 0.0)
    return max(times, default=0.0)


def hears_until(state: State, node: Node) -> float:
    """Return until when a node may hear how the job ended; 0 if it knows, or is gone.

    A link may be down at the end, too; but what was told to end must do so soon.
    """
    if state.leave_by is None or node.has_left or node.is_lost or node.link is Link.ENDED:
        return 0.0
    if node.rank is None and node.link is Link.CLOSED:
        return 0.0
    if state.attempt is None or state.is_told:
        return state.leave_by
    if node.link is Link.OPEN:
        return state.leave_by + state.job.given_up_s  # soon it leaves, or is silent
    calls_s = 0.0 if state.job.serves else state.job.given_up_s  # with its streams it has given up
    return max(state.leave_by, node.since + calls_s)


def find_due(turn: Turn) -> float | None:
    """Return when something follows from time alone."""
    state, now, times = turn.state, turn.now, list[float]()
    if state.phase is Phase.OVER:
        return find_leave_at(state) or None
    if state.away:
        times += [
            lost_nodes.lost_at(state, node) for index in state.away if (node := turn.find(index)) is not None
        ]
    times += state.unhealthy.values()
    if state.phase is Phase.GATHERING and not state.is_probing:
        times.append(state.began + state.job.roll_call_s)
    if state.phase is Phase.BETWEEN:
        if between.is_complete(turn):
            times.append(turn.pause.starts_at)
        else:
            times.append(between.first_deadline(turn))
            times += [between.deadline(turn.pause, rank) for rank in turn.pause.until]
    elif state.phase is not Phase.GATHERING:
        run = turn.attempt
        if run.held is not None:
            times.append(run.held[0])
        if run.open and run.decide_by is not None:
            times.append(run.decide_by)
        if not run.open and run.first_at is not None:
            times.append(run.first_at + SETTLE_S)
    later = [one for one in times if one > now]
    return min(later, default=None)


RULES: Mapping[type, Mapping[Phase, Rule]] = {
    events.Joined: {
        G: gathering.join,
        R: gathering.join_running,
        S: gathering.join_running,
        B: gathering.join_between,
        END: gathering.join_over,
    },
    events.Disconnected: {G: gathering.close, **dict.fromkeys((R, S, B, END), lost_nodes.close)},
    events.Killed: {G: gathering.kill, **dict.fromkeys((R, S, B, END), lost_nodes.kill)},
    events.Silent: dict.fromkeys(Phase, lost_nodes.silence),
    events.Heard: dict.fromkeys(Phase, lost_nodes.hear),
    events.Failed: {R: attempt.fail, S: attempt.fail, B: between.fail},
    events.Exited: {R: attempt.note_exit, S: attempt.note_exit, B: attempt.note_late_exit},
    events.Received: {G: gathering.refuse_by_signal, R: attempt.stop, S: attempt.stop, B: between.stop},
    events.Ready: {
        G: gathering.note_health,
        R: gathering.note_spare_health,
        S: gathering.note_spare_health,
        B: between.note_ready,
    },
    events.Unable: {R: attempt.give_up, S: attempt.give_up, B: between.give_up},
    events.Probed: {G: gathering.refuse_late},
    events.Refused: {G: gathering.refuse_as},
    events.Left: dict.fromkeys(Phase, lost_nodes.leave),
    events.Tick: {},
}  # fmt: skip
"""What an event does in a phase; nothing where there is no entry."""
ADVANCE: Mapping[Phase, Callable[[Turn], None]] = {
    G: gathering.advance,
    R: attempt.advance,
    S: attempt.advance,
    B: between.advance,
    END: advance_over,
}
"""What follows from the state and the time, in a phase."""
