"""Translates between the controller's events and outcome and the messages on the channel."""

from __future__ import annotations

import time

from launcher.cluster.messages import First, Over, Refuse
from launcher.core.errors import EXIT_NOT_READY, EnvironmentUntrusted, LauncherError, NotReady, Problem
from launcher.core.frozen import replace
from launcher.core.model import NODE
from launcher.core.redact import printable, redact
from launcher.core.shorten import fit
from launcher.core.wire import Garbled
from launcher.failure.arbiter import (
    CUT_OFF,
    GAVE_UP,
    LEFT,
    LOST,
    MISPLACED,
    ORPHANED,
    PREEMPTED,
    RANK,
    REFUSED,
    STALLED,
    UNMET,
    UNPROVEN,
    Event,
    make_node_lost,
)
from launcher.failure.model import End, ProcessExit, Verdict
from launcher.failure.symptoms import make_cause
from launcher.failure.verdict import make_verdict
from launcher.preemption.events import STATUS_WORDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.cluster.settings import Shape
    from launcher.failure.model import Cause
    from launcher.job import commands
    from launcher.job.events import Failed

NUMBERS = ("rank", "local_rank", "pid", "code")
"""What a node reports of a process."""
OF_NODES = (STALLED, UNPROVEN, LEFT, UNMET, REFUSED, PREEMPTED, GAVE_UP)
"""Kinds of events that are a cause themselves, and that a node can report."""
WORDS = {
    LOST: "is lost",
    CUT_OFF: "was cut off from all other nodes",
    GAVE_UP: "was out of contact",
    STALLED: "was ended because it hung",
    REFUSED: "could not start its processes",
    PREEMPTED: STATUS_WORDS,
    UNPROVEN: "was ended because NCCL uses another fabric",
    UNMET: "was ended because its processes did not meet",
    LEFT: "was ended because its command had ended",
    ORPHANED: "cannot go on",
    MISPLACED: "did not start the requested ranks",
}


def make_over(over: commands.EndJob, why: str = "", known: First | None = None) -> Over | Refuse:
    """Return how the job ends as a message.

    Args:
        over: How it ends.
        why: Why no other attempt follows, for the log.
        known: What came first, as all nodes were told before: what has not changed is reported once.
    """
    if over.refusal is not None:
        return make_refusal(over.refusal)
    first = None
    if over.first is not None:
        event = replace(over.first, node=over.rank)
        is_known = known is not None and known.event == event
        first = (
            known if is_known else First(event, over.host, time.monotonic_ns() - event.at_ns, time.time_ns())
        )
    record = None if over.record is None else fit(over.record)
    return Over(over.status, first, record, over.also, over.why or why, over.leaves, over.is_stopped)


def make_refusal(refusal: commands.Refusal) -> Refuse:
    """Return why a job does not start as a message."""
    code, what, where, fix = (printable(redact(text)) for text in vars(refusal.problem).values())
    return fit(Refuse(refusal.status, refusal.lines, code, what, where, fix))


def read_refusal(refuse: Refuse) -> LauncherError:
    """Return the error that a refusal describes."""
    problem = Problem(refuse.code, refuse.what, refuse.where, refuse.fix)
    return NotReady(problem) if refuse.status == EXIT_NOT_READY else EnvironmentUntrusted(problem)


def read_failure(index: int, place: str, failed: Failed) -> Failed:
    """Return a node's report as the controller takes it: what a node cannot know is ours.

    Args:
        index: Index of the node.
        place: Its place in messages.
        failed: The report.

    Raises:
        Garbled: A node cannot report this kind, e.g. that a node is lost or that node 0 is cut off.
    """
    told = failed.event
    if told.kind not in (RANK, *OF_NODES):
        raise Garbled("a failure of an unknown kind")
    is_of_rank = told.kind == RANK and not told.called
    cause: Cause | None = None
    if told.kind == GAVE_UP:
        cause = make_node_lost(told.what, is_cut_off=True)
    elif told.kind != RANK:
        cause = make_cause(told.kind, what=told.what)
    facts = {name: value for name, value in (told.facts or {}).items() if name in NUMBERS}
    event = replace(
        told,
        node=index,
        at_ns=min(max(told.at_ns, 0), time.monotonic_ns()),
        status=told.status or 1,
        what=told.what if told.kind == GAVE_UP else f"{told.what} on {place}",
        cause=cause,
        facts=facts if is_of_rank else None,
    )
    return replace(failed, node=index, event=event)


def lose_coordinator(shape: Shape) -> tuple[str, Over]:
    """Return the message that node 0 is lost, and how the job ends by that: no other node can decide it."""
    what = f"{shape.member} 0 ({shape.address}) is lost: no contact for {shape.lost_after_s:g} s"
    event = Event(0, LOST, time.monotonic_ns(), EXIT_NOT_READY, what=what, cause=make_node_lost(what))
    first = First(event, shape.address, int(shape.given_up_s * 1e9), time.time_ns())
    return what, Over(EXIT_NOT_READY, first)


def read_verdict(
    over: Over, own: Verdict | None, shape: Shape, started_ns: int, attempt: int = 0
) -> Verdict | None:
    """Return the verdict on the whole job; None if nothing has failed.

    Args:
        over: The coordinator's final message.
        own: The verdict on our own processes, used if the coordinator reports a failure without a verdict.
        shape: The job.
        started_ns: When our processes were started, nanoseconds since 1970.
        attempt: Number of the attempt, 0 for the first.
    """
    verdict = over.record
    if verdict is None and over.first is not None:
        verdict = judge_event(over.first, shape, started_ns, attempt)
    if verdict is None and over.status:
        verdict = own
    return verdict if verdict is None or not over.also else replace(verdict, also=over.also)


def judge_event(first: First, shape: Shape, started_ns: int, attempt: int) -> Verdict:
    """Return a verdict from an event alone, if its node gave none.

    Args:
        first: The event that came first.
        shape: The job.
        started_ns: When our processes were started, nanoseconds since 1970.
        attempt: Number of the attempt, 0 for the first.
    """
    event = first.event
    facts = event.facts or {}
    called = "" if facts else event.called or f"{shape.member} {event.node}"
    exit_ = ProcessExit(
        rank=facts.get("rank", 0),
        local_rank=facts.get("local_rank", 0),
        pid=facts.get("pid", 0),
        code=facts.get("code", event.status),
        ended_ns=max(first.wall_ns - first.ago_ns, started_ns),
        called=called,
    )
    verdict = make_verdict(
        exit_,
        [],
        host_name=first.host,
        node_rank=event.node if shape.member == NODE else None,
        world_size=shape.world_size,
        attempt=attempt,
        started_ns=started_ns,
        told=None,
        causes=[event.cause] if event.cause is not None else [],
    )
    if event.kind not in WORDS:
        return verdict
    return replace(verdict, first=End(**{**vars(verdict.first), "status": WORDS[event.kind]}))
