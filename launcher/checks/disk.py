"""Checks disk space: if a log cannot be written, the last output of a job is lost.

Source: statvfs(3).
"""

from __future__ import annotations

import os

from launcher.checks.case import CheckedNode
from launcher.checks.finding import Findings, fail, ok, warn
from launcher.core.errors import say_size
from launcher.machine.host import Host

LITTLE_BYTES = 1 << 30
NOTHING_BYTES = 100 << 20


def look(case: CheckedNode) -> Findings:
    """Check the directories of log files, if any, and of temporary files."""
    temporary = case.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - only its space is read
    places = (("log files", case.log_dir, "--log-dir DIR"), ("temporary files", temporary, "TMPDIR"))
    for files, folder, setting in places:
        space = _space(case.host, folder) if folder else None
        if space is None:
            continue
        free = space[1]
        what, found = f"space for {files}", f"{say_size(free)} free in {folder}"
        if free >= LITTLE_BYTES:
            yield ok(what, found)
            continue
        report = fail if free < NOTHING_BYTES else warn
        fix = f"free the disk, or name another one with {setting}"
        yield report(what, f"{say_size(LITTLE_BYTES)} or more", found, fix)


def _space(host: Host, folder: str) -> tuple[int, int] | None:
    """Return (size, free) in bytes for a directory; if it does not exist yet, for its nearest parent."""
    path = os.path.abspath(folder)
    while True:
        space, above = host.space(path), os.path.dirname(path)
        if space is not None or above == path:  # "/", or "//", which is a different root in POSIX
            return space
        path = above
