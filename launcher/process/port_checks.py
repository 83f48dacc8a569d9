"""Checks before the start that ports of this node's processes are free.

On a single node this also settles the port of the rendezvous; for several nodes the roll call chooses one
(`launcher.cluster.start`).

We read only the first part of a long list of sockets: the kernel lists all listening sockets first.

Source: proc(5) (/proc/net/tcp); Linux include/net/tcp_states.h.
"""

from __future__ import annotations

import time

from launcher.core.errors import NotReady, Problem, make_problem
from launcher.core.log import say
from launcher.core.model import PROCESS, TORCHRUN, Fact, Scope
from launcher.identity.ledger import is_typed
from launcher.inprocess.marker import LAUNCHED, is_worker
from launcher.machine.ports import is_taken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.core.model import Claim, Plan
    from launcher.machine.host import Host

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
LISTEN, TIME_WAIT = "0A", "06"
HOLDER_S = 1.0
"""Seconds for the search for a holder: root sees all descriptors of all users."""
OTHERS = "give all nodes other ports: {flag} N"


def check_ports(ports: Sequence[tuple[int, str]], host: Host) -> None:
    """Check that no process listens on any of these ports.

    Args:
        ports: Each port, with the name of the process that will listen on it.
        host: Used to find the process that has the port.

    Raises:
        NotReady: Some are taken.
    """
    problems = [
        port_taken(port, "this node", name, describe_holder(host, port), OTHERS.format(flag="--tf-port"))
        for port, name in ports
        if is_taken(port)
    ]
    if problems:
        raise NotReady(*problems)


def port_taken(port: int, node: str, user: str, holder: str, fix: str) -> Problem:
    """Return the problem that another process has a port of this job.

    Args:
        port: The port.
        node: The node that it belongs to.
        user: What the job needs it for.
        holder: The process that listens on it; empty if unknown.
        fix: How to give the job another one.
    """
    holder = holder or "another process"
    return make_problem("port-taken", port=port, node=node, user=user, holder=holder, fix=fix)


def find_taken(plan: Plan) -> int:
    """Return the rendezvous port of this job that is taken on this node; 0 if none is."""
    first = plan.topology.master_port
    serves_above = any(str(first + 1) in beside.argv for beside in plan.companions)  # Horovod's rendezvous
    return next((port for port in (first, *([first + 1] if serves_above else [])) if is_taken(port)), 0)


def settle_rendezvous(
    plan: Plan, environ: Mapping[str, str], replan: Callable[[int], Plan], host: Host
) -> Plan:
    """Return a plan whose processes can connect to rank 0 on this node, at a port that is free.

    If a source named the port and it is taken: on a single node whose processes we start, we take another
    port and say so. Processes that the platform started cannot agree on another port, and may not need one:
    we warn.

    Args:
        plan: The plan of this node.
        environ: The environment that the launcher was started with.
        replan: Returns the plan with another rendezvous port.
        host: This node.

    Raises:
        NotReady: The user typed the port, and it is taken.
    """
    claim = next((found.claim for found in plan.findings if found.claim.fact is Fact.MASTER_PORT), None)
    if claim is None or not _listens_here(plan, claim, environ):
        return plan
    port = find_taken(plan)
    if not port:
        return plan
    holder = describe_holder(host, port)
    if is_typed(claim):
        fix = f"leave out {claim.origin}: a single node uses any free port"
        if plan.allocation.scope is Scope.PROCESS:
            fix = OTHERS.format(flag="--master-port")
        raise NotReady(port_taken(port, "this node", f"the rendezvous ({claim.origin})", holder, fix))
    named = f"port {port} ({claim.origin}) is taken on this node by {holder or 'another process'}"
    if plan.allocation.scope is Scope.PROCESS:
        say(
            f"warning: {named}: processes that meet at MASTER_PORT will fail (fix: --master-port N)",
            "port-taken",
        )
        return plan
    found = replan(host.free_port())
    say(f"{named}: the job meets at {found.topology.master_port} instead", "port-moved")
    return found


def _listens_here(plan: Plan, claim: Claim, environ: Mapping[str, str]) -> bool:
    """Whether we are about to start rank 0 here, and it may listen at MASTER_PORT."""
    allocation, alone = plan.allocation, plan.topology.world_size == 1 and not is_typed(claim)
    if alone or plan.engine not in (PROCESS, TORCHRUN):
        return False
    if allocation.scope is Scope.NODE:
        return allocation.node_count == 1
    # An outer process may listen there already: this job's own rank 0, or an agent
    return allocation.rank == 0 and not environ.get(LAUNCHED) and not is_worker(environ)


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
    from launcher.core.redact import printable

    wanted, until = {f"socket:[{inode}]" for inode in inodes}, time.monotonic() + HOLDER_S
    for pid in filter(str.isdecimal, host.list_folder("/proc")):
        folder = f"/proc/{pid}/fd"
        for fd in host.list_folder(folder):
            if host.read_link(f"{folder}/{fd}") in wanted:
                return pid, printable((host.read_text(f"/proc/{pid}/comm") or "").strip()) or "unknown"
            if time.monotonic() > until:
                return None
    return None


def describe_holder(host: Host, port: int) -> str:
    """Return the process that listens on a port, as ``process 12 (sshd)``; empty if we cannot see it."""
    listening = [inode for state, inode in find_sockets(host, port) or () if state == LISTEN]
    holder = find_holder(host, frozenset(listening))
    return f"process {holder[0]} ({holder[1]})" if holder else ""
