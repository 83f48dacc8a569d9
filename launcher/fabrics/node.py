"""Plans the fabric of this node from the host and the options, for `launcher.planning.plan`."""

from __future__ import annotations

from launcher.core.environ import is_loopback
from launcher.core.frozen import replace
from launcher.core.model import Allocation, Network, Proof, Scope
from launcher.fabrics import Fabric, plan_fabric
from launcher.fabrics.facts import Wish, read_facts, read_variables
from launcher.fabrics.variables import describe_interfaces, find_faults
from launcher.machine.infiniband import read_ports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.fabrics.facts import Facts
    from launcher.machine.host import Host
    from launcher.options.reading import Options

DEBUG, SUBSYSTEMS, FILE = "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"
SETTINGS = ((DEBUG, "INFO"), (SUBSYSTEMS, "INIT,NET,ENV"))
"""Settings of NCCL's log. ENV logs the variables that keep NCCL from a network: those the user must fix."""


def plan_node(host: Host, environ: Mapping[str, str], options: Options, allocation: Allocation) -> Fabric:
    """Return how this node talks to the other nodes of a job.

    Azure's metadata service may be asked once per node, but never by each process of a node.

    Raises:
        HardwareMissing: The fabric that was asked for is not here.
    """
    facts = read_facts(
        host,
        environ,
        hosts=allocation.hosts,
        node_rank=allocation.node_rank,
        master_addr=allocation.master_addr,
        ask=allocation.scope is Scope.NODE,
    )
    wish = read_wish(options)
    fabric = plan_fabric(facts, wish)
    known = facts.ports or facts.interfaces  # a recorded machine may have neither
    network = fabric.network
    notes = [f"fabric {network.fabric}: {network.why}", *fabric.notes] if known else []
    if facts.interface is None and known:
        notes.append(f"no interface is named to NCCL and gloo: {facts.why_interface}")
    notes += map(str, find_faults(facts, spans_nodes=not is_loopback(allocation.master_addr)))
    proof, why_not = None, ""
    if options.switch("verify_fabric"):
        proof, why_not = plan_proof(facts, network, wish.required_origin if wish.required else "")
    notes += [f"--verify-fabric: {why_not}"] if why_not else []
    return replace(fabric, notes=tuple(notes), proof=proof)


def judge_variables(host: Host, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return notes on the network variables of a job on one node."""
    facts = read_variables(host, environ, read_ports(host, tables=False))
    return tuple(map(str, find_faults(facts, spans_nodes=False)))


def explain_network(host: Host, environ: Mapping[str, str], library: str) -> tuple[str, str, str]:
    """Return what is wrong with a library's variables of a process, the fix, and this node's interfaces.

    The first two are empty if nothing is wrong.
    """
    spans = environ.get("WORLD_SIZE") != environ.get("LOCAL_WORLD_SIZE")
    facts = read_variables(host, environ, read_ports(host, tables=False))
    faults = find_faults(facts, spans_nodes=spans and not is_loopback(environ.get("MASTER_ADDR", "")))
    faults = tuple(fault for fault in faults if fault.name.startswith(library.upper()))
    whats = "; ".join(f"{fault.name}={fault.value!r}: {fault.what}" for fault in faults)
    fixes = "; ".join(fault.fix for fault in faults)
    return whats, fixes, describe_interfaces(facts.interfaces)


def read_wish(options: Options) -> Wish:
    """Return the fabric that the user forces, and the one that the user requires."""
    forced, required = options.get("fabric"), options.get("require_fabric")
    name = options.text("fabric", "auto")
    return Wish(
        forced="" if name == "auto" else name,
        forced_origin=forced.origin if forced else "",
        required=options.text("require_fabric"),
        required_origin=required.origin if required else "",
    )


def plan_proof(facts: Facts, network: Network, required: str) -> tuple[Proof | None, str]:
    """Return what NCCL's log is compared with, or why it cannot be compared.

    NCCL writes its debug output to a file of ours. A user who has set one of the three variables wants that
    output elsewhere, or not at all: then we keep these values, and a note says that nothing is compared.

    Args:
        facts: Facts about this node: the user's variables, and NCCL's files.
        network: The planned network.
        required: The flag that makes another network fatal; empty for none.

    Source:
        NCCL "Environment Variables" (NCCL_DEBUG, NCCL_DEBUG_SUBSYS, NCCL_DEBUG_FILE) and src/debug.cc.
    """
    theirs = [name for name in (DEBUG, FILE, SUBSYSTEMS) if facts.told(name)]
    if not theirs:
        return Proof(network, SETTINGS, required), ""
    said = ", ".join(f"{name}={facts.told(name)}" for name in theirs)
    fix = "unset it, or look for NET/ in that output"
    return None, f"keeping {said}: {network.fabric} is not verified ({fix})"
