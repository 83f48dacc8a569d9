"""What happens when a node falls silent or is lost: in an attempt, between two attempts, or at the end.

A node is lost if it was away for `Job.given_up_s`, if its launcher was killed, or if another launcher has
taken its place. In an attempt that is a failure like others; between two attempts node 0 waits for the node
or a spare one. If all others fall silent together, node 0 itself was cut off. `launcher.job.silence` notices
missing heartbeats; in the roll call a node that goes is forgotten (`launcher.job.gathering`).
"""

from __future__ import annotations

from launcher.core.frozen import replace
from launcher.failure.arbiter import NODE_LOST, SILENT_NS
from launcher.job import attempt, between
from launcher.job.commands import Blame, Print
from launcher.job.settings import QUIET_S
from launcher.job.state import NEVER, Link, Phase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.job import events
    from launcher.job.state import Node, State
    from launcher.job.turn import Turn


def close(turn: Turn, event: events.Disconnected) -> None:
    """Wait until the node connects again, or is lost."""
    node = turn.find(event.node)
    if node is not None and node.link is not Link.ENDED:
        heard, since, exited = event.heard, max(turn.now, event.heard), event.has_exited
        node = replace(node, link=Link.CLOSED, heard=heard, since=since, why=event.why, has_exited=exited)
        turn.put(event.node, node)


def kill(turn: Turn, event: events.Killed) -> None:
    """Lose the node immediately: nothing of it is running, and only a new launcher can replace it."""
    turn.change_node(event.node, link=Link.ENDED, heard=turn.now, since=turn.now)


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


def find_late(turn: Turn) -> list[tuple[int, Node]]:
    """Return the nodes of the job that were away too long; spare ones are forgotten here."""
    state = turn.state
    if not state.away or state.phase is Phase.OVER:
        return []
    away = [(index, node) for index in sorted(state.away) if (node := turn.find(index)) is not None]
    late = [(index, node) for index, node in away if is_lost(turn, node)]
    for index, node in late:
        if node.rank is None:
            how = between.describe_silence(node)
            what = f"{turn.name(index)}, a spare {state.job.member}, is lost: {how}"
            turn.send(Print(what, "spare-lost"))
            turn.drop(index)
    return [(index, node) for index, node in late if node.rank is not None]


def lose_late(turn: Turn, late: Sequence[tuple[int, Node]]) -> None:
    """Lose nodes that were away too long. If all fall silent together, node 0 is cut off."""
    is_between = turn.state.phase is Phase.BETWEEN
    others = [
        (index, node)
        for index, node in turn.held()
        if index and (is_between or (node.ended is None and not node.is_lost))
    ]
    late = [(index, node) for index, node in late if (index, node) in others]
    heard_by = [node for index, node in enumerate(turn.state.nodes) if index and node is not None and (
        node.rank is None or (index, node) in others)]  # fmt: skip
    is_alone = all(node.link is Link.SILENT and turn.now - node.heard > QUIET_S for node in heard_by)
    if late and len(others) > 1 and is_alone:
        if len(late) == len(others):
            since = max(node.heard for _, node in others)
            (between.cut_off if is_between else lose_all)(turn, since)
        return  # wait: if one is heard again, or all are late, it is clear whose network it is
    for index, node in late:
        if is_between:
            lose_between(turn, index)
        else:
            lose(turn, index, node.since)


def lose(turn: Turn, index: int, since: float, *, is_replaced: bool = False) -> None:
    """Take the loss of a node in an attempt as a failure; its processes may still run.

    Args:
        turn: The step.
        index: Index of the node.
        since: Since when it could not be heard.
        is_replaced: Whether a new launcher has called in its place.
    """
    node, job = turn.find(index), turn.state.job
    if node is None or node.is_lost or node.ended is not None:
        return
    has_ended = node.has_exited or node.link is Link.ENDED
    quiet = NEVER if has_ended else node.find_quiet(turn.now)
    turn.put(index, replace(node, is_lost=True, quiet=quiet))
    turn.change_attempt(open=turn.attempt.open - 1)
    within_ns = SILENT_NS if node.link is Link.SILENT else 0
    is_known = job.serves or node.link is Link.ENDED
    after = "" if is_known else f", no contact for {job.lost_after_s:g} s"
    if is_replaced:
        after = f", and a new launcher has called as {job.member} {node.rank}"
    how, other = between.describe_silence(node), between.suspect_own(turn, node)
    what = f"{turn.name(index)} is lost: {how}{after}{other}"
    attempt.take(turn, between.make_lost(index, what, since, within_ns))


def lose_all(turn: Turn, since: float) -> None:
    """Handle the simultaneous loss of all other nodes: node 0 is cut off, or was paused."""
    attempt.take(turn, between.make_cut_off(turn, since))
    for index, node in list(turn.held()):
        if index:
            lose(turn, index, node.heard)


def lose_between(turn: Turn, index: int) -> None:
    """Drop a node that was lost between two attempts, and wait for it or a spare one."""
    node = turn.find(index)
    if node is None:
        return
    how, number = between.describe_silence(node), turn.pause.again.attempt
    other = between.suspect_own(turn, node)
    turn.send(Print(f"{turn.name(index)} is lost before attempt {number}: {how}{other}", "node-lost"))
    turn.send(Blame(index, turn.rank_of(index), NODE_LOST, how))
    between.drop(turn, index)
    between.fill(turn)
