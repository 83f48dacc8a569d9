"""Writes events as JSON lines, see docs/events.md. Never raises, never blocks, never writes a secret."""

from __future__ import annotations

import json
import os
import select
import time

from launcher.core.log import CLOCK
from launcher.core.redact import shorten
from launcher.output.console import LogFile
from launcher.process.kernel import die_with_parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = 1
NODE_MARK = "%n"
"""In a file's name: the rank of the node."""
TEXT_LIMIT = 1 << 15
"""Characters of a text that are kept. A line longer than this is no message of ours."""
ESCAPE = "\x1b["
NO_EVENTS = "no events"
"""How a message begins that says why there is no file."""
READ_BYTES = 1 << 16
LAST_S = 0.5
"""Seconds in which a pipe can take events that are left when the launcher ends."""


def render_event(
    event: str, text: str, place: Mapping[str, object], fields: Mapping[str, object], now_s: float
) -> bytes:
    """Return one event as a line of JSON: ASCII without control characters, for any reader and terminal.

    Args:
        event: Name of the event.
        text: Its message; secrets and colours are removed.
        place: Which job, run, node and attempt it belongs to.
        fields: What else is known; fields that are None are left out.
        now_s: Its time, seconds since 1970.
    """
    fixed = {
        "schema": SCHEMA,
        "time": CLOCK.render(int(now_s * 1e9)),
        **place,
        "event": event,
        "text": _clean(text),
    }
    more = {name: _clean(value) for name, value in fields.items() if value is not None and name not in fixed}
    line = json.dumps({**fixed, **more}, default=str, separators=(",", ":"))
    return f"{line}\n".encode()


def _clean(value: object) -> object:
    """Return a value without secrets, colours, and halves of characters that are no UTF-8."""
    if isinstance(value, str):
        if ESCAPE in value:
            import re

            value = re.sub(r"\x1b\[[0-9;]*m", "", value)
        return shorten(value, TEXT_LIMIT).encode("utf-8", "replace").decode()
    if isinstance(value, list | tuple):
        return [_clean(one) for one in value]
    return value


def name_file(path: str, node_rank: int | None) -> str:
    """Return the absolute path of the file of events: ``%n`` is the rank of the node, 0 if it has none."""
    return os.path.abspath(path.replace(NODE_MARK, str(node_rank or 0)))


def append_events(fd: int, path: str) -> None:
    """Append events to a file, in a process of its own, until there are no more; missing directories are
    made.

    The file is opened here, too: a network drive that is down blocks that forever.

    Args:
        fd: A socket: events come in, and a line goes out if they cannot be written.
        path: The file.
    """
    die_with_parent(0)  # it ends after the launcher, whose last events it may still have
    try:
        file = LogFile(path)
    except OSError as error:
        _report(fd, f"{NO_EVENTS} in {path}: {error.strerror}; the job goes on")
        return
    rest = b""
    while data := os.read(fd, READ_BYTES):
        whole, newline, rest = (rest + data).rpartition(b"\n")
        if newline:
            _put(file, fd, whole + newline)


def _put(file: LogFile, fd: int, lines: bytes) -> None:
    """Write whole lines; those that a pipe does not take before the launcher ends are lost."""
    file.write(b"\n" + lines if file.torn else lines)
    gate = select.poll()
    gate.register(fd, select.POLLRDHUP)
    while file.backlog_bytes:
        is_last = bool(gate.poll(0))
        file.drain(time.monotonic() + LAST_S)
        if is_last:
            break
    complaint = file.take_complaint()
    if complaint is not None:
        _report(fd, complaint)


def _report(fd: int, text: str) -> None:
    try:  # noqa: SIM105
        os.write(fd, f"{text}\n".encode("utf-8", "replace"))
    except OSError:
        pass  # the launcher has ended
