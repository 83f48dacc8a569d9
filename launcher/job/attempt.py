"""An attempt: what has failed, what that stops, and what follows when all nodes have ended."""

from __future__ import annotations

from launcher.core.errors import EXIT_NOT_READY
from launcher.core.frozen import replace
from launcher.failure.arbiter import (
    CUT_OFF,
    GAVE_UP,
    LOST,
    NODE_LOST,
    PREEMPTED,
    RANK,
    REFUSED,
    STARTER,
    Event,
    find_also,
    find_first_event,
    is_new,
    make_node_lost,
)
from launcher.job import between
from launcher.job.commands import Blame, EndJob, News, Stop
from launcher.job.exits import SETTLE_S as CAUSE_S
from launcher.job.settings import ALSO_MAX, QUIET_S, SETTLE_S
from launcher.job.state import NEVER, Link, Phase
from launcher.recovery.policy import Decision, FailedAttempt, decide, describe_attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.failure.model import Verdict
    from launcher.job.events import Exited, Failed, Received, Unable
    from launcher.job.state import Node
    from launcher.job.turn import Turn

FAILED_MAX = 1000
"""Number of failed attempts that are remembered."""
VETOES = {
    PREEMPTED: "a node is being reclaimed",
    REFUSED: "a node could not start its processes",
    CUT_OFF: between.ALONE,
}
"""Kinds of events after which the nodes cannot start together again, and why."""
TAKEN_BACK = "the platform is reclaiming this node"
SURVIVES = "a process of this attempt survives SIGKILL, and two attempts must not run at once"


def fail(turn: Turn, event: Failed) -> None:
    """Stop all nodes. After a failure that is only a consequence, first wait 2 seconds for its cause."""
    node = turn.find(event.node)
    if event.attempt == turn.attempt.number and node is not None and node.rank is not None:
        take(turn, event.event, event.left_ms)


def take(turn: Turn, event: Event, left_ms: int | None = None) -> None:
    """Take an event that ends the attempt; ``left_ms``: see `Failed`."""
    attempt = turn.attempt
    if not is_new(event, attempt.events):
        return
    first_at = turn.now if attempt.first_at is None else attempt.first_at
    turn.change_attempt(events=(*attempt.events, event), first_at=first_at)
    if event.kind == GAVE_UP:
        turn.change_node(event.node, has_left=True)
    if event.follows and attempt.stop is None:
        turn.change_attempt(held=attempt.held or (turn.now + CAUSE_S, event))
    elif not event.asked:
        begin_stop(turn, event.what, event.node, left_ms=left_ms)


def begin_stop(turn: Turn, why: str, by: int, number: int | None = None, left_ms: int | None = None) -> None:
    """Stop all nodes: the others would wait forever for what has ended. Some users want them to go on."""
    attempt, job = turn.attempt, turn.state.job
    if job.keep_going:
        turn.change_attempt(held=None)
        turn.send(News(why, turn.rank_of(by)))
    elif attempt.stop is None:
        stop = Stop(attempt.number, why, turn.rank_of(by), number, left_ms)
        decide_by = turn.now + job.grace_s + job.lost_after_s + job.end_s
        turn.change_attempt(held=None, stop=stop, decide_by=decide_by)
        turn.change(phase=Phase.STOPPING)
        turn.send(stop)


def stop(turn: Turn, event: Received) -> None:
    """Stop all nodes with this signal; no attempt follows."""
    node = turn.find(event.node)
    if node is not None and node.rank is not None:
        turn.change(is_told=True)
        begin_stop(turn, f"{turn.name(event.node)} received {event.name}", event.node, event.number)


def note_exit(turn: Turn, event: Exited) -> None:
    """Note how the processes of a node ended. A failure stops the others, if nothing has yet."""
    node, attempt = turn.find(event.node), turn.attempt
    if node is None or event.attempt != attempt.number or node.part != attempt.number:
        return
    if event.progressed is not None:
        turn.change_attempt(progressed=attempt.progressed or event.progressed)
    if node.ended is None:
        is_open = not node.is_lost
        record, held = event.record, event.is_held
        turn.put(event.node, replace(node, ended=event.status, record=record, is_held=held))
        turn.change_attempt(open=turn.attempt.open - is_open)
    if event.status and turn.attempt.held is None and not turn.state.job.keep_going:
        # It has stopped its processes itself: one that stood still kills what it has started too late
        what = f"{turn.state.job.member} {node.rank} has ended with exit code {event.status}"
        begin_stop(turn, what, event.node)


