"""Between two attempts: the nodes that are ready, spare nodes, and the start of the next attempt.

No two attempts run at once. A node that fell silent may still run its processes, but it has stopped them when
its lease ends, which began with the last heartbeat of it that node 0 has heard. The next attempt does not
start before. A launcher that says that it ends, or in whose place another one calls, has ended, and its
watchdog has killed the processes. The watchdog of a killed launcher calls node 0 when it has done so. A
closed connection alone does not show that: what is between two nodes may have closed it. A launcher that goes
on resets a connection that it gives up.
"""

from __future__ import annotations

from launcher.core.errors import EXIT_NOT_READY
from launcher.core.frozen import replace
from launcher.core.signal import signal
from launcher.failure.arbiter import CUT_OFF, GAVE_UP, LOST, PREEMPTED, Event, make_node_lost
from launcher.job.commands import Blame, EndAttempt, EndJob, Print
from launcher.job.settings import KILLED_S, LEASE_SLACK_S, QUIET_S, SPARES_S
from launcher.job.state import Link, Node, Pause, Phase
from launcher.recovery.policy import Decision

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from launcher.job.events import Failed, Ready, Received, Unable
    from launcher.job.state import State
    from launcher.job.turn import Turn

TOLD = "the launcher received a signal to stop"
KILLED = "its launcher was killed"
ALONE = "node 0 was cut off from all other nodes, and they have ended"
STOPS = (signal.SIGTERM, signal.SIGINT)
NAMED_MAX = 20


def begin(turn: Turn, over: EndJob, decision: Decision) -> None:
    """Wait for the nodes after a failed attempt; lost ones are no longer members."""
    state, now = turn.state, turn.now
    again, wait_s = EndAttempt(turn.attempt.number + 1, over, decision), decision.wait_s
    patience_s = state.job.grace_s + state.job.restarts.rejoin_timeout_s
    hosts = {node.rank: node.host for _, node in turn.held() if node.rank is not None}
    pause = Pause(again, now + wait_s, 0, now + wait_s + patience_s, hosts=hosts)
    turn.change(phase=Phase.BETWEEN, pause=pause)
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
    # What its ranks do not need any more runs until the next attempt, if they have succeeded
    has_rest = node.ended is None or not (node.ended or node.is_ready or node.has_left)
    set_ready(turn, index, ready=False)
    if node.part == turn.attempt.number and has_rest and node.link is not Link.ENDED:
        killed_at = now + KILLED_S + LEASE_SLACK_S
        heard = now if node.link is Link.OPEN else node.heard
        ended_at = heard + job.lease_s + KILLED_S
        clear_at = killed_at if node.has_exited else ended_at
        if node.has_exited and not node.has_left:
            turn.change_pause(closed={**turn.pause.closed, index: ended_at})
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
    until = max(turn.now, pause.starts_at) + job.grace_s + job.restarts.rejoin_timeout_s
    turn.change_pause(until={**pause.until, node.rank: max(until, pause.until.get(node.rank, 0.0))})


def note_ready(turn: Turn, event: Ready) -> None:
    """Note that a node is ready. A spare node replaces a node that is unhealthy."""
    node = turn.find(event.node)
    if node is None:
        return
    turn.change_node(event.node, health=event.unhealthy, is_held=event.is_held)
    has_part = node.part == turn.attempt.number
    if event.attempt == turn.pause.again.attempt or not (has_part or event.attempt or turn.state.job.serves):
        set_ready(turn, event.node)
    take_unhealthy(turn, event.node, event.unhealthy)


def take_unhealthy(turn: Turn, index: int, unhealthy: str) -> None:
    """Note what is wrong with a node, and look for a spare one; an unhealthy spare one leaves."""
    node = turn.find(index)
    if node is not None and unhealthy and node.rank is None:
        turn.send(Blame(index, turn.rank_of(index), "unhealthy", unhealthy))
        what = f"{turn.name(index)}, a spare {turn.state.job.member}, is unhealthy: {unhealthy}"
        turn.send(Print(what, "unhealthy"))
        turn.dismiss(node.session, f"it is unhealthy ({unhealthy})")
        turn.put(index, None)
    elif unhealthy:
        turn.send(Blame(index, turn.rank_of(index), "unhealthy", unhealthy))
        turn.change(unhealthy={**turn.state.unhealthy, index: turn.now + SPARES_S})
    if turn.state.phase in (Phase.GATHERING, Phase.BETWEEN):
        fill(turn)


