"""Between two attempts: the nodes that are ready, spare nodes, and the start of the next attempt.

No two attempts run at once. A node that fell silent may still run its processes, but it has stopped them when
its lease ends, which began with the last heartbeat of it that node 0 has heard. The next attempt does not
start before. A connection that the other side has closed shows that the launcher has ended, and its watchdog
kills the processes at once.
"""

from __future__ import annotations

from launcher.core.errors import EXIT_NOT_READY
from launcher.core.frozen import replace
from launcher.failure.arbiter import CUT_OFF, LOST, Event
from launcher.failure.model import Cause
from launcher.job.commands import Again, Over, Print
from launcher.job.settings import KILLED_S, LEASE_SLACK_S, LOST_FIX, SPARES_S
from launcher.job.state import Link, Node, Pause, Phase
from launcher.recovery.policy import Decision

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.job.events import Failed, Ready, Received, Unable
    from launcher.job.turn import Turn

TOLD = "the launcher was told to end"


def begin(turn: Turn, over: Over, decision: Decision) -> None:
    """Wait for the nodes after an attempt that has failed; lost ones are no members any more."""
    state, now = turn.state, turn.now
    again, wait_s = Again(turn.attempt.number + 1, over, decision), decision.wait_s
    patience_s = state.job.grace_s + state.job.restarts.rejoin_timeout_s
    turn.change(phase=Phase.BETWEEN, pause=Pause(again, now + wait_s, 0, now + wait_s + patience_s))
    turn.send(again)
    for index, node in list(turn.held()):
        if index and (node.is_lost or node.has_left):
            drop(turn, index)
    fill(turn)


def drop(turn: Turn, index: int) -> None:
    """Forget a node that is lost, and wait until its processes have ended."""
    node, job, now = turn.find(index), turn.state.job, turn.now
    if node is None:
        return
    set_ready(turn, index, ready=False)
    if node.part == turn.attempt.number and node.ended is None:
        if node.has_exited:
            clear_at = now + KILLED_S + LEASE_SLACK_S
        else:
            heard = now if node.link is Link.OPEN else node.heard
            clear_at = heard + job.lease_s + KILLED_S
        turn.change_pause(not_before=max(turn.pause.not_before, clear_at))
    if node.rank is not None:
        wait_for(turn, index)
    turn.drop(index)
    turn.change(unhealthy={one: until for one, until in turn.state.unhealthy.items() if one != index})


def set_ready(turn: Turn, index: int, *, ready: bool = True) -> None:
    """Note whether a node is ready for the next attempt."""
    node = turn.find(index)
    if node is not None and node.rank is not None and node.is_ready is not ready:
        turn.put(index, replace(node, is_ready=ready))
        turn.change_pause(ready=turn.pause.ready + (1 if ready else -1))


def wait_for(turn: Turn, index: int) -> None:
    """Give a rank its time from now on, because its node has to come back or to get ready."""
    node, pause, job = turn.find(index), turn.pause, turn.state.job
    if node is None or node.rank is None:
        return
    until = max(turn.now, pause.not_before) + job.grace_s + job.restarts.rejoin_timeout_s
    turn.change_pause(until={**pause.until, node.rank: max(until, pause.until.get(node.rank, 0.0))})


def note_ready(turn: Turn, event: Ready) -> None:
    """Note that a node is ready. A spare one takes the place of a node that is unhealthy."""
    node = turn.find(event.node)
    if node is None:
        return
    turn.change_node(event.node, health=event.unhealthy, is_held=event.is_held)
    has_part = node.part == turn.attempt.number
    if event.attempt == (turn.pause.again.attempt if has_part else 0):
        set_ready(turn, event.node)
    take_unhealthy(turn, event.node, event.unhealthy)


