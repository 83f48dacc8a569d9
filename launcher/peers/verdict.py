"""The verdict on a whole job as it travels: made to fit into a frame, and back; or from an event alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from launcher.core.redact import printable, redact
from launcher.failure.arbiter import LOST, PREEMPTED, REFUSED, STALLED, UNMET, UNPROVEN, Event
from launcher.failure.model import Cause, End, ProcessExit, Verdict
from launcher.failure.verdict import make_verdict
from launcher.mpi.verdicts import parse_cause, parse_ends, parse_record, render_record
from launcher.mpi.wire import NUMBER_BITS
from launcher.preemption.events import STATUS_WORDS

ROOM_BYTES = 48 << 10
"""Of a frame of 64 KiB; the rest is for what stands around a verdict."""
STEPS = ((64, 400), (40, 300), (20, 200), (10, 150), (5, 100), (1, 40))
"""How many items lists keep, and how many characters texts, until the whole fits."""
LISTS_OF_TEXT = ("traceback", "stderr", "leftovers")
WORDS = {
    LOST: "is lost",
    STALLED: "was ended because it hung",
    REFUSED: "could not start its processes",
    PREEMPTED: STATUS_WORDS,
    UNPROVEN: "was ended because NCCL uses another fabric",
    UNMET: "was ended because its processes did not meet",
}


def render(verdict: Verdict) -> dict[str, object]:
    """Return a verdict as what JSON can hold in `ROOM_BYTES`, with how the others of its node ended."""
    record = render_record(verdict)
    record["others"] = [dict(vars(end)) for end in verdict.others]
    for items, characters in STEPS:
        record = {key: _shorten(key, value, items, characters) for key, value in record.items()}
        if len(json.dumps(record)) <= ROOM_BYTES:
            break
    return record


def _shorten(key: str, value: object, items: int, characters: int) -> object:
    """Return a value with at most so many items (the last of what was written), each at most so long."""
    if isinstance(value, str):
        return value[:characters]
    if isinstance(value, (list, tuple)):
        kept = value[-items:] if key in LISTS_OF_TEXT else value[:items]
        return [_shorten("", item, items, characters) for item in kept]
    if isinstance(value, dict):
        return {name: _shorten("", item, items, characters) for name, item in value.items()}
    return value


def parse(record: object) -> Verdict | None:
    """Return the verdict that `render` has rendered; None if it is none."""
    if not isinstance(record, Mapping):
        return None
    try:
        verdict = parse_record(record)
        return Verdict(**{**vars(verdict), "others": parse_ends(record.get("others", ()))})
    except (KeyError, TypeError, ValueError):
        return None


def read_own(first: Mapping[str, object], world_size: int | None, started_ns: int) -> Verdict | None:
    """Return the verdict on what came first, as node 0 tells of it; None if it does not say that.

    Args:
        first: An `Event` as JSON, with the name of its node, and when it was by the wall clock.
        world_size: Processes in the job.
        started_ns: When this node started, nanoseconds since 1970.
    """
    try:
        cause, facts = first["cause"], first["facts"]
        event = Event(
            node=_number(first["node"]),
            kind=str(first["kind"]),
            at_ns=_number(first["at_ns"]),
            status=_number(first["status"]),
            what=_text(first["what"]),
            cause=None if cause is None else parse_cause(cause),
            facts={name: _number(value) for name, value in facts.items()}
            if isinstance(facts, Mapping)
            else None,
            called=_text(first["called"]),
        )
        ended_ns = _number(first["wall_ns"]) - _number(first["ago_ns"])
        return make_own(event, _text(first["host"]), world_size, started_ns, ended_ns)
    except (KeyError, TypeError, ValueError):
        return None


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >> NUMBER_BITS:
        raise TypeError("no number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return printable(redact(value))


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
