"""Checks disk space: if a log cannot be written, the last output of a job is lost.

Source: statvfs(3).
"""

from __future__ import annotations

import os

from launcher.checks.case import CheckedNode
from launcher.checks.finding import PROBLEM, WARNING, Finding, ok
from launcher.core.errors import say_size
from launcher.machine.host import Host

LITTLE_BYTES = 1 << 30
NOTHING_BYTES = 100 << 20


def look(case: CheckedNode) -> list[Finding]:
    """Check the directories of log files, if any, and of temporary files."""
    temporary = case.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - only its space is read
    places = [("log files", case.log_dir, "--log-dir DIR"), ("temporary files", temporary, "TMPDIR")]
    return [
        found
        for what, folder, setting in places
        if folder
        for found in _look_at(case.host, f"space for {what}", folder, setting)
    ]


def _look_at(host: Host, what: str, folder: str, setting: str) -> list[Finding]:
    space = _space(host, folder)
    if space is None:
        return []
    free = space[1]
    found = f"{say_size(free)} free in {folder}"
    if free >= LITTLE_BYTES:
        return [ok("disk", what, found)]
    level = PROBLEM if free < NOTHING_BYTES else WARNING
    fix = f"free the disk, or name another one with {setting}"
    return [Finding("disk", level, what, f"{say_size(LITTLE_BYTES)} or more", found, fix)]


def _space(host: Host, folder: str) -> tuple[int, int] | None:
    """Return (size, free) in bytes for a directory; if it does not exist yet, for its nearest parent."""
    path = os.path.abspath(folder)
    while True:
        space, above = host.space(path), os.path.dirname(path)
        if space is not None or above == path:  # "/", or "//", which is a different root in POSIX
            return space
        path = above