def note_late_exit(turn: Turn, event: Exited) -> None:
    """Note that nothing of the last attempt is still running on the node."""
    node = turn.find(event.node)
    if node is not None and event.attempt == turn.attempt.number == node.part and node.ended is None:
        turn.put(event.node, replace(node, ended=event.status, is_held=event.is_held))


def take_back_in(turn: Turn, index: int) -> None:
    """Forget how a node was lost, or has ended, because a new launcher has its place in this attempt."""
    node, attempt = turn.find(index), turn.attempt
    if node is not None:
        was_open = node.ended is None and not node.is_lost
        events = tuple(event for event in attempt.events if event.node != index)
        turn.change_attempt(open=attempt.open + (not was_open), events=events)


def give_up(turn: Turn, event: Unable) -> None:
    """End the job, because this attempt could not start, with the result of the last attempt."""
    turn.finish(replace(turn.attempt.after or EndJob(EXIT_NOT_READY), decision=Decision(False, event.why)))


def advance(turn: Turn) -> None:
    """Decide what can be decided by now."""
    attempt, now = turn.attempt, turn.now
    if attempt.held is not None and now >= attempt.held[0]:
        begin_stop(turn, attempt.held[1].what, attempt.held[1].node)
    if attempt.open and (attempt.decide_by is None or now < attempt.decide_by):
        return
    if is_settling(turn):
        return
    conclude(turn)


def is_settling(turn: Turn) -> bool:
    """Whether a node that has not reported its end, which comes last, may have an earlier event to report."""
    attempt = turn.attempt
    has_all = all(node.ended is not None for _, node in turn.held())
    return not has_all and attempt.first_at is not None and turn.now < attempt.first_at + SETTLE_S


def conclude(turn: Turn) -> None:
    """End the job, or begin to wait for the next attempt."""
    over = judge(turn)
    if over.first is None and not over.status:
        turn.finish(over)
        return
    blame_lost(turn, over)
    failed = (*turn.state.failed, describe(turn, over))[-FAILED_MAX:]
    turn.change(failed=failed)
    veto, job = find_veto(turn, over), turn.state.job
    decision = decide(job.restarts, failed, draw(f"{job.seed}-{len(failed)}"))
    if veto and decision.restarts:
        decision = Decision(False, veto)
        is_taken = any(event.kind == PREEMPTED for event in turn.attempt.events)
        over = replace(
            over, status=EXIT_NOT_READY if is_taken else over.status, is_stopped=turn.state.is_told
        )
    if decision.restarts:
        between.begin(turn, over, decision)
    else:
        turn.finish(replace(over, decision=decision if job.restarts.most else None))


def blame_lost(turn: Turn, over: EndJob) -> None:
    """Note the nodes that were lost beside what failed first, unless node 0 could not hear them."""
    events, first = turn.attempt.events, over.first
    if not turn.state.job.restarts.most:
        return  # nor is the attempt itself remembered
    if first is None or first.kind in (GAVE_UP, CUT_OFF) or any(event.kind == CUT_OFF for event in events):
        return
    for event in events:
        if event.kind == LOST and event.node != first.node:
            turn.send(Blame(event.node, turn.rank_of(event.node), NODE_LOST, event.what))


def draw(seed: str) -> float:
    """Return a number in 0..1 that is always the same for a seed."""
    import random

    return random.Random(seed).random()  # noqa: S311 - only for jitter


def judge(turn: Turn) -> EndJob:
    """Return how the attempt has ended."""
    attempt, nodes = turn.attempt, dict(turn.held())
    records: dict[int, Verdict] = {
        index: node.record for index, node in nodes.items() if node.record is not None
    }
    first = find_first_event(attempt.events, records)
    if first is None:
        statuses = [node.ended for node in nodes.values() if node.ended]
        is_open = any(node.ended is None for node in nodes.values())
        return EndJob(statuses[0] if statuses else EXIT_NOT_READY if is_open else 0)
    if first.kind == LOST and was_cut_off(turn, first):
        first = between.make_cut_off(turn, first.at_ns / 1e9)
    also = [describe_other(event, first, same) for event, same in find_also(first, attempt.events, records)]
    record = records.get(first.node) if first.kind in (RANK, STARTER) else None
    if record is not None and first.facts is not None and record.first.pid != first.facts.get("pid"):
        record = None
    if first.kind in (CUT_OFF, GAVE_UP):
        also = []
    if first.kind == GAVE_UP:
        first = blame_for_silence(turn, first)
    node = turn.find(first.node)
    host = "" if node is None else node.host
    return EndJob(first.status, first, turn.rank_of(first.node), host, record, tuple(also[:ALSO_MAX]))


