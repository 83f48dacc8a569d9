"""Transfer of a verdict to another launcher: as a JSON object that fits into a frame, and back.

A verdict from the network is not trusted: every text is made safe again, every number is checked.
"""

from __future__ import annotations

import json

from launcher.core.messages import parse
from launcher.core.messages import render as render_message
from launcher.failure.model import Verdict

ROOM_BYTES = 48 << 10
"""Bytes of a verdict in a frame of 64 KiB; the rest is for the message around it."""
STEPS = ((64, 400), (40, 300), (20, 200), (10, 150), (5, 100), (1, 40))
"""Limits of items in lists and of characters in texts, tried one after the other until the whole fits."""
LISTS_OF_TEXT = ("traceback", "stderr", "leftovers")


def fit(verdict: Verdict) -> Verdict:
    """Return a verdict that is shortened to fit into a frame."""
    return parse(Verdict, render(verdict))


def render(verdict: Verdict) -> dict[str, object]:
    """Return a verdict as a JSON object of at most `ROOM_BYTES`."""
    record = render_message(verdict)
    for items, characters in STEPS:
        record = {key: _shorten(key, value, items, characters) for key, value in record.items()}
        if len(json.dumps(record)) <= ROOM_BYTES:
            break
    return record


def _shorten(key: str, value: object, items: int, characters: int) -> object:
    """Return a value with at most so many items, each at most so long.

    Lists of lines keep their last items, other lists their first.
    """
    if isinstance(value, str):
        return value[:characters]
    if isinstance(value, (list, tuple)):
        kept = value[-items:] if key in LISTS_OF_TEXT else value[:items]
        return [_shorten("", item, items, characters) for item in kept]
    if isinstance(value, dict):
        return {name: _shorten("", item, items, characters) for name, item in value.items()}
    return value
