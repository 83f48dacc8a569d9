"""MASTER_PORT on the node of rank 0: if somebody else listens there, nobody can join.

Listening sockets stand first in the kernel's lists, so that the part of a long list that is read has them
all.

Source: proc(5) (/proc/net/tcp); Linux include/net/tcp_states.h; ip(7) (ip_local_port_range,
ip_local_reserved_ports).
"""

from __future__ import annotations

from launcher.checks.case import Case
from launcher.checks.finding import PROBLEM, WARNING, Finding, ok
from launcher.host import Host

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
LISTEN, TIME_WAIT = "0A", "06"
RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"


def look(case: Case) -> list[Finding]:
    """Look for sockets on the port; on other nodes, or without a master, there is nothing to look at."""
    port = case.master_port
    if not port or not case.is_master:
        return []
    what, fix = f"MASTER_PORT {port}", "--master-port N with a port that is free, the same on all nodes"
    sockets = _find_sockets(case.host, port)
    if sockets is None:
        return []
    listening = [inode for state, inode in sockets if state == LISTEN]
    busy = [inode for state, inode in sockets if state != LISTEN]
    if listening or busy:
        holder = _find_holder(case.host, frozenset(listening or busy))
        end = f"end process {holder[0]}, or " if holder else ""
        by = f"process {holder[0]} ({holder[1]})" if holder else "a process that we may not look at"
        use = "listens there" if listening else "has a connection from there"
        return [Finding("port", PROBLEM, what, "free", f"{by} {use}", end + fix)]
    if case.spans_nodes and _is_ephemeral(case.host, port):
        found = f"one that the kernel gives to outgoing connections ({_range_text(case.host)})"
        fix = "--master-port N below that range, on all nodes"
        return [Finding("port", WARNING, what, "one that only you give away", found, fix)]
    return [ok("port", what, "free")]


def _find_sockets(host: Host, port: int) -> list[tuple[str, str]] | None:
    """Return (state, inode) of the sockets on a local port; None if the kernel's lists cannot be read."""
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


def _find_holder(host: Host, inodes: frozenset[str]) -> tuple[str, str] | None:
    """Return pid and name of a process that has one of some sockets; None if none is to be seen."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for pid in filter(str.isdecimal, host.list_folder("/proc")):
        folder = f"/proc/{pid}/fd"
        if any(host.read_link(f"{folder}/{fd}") in wanted for fd in host.list_folder(folder)):
            return pid, (host.read_text(f"/proc/{pid}/comm") or "").strip() or "unknown"
    return None


def describe_holder(host: Host, port: int) -> str:
    """Return who listens on a port, as ``process 12 (sshd)``; empty if that cannot be seen."""
    listening = [inode for state, inode in _find_sockets(host, port) or () if state == LISTEN]
    holder = _find_holder(host, frozenset(listening))
    return f"process {holder[0]} ({holder[1]})" if holder else ""


def _range_text(host: Host) -> str:
    return " to ".join((host.read_text(RANGE) or "").split())


def _is_ephemeral(host: Host, port: int) -> bool:
    """Whether the kernel may give a port to any outgoing connection."""
    bounds = (host.read_text(RANGE) or "").split()
    if len(bounds) != 2 or not all(map(_is_port, bounds)):
        return False
    reserved = (host.read_text(RESERVED) or "").strip().split(",")
    pairs = [(first, last or first) for first, _, last in (item.partition("-") for item in reserved)]
    is_reserved = any(
        int(first) <= port <= int(last) for first, last in pairs if _is_port(first) and _is_port(last)
    )
    return int(bounds[0]) <= port <= int(bounds[1]) and not is_reserved


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5
