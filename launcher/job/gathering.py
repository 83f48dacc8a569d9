"""The roll call: lets launchers in as nodes or spare ones, or sends them away, in every phase of a job."""

from __future__ import annotations

from launcher.core.errors import EXIT_NOT_READY, EXIT_UNTRUSTED, make_problem
from launcher.core.frozen import replace
from launcher.core.model import NODE
from launcher.identity.topology import find_rank
from launcher.job import between, lost_nodes
from launcher.job.attempt import take_back_in
from launcher.job.commands import Admit, EndJob, HangUp, Print, Probe, Refusal, StartAttempt, To, TurnAway
from launcher.job.refusals import nodes_missing
from launcher.job.settings import HURRY_S, LATE_COMERS_S, LEAVE_S
from launcher.job.state import Link, Node, Phase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.job.events import Disconnected, Joined, Killed, Probed, Ready, Received, Refused
    from launcher.job.turn import Turn

NEW_JOB = "node 0 was started again, and begins a new job"


def join(turn: Turn, event: Joined) -> None:
    """Admit a launcher. Refuse the job if it does not match, or if another launcher has its index."""
    known, is_of_job = turn.find(event.node), 0 <= event.node < len(turn.state.nodes)
    if event.begun:
        turn.dismiss(event.session, NEW_JOB)
    elif known is not None and known.session == event.session:
        let_back(turn, event.node, known)
    elif event.refusal is not None and (is_of_job and rank_of(turn, event.node) is None):
        turn.reject(event.session, event.refusal)  # a spare one
    elif event.refusal is not None:
        refuse(turn, event.refusal, event.session)
    elif known is not None and known.link is Link.OPEN and known.rank is None:
        turn.send(TurnAway(event.session))
    elif known is not None and known.link is Link.OPEN:
        problem = make_problem(
            "two-nodes-one-rank" if turn.state.job.member == NODE else "two-processes-one-rank",
            rank=event.node,
            one=known.described,
            other=event.described,
        )
        refuse(turn, Refusal(EXIT_UNTRUSTED, problem), event.session)
    else:
        let_in(turn, event)


def join_running(turn: Turn, event: Joined) -> None:
    """Admit a spare node, or a node that reconnects. Reject others. A successor proves its node is lost."""
    known, state = turn.find(event.node), turn.state
    is_of_job = 0 < event.node < len(state.nodes)
    if known is not None and known.session == event.session and not (state.job.serves and known.is_lost):
        let_back(turn, event.node, known)
    elif not is_of_job:
        turn.send(TurnAway(event.session))
    elif event.begun and known is None:
        turn.dismiss(event.session)  # it was lost, and knows only an old attempt
    elif rank_of(turn, event.node) is None and (known is None or known.link is Link.CLOSED):
        let_in_if_fit(turn, event)  # a spare node
    elif state.job.keep_going and known is not None and (known.link is Link.CLOSED or known.is_lost):
        let_in_if_fit(turn, event)
    else:
        is_fit = event.refusal is None and state.job.restarts.most
        if is_fit and known is not None and known.link is Link.CLOSED:
            lost_nodes.lose(turn, event.node, known.since, is_replaced=True)
        turn.send(TurnAway(event.session))


def join_between(turn: Turn, event: Joined) -> None:
    """Admit a launcher if its place is empty, or if its predecessor has no connection. Reject others."""
    known, state = turn.find(event.node), turn.state
    if known is not None and known.session == event.session:
        let_back(turn, event.node, known)
        between.wait_for(turn, event.node)
        return
    rank = rank_of(turn, event.node)
    if event.begun and (known is not None or rank is None):
        turn.dismiss(event.session)
    elif not 0 < event.node < len(state.nodes) or (known is not None and known.link is not Link.CLOSED):
        turn.send(TurnAway(event.session))
    elif event.refusal is not None:
        turn.reject(event.session, event.refusal)
    else:
        if known is not None:
            between.drop(turn, event.node)  # its processes may still end
        let_in(turn, event)
        between.wait_for(turn, event.node)


def join_over(turn: Turn, event: Joined) -> None:
    """Send the launcher how the job ended."""
    known = turn.find(event.node)
    if known is not None and known.session == event.session:
        let_back(turn, event.node, known)
    elif turn.state.over is not None:
        turn.send(To(event.session, turn.state.over))


def rank_of(turn: Turn, index: int) -> int | None:
    """Return the rank of a launcher that joins with an index; None for a spare node."""
    return find_rank(index, turn.state.job.node_count, turn.state.seats)


def let_in_if_fit(turn: Turn, event: Joined) -> None:
    """Admit a launcher, or say why it cannot join."""
    if event.refusal is not None:
        turn.reject(event.session, event.refusal)
    else:
        let_in(turn, event)


def let_in(turn: Turn, event: Joined) -> None:
    """Let a new launcher in. It may still have processes of the last attempt, if it has run that."""
    state, index, attempt = turn.state, event.node, turn.state.attempt
    node = Node(event.session, rank_of(turn, index), event.host, event.described)
    is_between = state.phase is Phase.BETWEEN
    has_part = is_between and attempt is not None and event.attempt == attempt.number
    if has_part and attempt is not None:
        node = replace(node, part=attempt.number)
    if state.phase in (Phase.RUNNING, Phase.STOPPING) and node.rank is not None and attempt is not None:
        node = replace(node, part=attempt.number)
        take_back_in(turn, index)
    turn.put(index, node)
    if index in state.left:
        turn.change(left={one: how for one, how in state.left.items() if one != index})
    turn.send(Admit(index, event.session))
    name = turn.name(index)
    if node.rank is None:
        turn.send(Print(f"{name} is here as a spare {state.job.member}", "spare-joined"))
    elif attempt is not None:
        turn.send(Print(f"{name} is back", "node-back"))
    catch_up(turn, node)
    if is_between:
        closed = {one: until for one, until in turn.pause.closed.items() if one != index}
        turn.change_pause(not_before=max(turn.pause.not_before, event.free_at), closed=closed)
    has_checks = state.job.restarts.health_argv or state.job.serves
    if is_between and node.rank is not None and not has_part and not has_checks:
        between.set_ready(turn, index)  # it has nothing left of the last attempt


