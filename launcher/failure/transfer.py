"""Transfer of a verdict to another launcher: as a JSON object that fits into a frame, and back.

A verdict from the network is not trusted: every text is made safe again, every number is checked.
"""

from __future__ import annotations

import json

from launcher.core.messages import parse
from launcher.core.messages import render as render_message
from launcher.failure.model import Verdict
from launcher.failure.text import shorten_record

ROOM_BYTES = 48 << 10
"""Bytes of a verdict in a frame of 64 KiB; the rest is for the message around it."""


def fit(verdict: Verdict) -> Verdict:
    """Return a verdict that is shortened to fit into a frame."""
    return parse(Verdict, render(verdict))


def render(verdict: Verdict) -> dict[str, object]:
    """Return a verdict as a JSON object of at most `ROOM_BYTES`."""
    return shorten_record(render_message(verdict), lambda record: len(json.dumps(record)) <= ROOM_BYTES)
