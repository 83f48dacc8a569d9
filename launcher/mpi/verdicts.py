"""A verdict on its way from the node of a rank to the head: as a JSON object, and back.

What arrives came from the network: every text is made safe once more, every number is a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any

from launcher.core.redact import printable, redact
from launcher.failure.model import Cause, End, Verdict
from launcher.mpi.wire import NUMBER_BITS

Kinds = Mapping[str, tuple[type, ...]]

END: Kinds = {
    **dict.fromkeys(("rank", "local_rank", "pid", "code", "after_ns"), (int,)),
    **dict.fromkeys(("status", "called"), (str,)),
}
CAUSE: Kinds = {
    **dict.fromkeys(("code", "what", "fix"), (str,)),
    "retryable": (bool, NoneType),
    "consequence": (bool,),
}
VERDICT: Kinds = {
    **dict.fromkeys(("ended_ns", "started_ns", "attempt"), (int,)),
    **dict.fromkeys(("node_rank", "world_size"), (int, NoneType)),
    **dict.fromkeys(("host_name", "exception", "note"), (str,)),
    **dict.fromkeys(("told", "traceback_from"), (str, NoneType)),
    "retryable": (bool, NoneType),
}
LISTS = ("traceback", "stderr", "leftovers")


def render_record(verdict: Verdict) -> dict[str, object]:
    """Return a verdict as what JSON can hold; how other processes ended is not on this node to say."""
    record = dict(vars(verdict))
    record["first"] = dict(vars(verdict.first))
    record["causes"] = [dict(vars(cause)) for cause in verdict.causes]
    record["others"] = []
    return record


def parse_record(record: Mapping[str, object]) -> Verdict:
    """Return the verdict that `render_record` has rendered.

    Raises:
        KeyError: Something is missing.
        TypeError: Something is of another kind.
        ValueError: A number that is none of ours.
    """
    values = _read(record, VERDICT)
    for name in LISTS:
        values[name] = tuple(_read_text(line) for line in _read_list(record, name))
    first = End(**_read(record["first"], END))
    causes = tuple(parse_cause(cause) for cause in _read_list(record, "causes"))
    return Verdict(first=first, causes=causes, others=(), **values)


def parse_cause(cause: object) -> Cause:
    """Return a cause.

    Raises:
        KeyError: Something is missing.
        TypeError: Something is of another kind.
        ValueError: A number that is none of ours.
    """
    return Cause(**_read(cause, CAUSE))


def parse_ends(ends: object) -> tuple[End, ...]:
    """Return how other processes of a node ended.

    Raises:
        KeyError: Something is missing.
        TypeError: Something is of another kind.
        ValueError: A number that is none of ours.
    """
    if not isinstance(ends, (list, tuple)):
        raise TypeError(f"others is a {type(ends).__name__}")
    return tuple(End(**_read(end, END)) for end in ends)


def _read(record: object, kinds: Kinds) -> dict[str, Any]:
    """Return the values of these names, each of a kind that it may be."""
    if not isinstance(record, Mapping):
        raise TypeError(f"a {type(record).__name__}, where an object was expected")
    found = {}
    for name, allowed in kinds.items():
        value = record[name]
        if type(value) not in allowed:  # True is an int to isinstance
            raise TypeError(f"{name} is a {type(value).__name__}")
        if isinstance(value, int) and abs(value) >> NUMBER_BITS:
            raise ValueError(f"{name} is too large")
        found[name] = _read_text(value) if isinstance(value, str) else value
    return found


def _read_list(record: Mapping[str, object], name: str) -> list[object]:
    value = record[name]
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} is a {type(value).__name__}")
    return list(value)


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__}, where a text was expected")
    return printable(redact(value))
