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
from launcher.job import attempt, between, events, gathering
from launcher.job.commands import Close, HangUp, Print
from launcher.job.row import FrozenRow
from launcher.job.settings import QUIET_S, SETTLE_S, UNREAD_S
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
        outwait(turn, now - state.due + UNREAD_S)
    rule = RULES[type(event)].get(turn.state.phase)
    if rule is not None:
        rule(turn, event)
    before = None
    while turn.state.phase is not before:  # the end of a phase may be that of the next one, too
        before = turn.state.phase
        find_lost(turn)
        ADVANCE[turn.state.phase](turn)
    due = find_due(turn)
    if due != state.due:
        turn.change(due=due)
    return turn.state, tuple(turn.commands)


# --- silent and lost nodes


def close(turn: Turn, event: events.Disconnected) -> None:
    """Wait until the node connects again, or is lost."""
    node = turn.find(event.node)
    if node is not None and node.link is not Link.ENDED:
        heard, since, exited = event.heard, max(turn.now, event.heard), event.has_exited
        node = replace(node, link=Link.CLOSED, heard=heard, since=since, why=event.why, has_exited=exited)
        turn.put(event.node, node)


def close_gathering(turn: Turn, event: events.Disconnected) -> None:
    """Forget the node: it or its successor will join again. Wait for a spare node to come back."""
    node = turn.find(event.node)
    if node is not None and node.rank is None:
        close(turn, event)
    elif node is not None:
        gathering.forget(turn, event.node, f"its connection has ended ({event.why})")


def kill(turn: Turn, event: events.Killed) -> None:
    """Lose the node immediately: nothing of it is running, and only a new launcher can replace it."""
    turn.change_node(event.node, link=Link.ENDED, heard=turn.now, since=turn.now)


def kill_gathering(turn: Turn, event: events.Killed) -> None:
    """Forget the node: its successor will join. A spare node is lost, as in every other phase."""
    node = turn.find(event.node)
    if node is not None and node.rank is not None:
        gathering.forget(turn, event.node, between.KILLED)
    else:
        kill(turn, event)


def silence(turn: Turn, event: events.Silent) -> None:
    """Wait until the node is heard again, or is lost."""
    node = turn.find(event.node)
    if node is not None and node.link is Link.OPEN:
        turn.put(event.node, replace(node, link=Link.SILENT, heard=event.heard, since=event.heard))


def hear(turn: Turn, event: events.Heard) -> None:
    """Note that the node is no longer silent."""
    node = turn.find(event.node)
    if node is not None and node.link is Link.SILENT:
        quiet = node.quiet if node.is_lost else node.find_quiet(turn.now)
        turn.put(event.node, replace(node, link=Link.OPEN, quiet=quiet))


def leave(turn: Turn, event: events.Left) -> None:
    """Note that the node knows how the job ended. Forget a spare node that left before the end."""
    node = turn.find(event.node)
    if node is None:
        return
    if node.rank is None and turn.state.phase is not Phase.OVER:
        what = f"{turn.name(event.node)}, a spare {turn.state.job.member}, has left"
        turn.send(Print(what, "spare-left"))
        turn.put(event.node, None)
    elif turn.state.phase is Phase.BETWEEN and not node.has_left:
        turn.send(
            Print(f"{turn.name(event.node)} has left before attempt {turn.pause.again.attempt}", "node-left")
        )
        between.drop(turn, event.node)
    else:
        turn.put(event.node, replace(node, has_left=True))


def outwait(turn: Turn, late_s: float) -> None:
    """Give silent nodes the time for which this launcher stood still: their messages are still unread."""
    for index in turn.state.away:
        node = turn.find(index)
        if node is not None:
            turn.put(index, replace(node, since=node.since + late_s))


def lost_at(state: State, node: Node) -> float:
    """Return when a node that is away counts as lost."""
    waits = {Link.CLOSED: state.job.closed_s, Link.ENDED: 0.0}
    return node.since + waits.get(node.link, state.job.given_up_s)


def is_lost(turn: Turn, node: Node) -> bool:
    """Whether a node was away for so long that it counts as lost. One that has given node 0 up ends."""
    has_ended = node.has_left and node.link is Link.CLOSED and not turn.state.job.keep_going
    return has_ended or turn.now >= lost_at(turn.state, node)


def find_lost(turn: Turn) -> None:
    """Lose nodes that were away too long. If all fall silent together, node 0 is cut off."""
    state, now = turn.state, turn.now
    if not state.away or state.phase is Phase.OVER:
        return
    is_between = state.phase is Phase.BETWEEN
    away = [(index, node) for index in sorted(state.away) if (node := turn.find(index)) is not None]
    late = [(index, node) for index, node in away if is_lost(turn, node)]
    if not late:
        return
    for index, node in late:
        if node.rank is None:
            how = between.describe_silence(node)
            what = f"{turn.name(index)}, a spare {state.job.member}, is lost: {how}"
            turn.send(Print(what, "spare-lost"))
            turn.drop(index)
    late = [(index, node) for index, node in late if node.rank is not None]
    if state.phase is Phase.GATHERING:
        for index, node in late:
            how = between.describe_silence(node)
            turn.send(Print(f"{turn.name(index)} has left again: {how}", "node-left"))
            turn.send(HangUp(node.session))
            gathering.forget(turn, index, how)
        return
    others = [
        (index, node)
        for index, node in turn.held()
        if index and (is_between or (node.ended is None and not node.is_lost))
    ]
    late = [(index, node) for index, node in late if (index, node) in others]
    heard_by = [node for index, node in enumerate(turn.state.nodes) if index and node is not None and (
        node.rank is None or (index, node) in others)]  # fmt: skip
    is_alone = all(node.link is Link.SILENT and now - node.heard > QUIET_S for node in heard_by)
    if late and len(others) > 1 and is_alone:
        if len(late) == len(others):
            since = max(node.heard for _, node in others)
            (between.cut_off if is_between else attempt.lose_all)(turn, since)
        return  # wait: if one is heard again, or all are late, it is clear whose network it is
    for index, node in late:
        if is_between:
            between.lose(turn, index)
        else:
            attempt.lose(turn, index, node.since)


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
        times += [lost_at(state, node) for index in state.away if (node := turn.find(index)) is not None]
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
    events.Disconnected: {G: close_gathering, R: close, S: close, B: close, END: close},
    events.Killed: {G: kill_gathering, R: kill, S: kill, B: kill, END: kill},
    events.Silent: {G: silence, R: silence, S: silence, B: silence, END: silence},
    events.Heard: {G: hear, R: hear, S: hear, B: hear, END: hear},
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
    events.Left: {G: leave, R: leave, S: leave, B: leave, END: leave},
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
