"""The roll call: lets launchers in as nodes or spare ones, or sends them away, in every phase of a job."""

from __future__ import annotations

from launcher.core.errors import EXIT_NOT_READY, EXIT_UNTRUSTED
from launcher.core.frozen import replace
from launcher.identity.seats import find_rank
from launcher.job import between
from launcher.job.attempt import lose
from launcher.job.commands import Admit, Busy, Over, Start, To
from launcher.job.state import Link, Node, Phase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.job.events import Joined, Ready, Received
    from launcher.job.turn import Turn

NEW_JOB = "node 0 was started again, and begins a new job"


def join(turn: Turn, event: Joined) -> None:
    """Let a launcher in. Refuse the job if it does not fit, or is a second one with its index."""
    state, known = turn.state, turn.find(event.node)
    if event.begun:
        turn.dismiss(event.session, NEW_JOB)
    elif event.problem or not 0 <= event.node < len(state.nodes):
        refuse(turn, event.problem or f"there is no node {event.node} in this job", EXIT_UNTRUSTED)
        turn.send(To(event.session, turn.state.over or Over(EXIT_UNTRUSTED)))
    elif known is not None and known.session == event.session:
        let_back(turn, event.node, known)
    elif known is not None and known.link is Link.OPEN and known.rank is not None:
        refuse(turn, f"two launchers are node {event.node}", EXIT_UNTRUSTED)
        turn.send(To(event.session, turn.state.over or Over(EXIT_UNTRUSTED)))
    else:
        let_in(turn, event.node, event.session)


def join_running(turn: Turn, event: Joined) -> None:
    """Let a node back in, or a spare one in. Send others away; a successor shows that its node is lost."""
    known, state = turn.find(event.node), turn.state
    if known is not None and known.session == event.session:
        let_back(turn, event.node, known)
    elif event.problem or not 0 < event.node < len(state.nodes):
        turn.dismiss(event.session, event.problem or f"there is no node {event.node} in this job")
    elif event.begun and known is None:
        turn.dismiss(event.session)  # it was lost, and knows only an old attempt
    elif rank_of(turn, event.node) is None and (known is None or known.link is Link.CLOSED):
        let_in(turn, event.node, event.session)  # a spare node
    else:
        if known is not None and known.link is Link.CLOSED and known.ended is None and not known.is_lost:
            lose(turn, event.node, known.since, "a new launcher has called in its place")
        turn.send(Busy(event.session))


def join_between(turn: Turn, event: Joined) -> None:
    """Let a launcher in whose place is empty, or whose predecessor has no connection. Send others away."""
    known, state = turn.find(event.node), turn.state
    if known is not None and known.session == event.session:
        let_back(turn, event.node, known)
        between.wait_for(turn, event.node)
        return
    rank = rank_of(turn, event.node)
    if event.begun and (known is not None or rank is None):
        turn.dismiss(event.session)
    elif event.problem or not 0 < event.node < len(state.nodes):
        turn.dismiss(event.session, event.problem or f"there is no node {event.node} in this job")
    elif known is not None and known.link is not Link.CLOSED:
        turn.send(Busy(event.session))
    else:
        if known is not None:
            between.drop(turn, event.node)  # its processes may still end
        let_in(turn, event.node, event.session, has_part=event.attempt == turn.attempt.number)
        between.wait_for(turn, event.node)


def join_over(turn: Turn, event: Joined) -> None:
    """Send it how the job ended."""
    known = turn.find(event.node)
    if known is not None and known.session == event.session:
        let_back(turn, event.node, known)
    elif turn.state.over is not None:
        turn.send(To(event.session, turn.state.over))


def rank_of(turn: Turn, index: int) -> int | None:
    """Return the rank of a launcher that joins with an index; None for a spare node."""
    return find_rank(index, turn.state.job.node_count, turn.state.seats)


def let_in(turn: Turn, index: int, session: str, *, has_part: bool = False) -> None:
    """Let a new launcher in; ``has_part``: it may still have processes of the last attempt."""
    state = turn.state
    node = Node(session, rank_of(turn, index))
    if has_part and state.attempt is not None:
        node = replace(node, part=state.attempt.number)
    turn.put(index, node)
    turn.send(Admit(index, session))
    if state.phase is Phase.BETWEEN:
        turn.send(To(session, turn.pause.again))
        if node.rank is not None and not has_part and not state.job.restarts.health_argv:
            between.set_ready(turn, index)  # it has nothing left of the last attempt


def let_back(turn: Turn, index: int, node: Node) -> None:
    """Let a launcher back in whose connection had ended, and send it what it has missed."""
    turn.put(index, replace(node, link=Link.OPEN, has_exited=False))
    turn.send(Admit(index, node.session))
    state, attempt = turn.state, turn.state.attempt
    has_part = attempt is not None and node.part == attempt.number
    if attempt is not None and has_part:
        order = tuple(holder if holder is not None else -1 for holder in state.holders)
        turn.send(To(node.session, Start(attempt.number, order)))
        if attempt.stop is not None:
            turn.send(To(node.session, attempt.stop))
    for command in (state.pause.again if state.pause is not None else None, state.over):
        if command is not None:
            turn.send(To(node.session, command))


def refuse(turn: Turn, why: str, status: int) -> None:
    """End the job before its start."""
    if turn.state.over is None:
        turn.finish(Over(status, why=why))


def refuse_by_signal(turn: Turn, event: Received) -> None:
    """End the job, because a launcher was asked to end before the start. A spare one just leaves."""
    node = turn.find(event.node)
    if node is not None and node.rank is not None:
        turn.change(is_told=True)
        refuse(turn, f"node {event.node} received signal {event.number} before the start", EXIT_NOT_READY)


def forget(turn: Turn, index: int) -> None:
    """Forget a node that has left again; it will join again, or its successor."""
    turn.put(index, None)


def note_health(turn: Turn, event: Ready) -> None:
    """Note what the health command of a node found; a spare one takes the place of an unhealthy node."""
    turn.change_node(event.node, health=event.unhealthy)
    between.take_unhealthy(turn, event.node, event.unhealthy)


def note_spare_health(turn: Turn, event: Ready) -> None:
    """Note what the health command of a spare node found; no place is given away while the attempt runs."""
    node = turn.find(event.node)
    if node is not None and node.rank is None:
        turn.change_node(event.node, health=event.unhealthy)
        between.take_unhealthy(turn, event.node, event.unhealthy)


def advance(turn: Turn) -> None:
    """Start the job if all nodes are here, or refuse it if they have not come in time."""
    state = turn.state
    if not state.missing:
        nodes = [node for _, node in turn.held()] if state.job.restarts.health_argv else []
        if all(node.health is not None for node in nodes) and not state.unhealthy:
            turn.start(0)
    elif turn.now >= state.began + state.job.roll_call_s:
        missing = [str(rank) for rank, by in enumerate(state.holders) if by is None]
        refuse(turn, f"nodes {', '.join(missing)} are missing", EXIT_NOT_READY)