def fill(turn: Turn) -> None:
    """Give the ranks of unhealthy and lost nodes to spare ones."""
    job = turn.state.job
    for index, until in list(turn.state.unhealthy.items()):
        node = turn.find(index)
        if node is not None and node.health and node.rank is not None:
            found = f"{turn.name(index)} is unhealthy: {node.health}"
            if index and seat(turn, node.rank, found):
                why = f"it is unhealthy ({node.health}); a spare {job.member} has taken its place"
                turn.dismiss(node.session, why)
            elif index and turn.now < until and has_room(turn):
                continue  # a spare node may still come
            elif node.is_held:
                end(turn, f"{found}; no spare {job.member} can take its place")
                return
            else:
                turn.send(Print(describe_unhealthy(turn, index, node.health), "unhealthy"))
        turn.change(unhealthy={one: at for one, at in turn.state.unhealthy.items() if one != index})
    if turn.state.phase is Phase.BETWEEN and turn.state.missing:
        for rank, holder in enumerate(turn.state.holders):
            if holder is None and not seat(turn, rank):
                return


def has_room(turn: Turn) -> bool:
    """Whether a spare node may still come, or be found healthy."""
    return any(node is None or (node.rank is None and node.health is None) for node in turn.state.nodes)


def describe_unhealthy(turn: Turn, index: int, health: str) -> str:
    """Return the line about an unhealthy node that joins because no other can."""
    if turn.state.job.node_count == 1:
        return f"this node is unhealthy ({health}), and starts again: there is no other"
    spare = f"no spare {turn.state.job.member} can take its place, so it takes part"
    return f"{turn.name(index)} is unhealthy: {health}; {spare}"


def seat(turn: Turn, rank: int, why: str = "") -> bool:
    """Give a rank to a connected and healthy spare node, and say why; return whether there was one."""
    state, needs_health = turn.state, bool(turn.state.job.restarts.health_argv)

    def fits(node: Node | None) -> bool:
        is_spare = node is not None and node.rank is None and node.link is Link.OPEN
        return is_spare and node is not None and (node.health == "" or not (needs_health or node.health))

    index = next((index for index, node in enumerate(state.nodes) if fits(node)), None)
    if index is None:
        return False
    spare, before = turn.find(index), state.holders[rank]
    if before is not None:  # nothing of it runs, if it is not held
        if state.phase is Phase.BETWEEN:
            set_ready(turn, before, ready=False)
        turn.put(before, None)
    turn.change_node(index, rank=rank)
    if state.phase is Phase.BETWEEN:
        set_ready(turn, index)
    if why:
        turn.send(Print(why, "unhealthy"))
    member, host = state.job.member, "" if spare is None else spare.host
    what = f"spare {member} {index} ({host}) takes the place of {member} {rank}"
    turn.send(Print(what, "spare-taken"))
    return True


def fail(turn: Turn, event: Failed) -> None:
    """End the job if a node is preempted, or if all other nodes have lost node 0."""
    kind, node = event.event.kind, turn.find(event.node)
    if node is None or node.rank is None:
        return
    if kind == PREEMPTED:
        over, what = replace(turn.pause.again.over, status=EXIT_NOT_READY), event.event.what
        alone = turn.state.job.node_count == 1
        finish(turn, over, what if alone else f"{turn.name(event.node)} is being reclaimed: {what}")
    elif kind == GAVE_UP:
        turn.change_node(event.node, has_left=True)
        others = [node for index, node in turn.held() if index]
        if others and all(node.has_left for node in others):
            cut_off(turn, turn.now)


def stop(turn: Turn, event: Received) -> None:
    """End the job, because a launcher received a signal to stop. A spare node just leaves."""
    node = turn.find(event.node)
    if node is not None and node.rank is not None:
        turn.change(is_told=True)
        alone = turn.state.job.node_count == 1
        over = replace(turn.pause.again.over, is_stopped=event.number in STOPS)
        finish(turn, over, TOLD if alone else f"{turn.name(event.node)} received {event.name}")


def give_up(turn: Turn, event: Unable) -> None:
    """End the job, because the next attempt cannot start."""
    end(turn, event.why)


def was_cut_off(turn: Turn, lost: Collection[int], since: Sequence[float]) -> bool:
    """Whether node 0 heard no other node while some were lost: its own network was cut, or it was paused.

    Others may be heard again just in time, and the connections of nodes that serve end one by one.

    Args:
        turn: The step.
        lost: Indices of the nodes that fell silent and were lost.
        since: When each of them was heard last.
    """
    others = [
        node.quiet if node.link is Link.OPEN else node.find_quiet(turn.now)
        for index, node in turn.held()
        if index and index not in lost
    ]
    times = [*since, *(begin for begin, _ in others)]
    were_silent = all(end - begin >= turn.state.job.lost_after_s for begin, end in others)
    return len(times) > 1 and bool(since) and were_silent and max(times) - min(times) <= QUIET_S


def describe_silence(node: Node) -> str:
    """Return how contact with a node was lost."""
    if node.link is Link.ENDED:
        return KILLED
    return f"its connection has ended ({node.why})" if node.link is Link.CLOSED else "it stopped responding"


