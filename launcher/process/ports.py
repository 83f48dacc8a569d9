"""Ports that processes of this node will listen on: one that is taken is said before the start.

The port of the rendezvous on one node; of several nodes the roll call finds one (`launcher.cluster.start`).
"""

from __future__ import annotations

import sys

from launcher.core.errors import NotReady, Problem
from launcher.core.model import Fact, Scope
from launcher.engines.choice import PROCESS, TORCHRUN
from launcher.guest.marker import LAUNCHED, is_worker
from launcher.identity.ledger import is_typed
from launcher.machine.ports import is_taken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.core.model import Claim, Plan
    from launcher.machine.host import Host

OTHERS = "give all nodes other ports: {flag} N"


def check_ports(ports: Sequence[tuple[int, str]], host: Host) -> None:
    """Hold that nothing listens on any of them.

    Args:
        ports: Each with the name of the process that will.
        host: Where the holder is looked for.

    Raises:
        NotReady: Some are taken.
    """
    from launcher.machine.sockets import describe_holder

    problems = [
        port_taken(port, "this node", name, describe_holder(host, port), OTHERS.format(flag="--tf-port"))
        for port, name in ports
        if is_taken(port)
    ]
    if problems:
        raise NotReady(*problems)


def port_taken(port: int, node: str, user: str, holder: str, fix: str) -> Problem:
    """Return that another process has a port of this job.

    Args:
        port: Which.
        node: Of which node.
        user: For what of this job it is.
        holder: What listens there, as far as that is known.
        fix: What gives the job another one.
    """
    what = f"port {port} of {node} is for {user}, and {holder or 'another process'} listens there"
    return Problem("port-taken", what, node, f"end that, or {fix}")


def find_taken(plan: Plan) -> int:
    """Return the port at which this job is to meet here and that is taken; 0 if none is."""
    first = plan.topology.master_port
    serves_above = any(str(first + 1) in beside.argv for beside in plan.companions)  # Horovod's rendezvous
    return next((port for port in (first, *([first + 1] if serves_above else [])) if is_taken(port)), 0)


def settle_rendezvous(
    plan: Plan, environ: Mapping[str, str], replan: Callable[[int], Plan], host: Host
) -> Plan:
    """Return a plan whose processes can meet, where rank 0 listens here at a port that was named.

    On one node whose processes we start, another port is taken, and said. Processes that the platform has
    started cannot agree on one, and may need none: a warning.

    Args:
        plan: Of this node.
        environ: The environment that the launcher was started with.
        replan: From another port of the rendezvous to the plan with it.
        host: This node.

    Raises:
        NotReady: The port was typed.
    """
    claim = next((found.claim for found in plan.findings if found.claim.fact is Fact.MASTER_PORT), None)
    if claim is None or not _listens_here(plan, claim, environ):
        return plan
    port = find_taken(plan)
    if not port:
        return plan
    from launcher.machine.sockets import describe_holder

    holder = describe_holder(host, port)
    if is_typed(claim):
        fix = f"leave out {claim.origin}: one node takes a port that is free"
        if plan.allocation.scope is Scope.PROCESS:
            fix = OTHERS.format(flag="--master-port")
        raise NotReady(port_taken(port, "this node", f"the rendezvous ({claim.origin})", holder, fix))
    named = f"port {port} ({claim.origin}) is taken on this node by {holder or 'another process'}"
    if plan.allocation.scope is Scope.PROCESS:
        _say(f"warning: {named}: processes that meet at MASTER_PORT will fail (fix: --master-port N)")
        return plan
    found = replan(host.free_port())
    _say(f"{named}: the job meets at {found.topology.master_port} instead")
    return found


def _listens_here(plan: Plan, claim: Claim, environ: Mapping[str, str]) -> bool:
    """Whether rank 0 is about to be started here, and may listen at MASTER_PORT."""
    allocation, alone = plan.allocation, plan.topology.world_size == 1 and not is_typed(claim)
    if alone or plan.engine not in (PROCESS, TORCHRUN):
        return False
    if allocation.scope is Scope.NODE:
        return allocation.node_count == 1
    # A process around this one may listen there already: this job's own rank 0, or an agent
    return allocation.rank == 0 and not environ.get(LAUNCHED) and not is_worker(environ)


def _say(sentence: str) -> None:
    from launcher.core.redact import printable, redact

    sys.stderr.write(f"launcher: {printable(redact(sentence))}\n")