def was_cut_off(turn: Turn, first: Event) -> bool:
    """Whether node 0 was cut off when it lost the first node, see `between.was_cut_off`.

    Also if all others have given it up: some may have been heard again just to say that.
    """
    lost = {index: node for index, node in turn.held() if node.is_lost}
    if any(node.quiet == NEVER for node in lost.values()):
        return False
    gave_up_ns = [event.at_ns for event in turn.attempt.events if event.kind == GAVE_UP]
    latest_ns = first.at_ns + int((turn.state.job.given_up_s + 2 * QUIET_S) * 1e9)
    is_of_many = turn.state.job.node_count > 2
    if is_of_many and gave_up_ns and max(gave_up_ns) <= latest_ns and have_left(turn):
        return True
    return between.was_cut_off(turn, lost, [find_quiet(turn, node)[0] for node in lost.values()])


def find_quiet(turn: Turn, node: Node) -> tuple[float, float]:
    """Return from when to when a node could not be heard, or `NEVER`."""
    is_known = node.link is Link.OPEN or node.is_lost
    return node.quiet if is_known else node.find_quiet(turn.now)


def have_left(turn: Turn) -> bool:
    """Whether all other nodes have given node 0 up, or are lost."""
    return all(node.has_left or node.is_lost for index, node in turn.held() if index)


def describe_other(event: Event, first: Event, same: bool) -> str:
    """Return what else has failed, and when; ``same``: perhaps at the same time as the first."""
    from launcher.failure.text import say_apart

    return f"{event.what}, {'at the same time' if same else say_apart(event.at_ns - first.at_ns)}"


def blame_for_silence(turn: Turn, first: Event) -> Event:
    """Return an event that blames node 0, because nodes have given it up; or them, if others have not."""
    job, nodes = turn.state.job, dict(turn.held())
    gave_up = {event.node for event in turn.attempt.events if event.kind == GAVE_UP}
    many = "s" if len(gave_up) > 1 else ""
    names = f"{job.member}{many} {', '.join(str(nodes[one].rank) for one in sorted(gave_up) if one in nodes)}"
    what = (
        f"{names} had no contact with {turn.name(0)} for {job.lost_after_s:g} s: "
        "the network between them was cut, or one of them was paused"
    )
    others = [node for index, node in nodes.items() if index and not (node.has_left or node.is_lost)]
    away = {index: node for index, node in nodes.items() if index in gave_up or node.is_lost}
    if between.was_cut_off(turn, away, [find_quiet(turn, node)[0] for node in away.values()]):
        others = []
    if others:
        what += f"; {turn.name(0)} was in contact with the other {job.member}s"
    cause = make_node_lost(what, is_cut_off=True)
    return replace(first, node=first.node if others else 0, what=what, cause=cause)


def describe(turn: Turn, over: EndJob) -> FailedAttempt:
    """Return the attempt for the policy."""
    attempt, first = turn.attempt, over.first
    started_ns, ended_ns = int(attempt.began * 1e9), int(turn.now * 1e9)
    failed = describe_attempt(
        over.record, attempt.number, over.status, started_ns, ended_ns, attempt.progressed
    )
    if first is None:
        return failed
    failed = replace(failed, ended_ns=max(started_ns, first.at_ns), node=over.rank)
    if over.record is not None or first.cause is None:
        return failed
    cause = first.cause
    return replace(failed, what=first.what, cause=cause.code, detail=cause.what, retryable=cause.retryable)


def find_veto(turn: Turn, over: EndJob) -> str:
    """Return why no attempt can follow, whatever the user allows; empty for no reason."""
    kinds = {event.kind for event in turn.attempt.events}
    if turn.state.is_told:
        return between.TOLD if turn.state.job.node_count == 1 else "the job received a signal to stop"
    if PREEMPTED in kinds:  # also if something else has failed before
        return VETOES[PREEMPTED] if turn.state.job.node_count > 1 else TAKEN_BACK
    if GAVE_UP in kinds and have_left(turn):
        return VETOES[CUT_OFF]  # it was paused: they have given it up and do not come back
    if turn.state.job.node_count == 1 and any(node.is_held for _, node in turn.held()):
        return SURVIVES
    if over.first is None or over.first.kind not in kinds:
        return ""  # node 0 was cut off, and nodes may come back
    return VETOES.get(over.first.kind, "")
