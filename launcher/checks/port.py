"""Checks MASTER_PORT on the node of rank 0: if another process uses it, no rank can join.

Source: ip(7) (ip_local_port_range, ip_local_reserved_ports).
"""

from __future__ import annotations

from launcher.checks.case import CheckedNode
from launcher.checks.finding import Findings, fail, ok, warn
from launcher.core.ranks import is_number
from launcher.machine.host import Host
from launcher.machine.sockets import LISTEN, find_holder, find_sockets

RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"


def look(case: CheckedNode) -> Findings:
    """Look for sockets on the port; on other nodes, or without a fixed port, there is nothing to check."""
    port = case.master_port
    sockets = find_sockets(case.host, port) if port and case.is_master else None
    if sockets is None:
        return
    what, fix = f"MASTER_PORT {port}", "pass --master-port N with a free port, the same on all nodes"
    listening = [inode for state, inode in sockets if state == LISTEN]
    busy = [inode for state, inode in sockets if state != LISTEN]
    if listening or busy:
        holder = find_holder(case.host, frozenset(listening or busy))
        end = f"end process {holder[0]}, or " if holder else ""
        by = f"process {holder[0]} ({holder[1]})" if holder else "a process that the launcher cannot inspect"
        use = "listens there" if listening else "has a connection from there"
        yield fail(what, "free", f"{by} {use}", end + fix)
    elif case.spans_nodes and _is_ephemeral(case.host, port):
        bounds = " to ".join((case.host.read_text(RANGE) or "").split())
        found = f"a port that the kernel gives to outgoing connections ({bounds})"
        fix = "pass --master-port N below that range, on all nodes"
        yield warn(what, "a port outside that range", found, fix)
    else:
        yield ok(what, "free")


def _is_ephemeral(host: Host, port: int) -> bool:
    """Whether the kernel may give the port to an outgoing connection."""
    bounds = (host.read_text(RANGE) or "").split()
    if len(bounds) != 2 or not all(is_number(bound, 5) for bound in bounds):
        return False
    reserved = (host.read_text(RESERVED) or "").strip().split(",")
    pairs = [(first, last or first) for first, _, last in (item.partition("-") for item in reserved)]
    known = [(int(first), int(last)) for first, last in pairs if is_number(first, 5) and is_number(last, 5)]
    is_reserved = any(first <= port <= last for first, last in known)
    return int(bounds[0]) <= port <= int(bounds[1]) and not is_reserved
