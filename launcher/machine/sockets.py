"""Finds TCP sockets of this node, and the processes that hold them.

We read only the first part of a long list of sockets. It has all listening sockets, which the kernel lists
first.

Source: proc(5) (/proc/net/tcp); Linux include/net/tcp_states.h.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.machine.host import Host

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
LISTEN, TIME_WAIT = "0A", "06"
HOLDER_S = 1.0
"""Seconds for the search for a holder: root sees all descriptors of all users."""


def find_sockets(host: Host, port: int) -> list[tuple[str, str]] | None:
    """Return (state, inode) of the sockets on a local port, except TIME_WAIT; None if unreadable."""
    texts = [text for text in map(host.read_text, TABLES) if text is not None]
    if not texts:
        return None
    suffix = f":{port:04X}"
    rows = [line.split() for text in texts for line in text.splitlines()]
    return [
        (row[3], row[9])
        for row in rows
        if len(row) > 9 and row[1].upper().endswith(suffix) and row[3] != TIME_WAIT
    ]


def find_holder(host: Host, inodes: frozenset[str]) -> tuple[str, str] | None:
    """Return (PID, name) of a process that has one of these sockets open; None if we see none in time."""
    wanted, until = {f"socket:[{inode}]" for inode in inodes}, time.monotonic() + HOLDER_S
    for pid in filter(str.isdecimal, host.list_folder("/proc")):
        folder = f"/proc/{pid}/fd"
        for fd in host.list_folder(folder):
            if host.read_link(f"{folder}/{fd}") in wanted:
                return pid, (host.read_text(f"/proc/{pid}/comm") or "").strip() or "unknown"
            if time.monotonic() > until:
                return None
    return None


def describe_holder(host: Host, port: int) -> str:
    """Return the process that listens on a port, as ``process 12 (sshd)``; empty if we cannot see it."""
    listening = [inode for state, inode in find_sockets(host, port) or () if state == LISTEN]
    holder = find_holder(host, frozenset(listening))
    return f"process {holder[0]} ({holder[1]})" if holder else ""
