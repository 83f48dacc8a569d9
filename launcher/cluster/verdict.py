"""The verdict on a job of which no node could tell more than an event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.core.messages import Garbled, message, parse
from launcher.failure.arbiter import LOST, PREEMPTED, REFUSED, STALLED, UNMET, UNPROVEN, Event
from launcher.failure.model import Cause, End, ProcessExit, Verdict
from launcher.failure.verdict import make_verdict
from launcher.preemption.events import STATUS_WORDS

WORDS = {
    LOST: "is lost",
    STALLED: "was ended because it hung",
    REFUSED: "could not start its processes",
    PREEMPTED: STATUS_WORDS,
    UNPROVEN: "was ended because NCCL uses another fabric",
    UNMET: "was ended because its processes did not meet",
}


@message
class First:
    """What came first, as node 0 tells of it.

    Attributes:
        event: What it was.
        host: Of its node.
        ago_ns: How long ago it was, when node 0 told of it ...
        wall_ns: ... and the wall clock then, nanoseconds since 1970.
    """

    event: Event
    host: str
    ago_ns: int
    wall_ns: int


def read_own(first: Mapping[str, object], world_size: int | None, started_ns: int) -> Verdict | None:
    """Return the verdict on what came first, as node 0 tells of it; None if it does not say that.

    Args:
        first: `First`, as JSON.
        world_size: Processes in the job.
        started_ns: When this node started, nanoseconds since 1970.
    """
    try:
        event = parse(First, first)
    except Garbled:
        return None
    ended_ns = event.wall_ns - event.ago_ns
    return make_own(event.event, event.host, world_size, started_ns, ended_ns)


def make_own(event: Event, host_name: str, world_size: int | None, started_ns: int, ended_ns: int) -> Verdict:
    """Return the verdict on an event of which no node could tell more.

    Args:
        event: What came first.
        host_name: Of the node where it was.
        world_size: Processes in the job.
        started_ns: When it was started, nanoseconds since 1970.
        ended_ns: When the event was, nanoseconds since 1970.
    """
    facts = event.facts or {}
    called = "" if facts else event.called or f"node {event.node}"
    death = ProcessExit(
        rank=facts.get("rank", 0),
        local_rank=facts.get("local_rank", 0),
        pid=facts.get("pid", 0),
        code=facts.get("code", event.status),
        ended_ns=ended_ns,
        called=called,
    )
    causes: Sequence[Cause] = [event.cause] if event.cause is not None else []
    verdict = make_verdict(
        death,
        [],
        host_name=host_name,
        node_rank=event.node,
        world_size=world_size,
        attempt=0,
        started_ns=started_ns,
        told=None,
        causes=causes,
    )
    if event.kind not in WORDS:
        return verdict
    first = End(**{**vars(verdict.first), "status": WORDS[event.kind]})
    return Verdict(**{**vars(verdict), "first": first})