def take_unhealthy(turn: Turn, index: int, unhealthy: str) -> None:
    """Note what is wrong with a node, and look for a spare one; an unhealthy spare one leaves."""
    node = turn.find(index)
    if node is not None and unhealthy and node.rank is None:
        turn.put(index, None)
        turn.dismiss(node.session, f"this node leaves the job: it is unhealthy ({unhealthy})")
        turn.send(Print(f"spare node {index} is unhealthy: {unhealthy}", "unhealthy"))
    elif unhealthy:
        turn.change(unhealthy={**turn.state.unhealthy, index: turn.now + SPARES_S})
    if turn.state.phase in (Phase.GATHERING, Phase.BETWEEN):
        fill(turn)


def fill(turn: Turn) -> None:
    """Give the ranks of unhealthy and lost nodes to spare ones."""
    for index, until in list(turn.state.unhealthy.items()):
        node = turn.find(index)
        if node is not None and node.health and node.rank is not None:
            if index and seat(turn, node.rank):
                turn.dismiss(node.session, f"this node leaves the job: it is unhealthy ({node.health})")
            elif index and turn.now < until and has_room(turn):
                continue  # a spare node may still come
            elif node.is_held:
                end(turn, f"node {index} is unhealthy ({node.health}), and no spare node can take its place")
                return
            else:
                turn.send(Print(describe_unhealthy(turn, index, node.health), "unhealthy"))
        turn.change(unhealthy={one: at for one, at in turn.state.unhealthy.items() if one != index})
    if turn.state.phase is Phase.BETWEEN and turn.state.missing:
        for rank, holder in enumerate(turn.state.holders):
            if holder is None and not seat(turn, rank):
                return


def has_room(turn: Turn) -> bool:
    """Whether a spare node may still come."""
    places = range(turn.state.job.node_count, len(turn.state.nodes))
    return any(turn.state.nodes[index] is None for index in places)


def describe_unhealthy(turn: Turn, index: int, health: str) -> str:
    """Return that an unhealthy node takes part, because no other can."""
    if turn.state.job.node_count == 1:
        return f"this node is unhealthy ({health}), and starts again: there is no other"
    return f"node {index} is unhealthy: {health}; no spare node can take its place, so it takes part"


def seat(turn: Turn, rank: int) -> bool:
    """Give a rank to a spare node that is connected and healthy; return whether there was one."""
    state, needs_health = turn.state, bool(turn.state.job.restarts.health_argv)

    def fits(node: Node | None) -> bool:
        is_spare = node is not None and node.rank is None and node.link is Link.OPEN
        return is_spare and node is not None and (node.health == "" or not (needs_health or node.health))

    index = next((index for index, node in enumerate(state.nodes) if fits(node)), None)
    if index is None:
        return False
    before = state.holders[rank]
    if before is not None:
        drop_unhealthy(turn, before)
    turn.change_node(index, rank=rank)
    if state.phase is Phase.BETWEEN:
        set_ready(turn, index)
    turn.send(Print(f"spare node {index} takes the place of node {rank}", "spare-taken"))
    return True


def drop_unhealthy(turn: Turn, index: int) -> None:
    """Forget a node that a spare one replaces. Nothing of it runs, if it is not held."""
    node = turn.find(index)
    if node is None:
        return
    if turn.state.phase is Phase.BETWEEN:
        set_ready(turn, index, ready=False)
    turn.put(index, None)


def fail(turn: Turn, event: Failed) -> None:
    """End the job if a node is taken back, or if all others have given node 0 up."""
    kind = event.event.kind
    if kind == "preempted":
        end(turn, f"node {event.node} is taken back")
    elif kind == "gave-up":
        turn.change_node(event.node, has_left=True)
        others = [node for index, node in turn.held() if index]
        if others and all(node.has_left for node in others):
            cut_off(turn, turn.now)


def stop(turn: Turn, event: Received) -> None:
    """End the job: a launcher was asked to end. A spare one just leaves."""
    node = turn.find(event.node)
    if node is not None and node.rank is not None:
        turn.change(is_told=True)
        end(turn, TOLD)