def suspect_own(turn: Turn, node: Node) -> str:
    """Return what else the silence of the only other node can mean; empty if others are there."""
    job = turn.state.job
    is_silent = node.link is Link.SILENT or (job.serves and node.link is Link.CLOSED and not node.has_exited)
    if job.node_count != 2 or not is_silent:
        return ""
    return f"; or the network of {job.member} 0 was cut, or {job.member} 0 was paused"


def cut_off(turn: Turn, since: float) -> None:
    """End the job because node 0 lost all other nodes at once, as within an attempt."""
    own = turn.find(0)
    over = EndJob(EXIT_NOT_READY, make_cut_off(turn, since), host="" if own is None else own.host)
    finish(turn, over, ALONE)
    for index, _ in list(turn.held()):
        if index:
            turn.drop(index)


def make_cut_off(turn: Turn, since: float) -> Event:
    """Return the event for node 0 losing all other nodes at once."""
    job, count = turn.state.job, sum(1 for index, _ in turn.held() if index)
    what = (
        f"{turn.name(0)} had no contact with any of the {count} other {job.member}s for "
        f"{job.lost_after_s:g} s: its own network was cut, or it was paused"
    )
    cause = make_node_lost(what, is_cut_off=True)
    return Event(0, CUT_OFF, int(since * 1e9), EXIT_NOT_READY, what=what, cause=cause)


def make_lost(index: int, what: str, since: float, within_ns: int = 0) -> Event:
    """Return the event that a node is lost."""
    cause = make_node_lost(what)
    return Event(index, LOST, int(since * 1e9), EXIT_NOT_READY, within_ns, what=what, cause=cause)


def end(turn: Turn, why: str) -> None:
    """End the job as the last attempt has ended; ``why``: the reason why no other follows."""
    if turn.state.phase is Phase.BETWEEN:
        finish(turn, turn.pause.again.over, why)


def finish(turn: Turn, over: EndJob, why: str) -> None:
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
        if now >= pause.starts_at:
            turn.start(pause.again.attempt)
        return
    if now < first_deadline(turn):
        return  # runs for each node that is ready, so it must not list all nodes before this
    late = [rank for rank in find_awaited(state) if now >= deadline(pause, rank)]
    if late:
        timeout = f"{state.job.restarts.rejoin_timeout_s:g} s"
        what = f"{name_ranks(state, late)} did not come back within {timeout} (--rejoin-timeout)"
        over = pause.again.over
        if over.first is None or over.first.kind not in (LOST, CUT_OFF):
            rank = late[0]
            over = EndJob(EXIT_NOT_READY, make_lost(rank, what, now), rank, pause.hosts.get(rank, ""))
        finish(turn, over, what)


def name_ranks(state: State, ranks: list[int]) -> str:
    """Return the names of nodes by their ranks."""
    names = ", ".join(map(str, ranks[:NAMED_MAX])) + (" and more" if len(ranks) > NAMED_MAX else "")
    return f"{state.job.member}{'s' if len(ranks) > 1 else ''} {names}"


def describe_wait(state: State, now: float) -> str:
    """Return for which nodes an attempt waits; empty if it waits only for its time."""
    pause, absent = state.pause, find_absent(state)
    if pause is None or not absent:
        return ""
    ends = [deadline(pause, rank) for rank in find_awaited(state)]
    left = f"at most {max(ends, default=now) - now:.0f} s more (--rejoin-timeout)"
    return f"attempt {pause.again.attempt} waits for {name_ranks(state, absent)}, {left}"


def is_complete(turn: Turn) -> bool:
    """Whether all nodes can start; they are asked one by one only when all have said so."""
    return turn.pause.ready == turn.state.job.node_count and not find_absent(turn.state)


def find_absent(state: State) -> list[int]:
    """Return the ranks whose node is not here, not ready, or not heard."""
    nodes = [None if index is None else state.nodes[index] for index in state.holders]
    return [
        rank
        for rank, node in enumerate(nodes)
        if node is None or not node.is_ready or node.link is not Link.OPEN
    ]


def find_awaited(state: State) -> list[int]:
    """Return the absent ranks that have only their time to come back, or to get ready.

    Node 0 has to get ready, however long that takes. A node that is not heard is lost before that.
    """

    def is_awaited(index: int | None) -> bool:
        node = None if index is None else state.nodes[index]
        return index != 0 and (node is None or node.link is Link.OPEN)

    return [rank for rank in find_absent(state) if is_awaited(state.holders[rank])]


def first_deadline(turn: Turn) -> float:
    """Return until when no node is late."""
    pause = turn.pause
    return max(min((pause.until_all, *pause.until.values())), pause.starts_at)


def deadline(pause: Pause, rank: int) -> float:
    """Return until when a rank is waited for."""
    return max(pause.until.get(rank, pause.until_all), pause.starts_at)
