"""The shortener of JSON objects: for messages to other nodes and Kubernetes' termination log.

An object keeps its keys. Texts lose their end, or lines in their middle; lists lose items. A list of texts
says how many it has lost.
"""

from __future__ import annotations

import json

from launcher.core.wire import parse, render

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    T = TypeVar("T")

ROOM_BYTES = 1 << 17
"""Bytes of a message as JSON; a frame has eight times as many, for stacks, and for what is put around it."""
SIZES = ((64, 400), (40, 300), (20, 200), (10, 150), (5, 100), (2, 100), (1, 40))
"""Limits of (items of a list or lines of a text, characters), tried in order until it fits."""
KEEP_LAST = ("traceback", "stderr", "leftovers", "evidence", "groups")
"""Lists whose last items say most; the ranks for which others wait are the last groups."""


def fit(message: T, limit_bytes: int = ROOM_BYTES) -> T:
    """Return a message that is shortened to at most so many bytes of JSON, or as far as possible."""
    whole = render(message)
    less = shorten(whole, lambda less: len(json.dumps(less)) <= limit_bytes)
    return message if less is whole else parse(type(message), less)


def fit_all(messages: Sequence[T], limit_bytes: int = 2 * ROOM_BYTES) -> tuple[T, ...]:
    """Return messages that are shortened to at most so many bytes of JSON together, with equal shares."""
    return tuple(fit(message, limit_bytes // len(messages)) for message in messages)


def shorten(record: dict[str, object], fits: Callable[[dict[str, object]], bool]) -> dict[str, object]:
    """Return a JSON object as it is if it fits; else shortened until it does, or as far as possible."""
    less = record
    for items, characters in () if fits(record) else SIZES:
        less = {key: _less(key, value, items, characters) for key, value in record.items()}
        if fits(less):
            break
    return less


def shorten_json(text: str, limit_bytes: int) -> str:
    """Return a record of at most so many bytes of UTF-8 that is still valid JSON with the same keys.

    ``shortened`` becomes true.

    Raises:
        ValueError: It is not a JSON object, or cannot be shortened enough.
    """
    if len(text.encode()) <= limit_bytes:
        return text
    record = json.loads(text)
    if not isinstance(record, dict):
        raise ValueError("the record is not a JSON object")
    less = shorten({**record, "shortened": True}, lambda less: len(_compact(less)) <= limit_bytes)
    if len(_compact(less)) > limit_bytes:
        raise ValueError(f"the record does not fit in {limit_bytes} bytes")
    return _compact(less).decode()


def _compact(record: Mapping[str, object]) -> bytes:
    return (json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def shorten_lines(lines: Sequence[str], limit: int, count: int = 0) -> list[str]:
    """Return at most ``limit`` lines: the first third, the number of lines left out, and the last ones.

    ``count``: number of lines of a text if these are only those at its ends.
    """
    if len(lines) <= limit:
        return list(lines)
    if limit < 3:
        return list(lines[len(lines) - limit :])
    head = limit // 3
    tail = limit - head - 1
    left_out = f"... {(count or len(lines)) - head - tail} lines left out ..."
    return [*lines[:head], left_out, *lines[len(lines) - tail :]]


def _less(key: str, value: object, items: int, characters: int) -> object:
    """Return a value with at most so many items or lines, each text of at most so many characters."""
    if isinstance(value, str):
        lines = shorten_lines(value.split("\n"), items) if "\n" in value else [value]
        return "\n".join(f"{line[:characters]}..." if len(line) > characters else line for line in lines)
    if isinstance(value, (list, tuple)):
        kept = value[-items:] if key in KEEP_LAST else value[:items]
        if 1 < items < len(value) and all(isinstance(item, str) for item in value):
            more = f"... {len(value) - items + 1} lines left out ..."
            kept = [more, *kept[1:]] if key in KEEP_LAST else [*kept[:-1], more]
        return [_less("", item, items, characters) for item in kept]
    if isinstance(value, dict):
        return {name: _less(name, item, items, characters) for name, item in value.items()}
    return value