def give_up(turn: Turn, event: Unable) -> None:
    """End the job, because the next attempt cannot start."""
    end(turn, event.why)


def lose(turn: Turn, index: int, since: float) -> None:
    """Drop a node that was lost, and wait for it or a spare one."""
    turn.send(Print(f"node {index} is lost before attempt {turn.pause.again.attempt}", "node-lost"))
    drop(turn, index)
    fill(turn)


def cut_off(turn: Turn, since: float) -> None:
    """End the job, because node 0 has lost all others at once: they have ended, as inside an attempt."""
    event = make_cut_off(since)
    finish(turn, Over(EXIT_NOT_READY, event), "node 0 was cut off from all other nodes, and they have ended")


def make_cut_off(since: float) -> Event:
    """Return the event that node 0 has lost all others at once."""
    what = "node 0 had no contact with any other node: its own network was cut, or it was paused"
    cause = Cause("node-lost", what, LOST_FIX, retryable=True)
    return Event(0, CUT_OFF, int(since * 1e9), EXIT_NOT_READY, what=what, cause=cause)


def make_lost(index: int, what: str, since: float, within_ns: int = 0) -> Event:
    """Return the event that a node is lost."""
    cause = Cause("node-lost", what, LOST_FIX, retryable=True)
    return Event(index, LOST, int(since * 1e9), EXIT_NOT_READY, within_ns, what=what, cause=cause)


def end(turn: Turn, why: str) -> None:
    """End the job as the last attempt has ended; ``why``: the reason why no other follows."""
    if turn.state.phase is Phase.BETWEEN:
        finish(turn, turn.pause.again.over, why)


def finish(turn: Turn, over: Over, why: str) -> None:
    """End the job, although an attempt was to follow."""
    turn.finish(replace(over, decision=Decision(False, why)))


def advance(turn: Turn) -> None:
    """Start the next attempt if all are ready, or end the job if a node has not come back in time."""
    fill(turn)
    state = turn.state
    if state.phase is not Phase.BETWEEN or state.unhealthy:
        return
    pause, now = turn.pause, turn.now
    if is_complete(turn):
        if now >= pause.not_before:
            turn.start(pause.again.attempt)
        return
    if now < first_deadline(turn):
        return  # runs for each node that is ready, so it must not list all nodes before this
    late = [rank for rank in find_awaited(turn) if now >= deadline(turn, rank)]
    if late:
        what = f"node {late[0]} did not come back in time (--rejoin-timeout)"
        over = pause.again.over
        if over.first is None or over.first.kind != LOST:
            over = Over(EXIT_NOT_READY, make_lost(late[0], what, now))
        finish(turn, over, what)


def is_complete(turn: Turn) -> bool:
    """Whether all nodes can start; they are asked one by one only when all have said so."""
    return turn.pause.ready == turn.state.job.node_count and not find_absent(turn)


def find_absent(turn: Turn) -> list[int]:
    """Return the ranks whose node is not here, not ready, or not connected."""
    state = turn.state
    nodes = [None if index is None else state.nodes[index] for index in state.holders]
    return [
        rank
        for rank, node in enumerate(nodes)
        if node is None or not node.is_ready or node.link is Link.CLOSED
    ]


def find_awaited(turn: Turn) -> list[int]:
    """Return the absent ranks whose node may not come back. That of node 0 only has to get ready."""
    return [rank for rank in find_absent(turn) if turn.state.holders[rank] != 0]


def first_deadline(turn: Turn) -> float:
    """Return until when no node is late."""
    pause = turn.pause
    return max(min((pause.until_all, *pause.until.values())), pause.not_before)


def deadline(turn: Turn, rank: int) -> float:
    """Return until when a rank is waited for."""
    pause = turn.pause
    return max(pause.until.get(rank, pause.until_all), pause.not_before)
