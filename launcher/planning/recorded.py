"""Reads a snapshot (`launcher.planning.snapshot`): a machine that is replayed from a file.

A snapshot may contain anything: a value of the wrong type counts as unknown.
"""

from __future__ import annotations

import json

from launcher.core.errors import make_error
from launcher.core.model import DEFAULT_PORT
from launcher.core.wire import DEPTH_MAX, is_shallow
from launcher.machine.files import PIPE_S, read_whole
from launcher.machine.host import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

VERSION = 2
SNAPSHOT_LIMIT_BYTES = 1 << 24
"""Far more than any node's snapshot needs; it guards against endless files."""
ENTRIES_LIMIT = 1 << 15
"""More names and items than any node's snapshot has, a thousand network interfaces included."""
FOLDERS_LIMIT = 16 * ENTRIES_LIMIT
"""Limit of the directories in all paths together: a path of a million slashes names a million directories."""
DIGITS_LIMIT = 19
"""Maximum digits of a number: bytes of memory have fewer."""


def replay(data: Mapping[str, object]) -> Host:
    """Return a recorded machine: our readers over its files, and its answers."""
    files = data.get("files")
    return Host(files if isinstance(files, dict) else {}, port=DEFAULT_PORT, answers=data)


def read_snapshot(path: str) -> Host:
    """Return the machine in a snapshot file.

    Raises:
        UsageError: It cannot be read, is not JSON, or is not a snapshot of a supported version.
    """
    try:
        read = read_whole(path, SNAPSHOT_LIMIT_BYTES, PIPE_S)
        if len(read) > SNAPSHOT_LIMIT_BYTES:
            reason = f"expected at most {SNAPSHOT_LIMIT_BYTES >> 20} MiB"
            raise make_error("bad-snapshot", path=path, reason=reason)
        data = json.loads(read.decode("utf-8"), parse_int=_parse_int)
        text = json.dumps(data, ensure_ascii=False)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or f"is not JSON: {error}"
        raise make_error("bad-snapshot", path=path, reason=reason) from error
    fault = _find_fault(data, text)
    if fault:
        raise make_error("bad-snapshot", path=path, reason=fault)
    return replay(data)


def _find_fault(data: Any, text: str) -> str:
    """Return what is wrong with the value in a snapshot; empty if nothing is."""
    if not is_shallow(data):
        return f"nested more than {DEPTH_MAX} levels deep"
    if _count(data) > ENTRIES_LIMIT:
        return f"expected at most {ENTRIES_LIMIT} entries"
    if not isinstance(data, dict) or not isinstance(data.get("environ"), dict):
        return 'expected a JSON object with an "environ" object'
    files = data.get("files")
    if isinstance(files, dict) and sum(name.count("/") for name in files) > FOLDERS_LIMIT:
        return f"expected at most {FOLDERS_LIMIT} directories"
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return "a text holds half of a surrogate pair: no machine has such a text"
    version = data.get("version", VERSION)
    return "" if version == VERSION else f"version {version!r}: expected {VERSION}"


def _count(value: object) -> int:
    """Return the number of names and items in a shallow JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    return len(value) + sum(map(_count, value)) if isinstance(value, list) else 0


def _parse_int(digits: str) -> int:
    """Return an integer of at most DIGITS_LIMIT digits.

    Raises:
        ValueError: It has more digits.
    """
    if len(digits) > DIGITS_LIMIT:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)