def let_back(turn: Turn, index: int, node: Node) -> None:
    """Let a launcher back in whose connection had ended, and send it what it has missed."""
    quiet = node.quiet if node.link is Link.OPEN or node.is_lost else node.find_quiet(turn.now)
    turn.put(index, replace(node, link=Link.OPEN, has_exited=False, quiet=quiet))
    turn.send(Admit(index, node.session))
    catch_up(turn, node)


def catch_up(turn: Turn, node: Node) -> None:
    """Send a launcher that was let in what it has missed."""
    state, attempt = turn.state, turn.state.attempt
    is_running = state.phase in (Phase.RUNNING, Phase.STOPPING)
    if attempt is not None and (node.part == attempt.number or (node.rank is None and is_running)):
        order = tuple(holder if holder is not None else -1 for holder in state.holders)
        turn.send(To(node.session, StartAttempt(attempt.number, order)))
        if attempt.stop is not None:
            turn.send(To(node.session, attempt.stop))
    for command in (state.pause.again if state.pause is not None else None, state.over):
        if command is not None:
            turn.send(To(node.session, command))


def refuse(turn: Turn, refusal: Refusal, session: str = "", leave_s: float = LEAVE_S) -> None:
    """End the job before its start; ``session``: that of a launcher that was not let in, and hears it too."""
    over = EndJob(refusal.status, refusal=refusal)
    turn.finish(over, leave_s)
    if session:
        turn.send(To(session, over))


def refuse_as(turn: Turn, event: Refused) -> None:
    """End the job before its start, with the status of another launcher that is also node 0."""
    refuse(turn, event.refusal)


def refuse_by_signal(turn: Turn, event: Received) -> None:
    """End the job, because a launcher received a signal before the start. A spare node just leaves."""
    node = turn.find(event.node)
    if node is not None and node.rank is not None:
        turn.change(is_told=True)
        problem = make_problem("roll-call-ended", node=turn.name(event.node), signal=event.name)
        refuse(turn, Refusal(EXIT_NOT_READY, problem), leave_s=HURRY_S)


def refuse_late(turn: Turn, event: Probed) -> None:
    """End the job, because nodes have not joined in time."""
    state = turn.state
    if state.is_probing and state.missing:
        job = state.job
        counts = state.missing, job.node_count, job.roll_call_s
        problem = nodes_missing(job.member, *counts, event.described, len(state.left), event.or_else)
        refuse(turn, Refusal(EXIT_NOT_READY, problem, event.lines), leave_s=LATE_COMERS_S)


def forget(turn: Turn, index: int, how: str) -> None:
    """Forget a node that has left again; it will join again, or its successor."""
    turn.put(index, None)
    turn.change(left={**turn.state.left, index: how})


def note_health(turn: Turn, event: Ready) -> None:
    """Note the result of a node's health command. A spare node replaces an unhealthy node."""
    turn.change_node(event.node, health=event.unhealthy)
    between.take_unhealthy(turn, event.node, event.unhealthy)


def note_spare_health(turn: Turn, event: Ready) -> None:
    """Note the result of a spare node's health command. It replaces no node while the attempt runs."""
    node = turn.find(event.node)
    if node is not None and node.rank is None:
        note_health(turn, event)


def advance(turn: Turn) -> None:
    """Start the job if all nodes are here, or refuse it if they have not come in time."""
    if turn.state.unhealthy:
        between.fill(turn)
    if turn.state.is_probing and not turn.state.missing:
        turn.change(is_probing=False)  # the answer is about nodes that have joined meanwhile
    state, job = turn.state, turn.state.job
    if not state.missing:
        nodes = [node for _, node in turn.held()] if job.restarts.health_argv else []
        if all(node.health is not None for node in nodes) and not state.unhealthy:
            if len(state.nodes) > 1:
                here = f"all {job.node_count} {job.member}s{turn.count_spares()} are here"
                turn.send(Print(f"{here}, after {turn.now - state.began:.1f} s", "roll-call"))
            turn.start(0)
    elif turn.now >= state.began + job.roll_call_s and not state.is_probing:
        turn.change(is_probing=True)
        turn.send(Probe())


def close(turn: Turn, event: Disconnected) -> None:
    """Forget the node: it or its successor will join again. Wait for a spare node to come back."""
    node = turn.find(event.node)
    if node is not None and node.rank is None:
        lost_nodes.close(turn, event)
    elif node is not None:
        forget(turn, event.node, f"its connection has ended ({event.why})")


def kill(turn: Turn, event: Killed) -> None:
    """Forget the node: its successor will join. A spare node is lost, as in every other phase."""
    node = turn.find(event.node)
    if node is not None and node.rank is not None:
        forget(turn, event.node, between.KILLED)
    else:
        lost_nodes.kill(turn, event)


def forget_late(turn: Turn, late: Sequence[tuple[int, Node]]) -> None:
    """Forget nodes that have left again; they or others can join in their places."""
    for index, node in late:
        how = between.describe_silence(node)
        turn.send(Print(f"{turn.name(index)} has left again: {how}", "node-left"))
        turn.send(HangUp(node.session))
        forget(turn, index, how)
