"""Table of the fabrics, and the choice of the network between the nodes (`plan_node`).

Each fabric has two functions, pure over `launcher.fabrics.facts.Facts`: whether it is here, and why or why
not; and the settings that it needs, each with a reason.
"""

from __future__ import annotations

from launcher.core.environ import is_loopback
from launcher.core.errors import make_error
from launcher.core.frozen import frozen, replace
from launcher.core.model import Allocation, Policy, Scope, Setting
from launcher.core.supervision import Network, Proof
from launcher.fabrics import plugins, settings, verbs
from launcher.fabrics.facts import Facts, Found, name_ports, read_facts, read_variables
from launcher.fabrics.topology_file import WORD, find_unexpected, render_topology
from launcher.fabrics.variables import TITLES, describe_interfaces, find_exclusion, find_faults
from launcher.machine.infiniband import read_ports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from launcher.machine.host import Host
    from launcher.options.given import Given
    from launcher.options.reading import Options

    Planned = Iterable[tuple[str, str, str]]
    """(name, value, reason) of each setting."""


FABRICS: dict[str, Callable[[Facts], Found]] = {
    "ib": verbs.find_infiniband,
    "efa": plugins.find_efa,
    "gcp": plugins.find_gcp,
    "roce": verbs.find_roce,
    "tcp": lambda facts: Found(True, f"TCP through {facts.interface}" if facts.interface else "TCP"),
}
"""Best first: unless the user forces a fabric, the first one that is here is used."""
DEBUG, SUBSYSTEMS, FILE = "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"
SETTINGS = ((DEBUG, "INFO"), (SUBSYSTEMS, "INIT,NET,ENV"))
"""Settings of NCCL's log. ENV logs the variables that keep NCCL from a network: those the user must fix."""
NAMES = tuple(FABRICS)


@frozen
class Fabric:
    """The chosen fabric, over which this node talks to the others.

    Attributes:
        network: The network: its name is one of `NAMES`.
        settings: Variables, each with its reason; all yield to what the user set.
        notes: Unusual facts: dead ports, plugins, hardware that was not chosen and why.
        proof: The network that NCCL's log must confirm; None if that is not requested, or if the log is not
            ours.
    """

    network: Network
    settings: tuple[Setting, ...] = ()
    notes: tuple[str, ...] = ()
    proof: Proof | None = None


def plan_fabric(facts: Facts, wish: Given | None = None, required: Given | None = None) -> Fabric:
    """Choose the fabric of a job of several nodes, and the settings of its processes.

    Args:
        facts: Facts about this node.
        wish: The fabric that the user forces; None for none.
        required: The fabric that the user requires; None for none.

    Raises:
        HardwareMissing: The forced or required fabric is not here, a variable rules it out, or the job would
            use another one.
    """
    found = {name: find(facts) for name, find in FABRICS.items()}
    name = str(wish.value) if wish else next(name for name in NAMES if found[name].is_here)
    chosen, forced = found[name], wish.origin if wish else ""
    for given in filter(None, (wish, required)):
        asked, wanted = str(given.value), found[str(given.value)]
        other = "" if name == asked else f"the fabric is {name}: {forced or chosen.why}"
        other = other if wanted.is_here else wanted.why
        if reason := other or find_exclusion(facts.told, asked, wanted.ports):
            fix = wanted.fix or "leave the flag out, or unset the variable that rules it out"
            raise make_error("no-fabric", origin=given.origin, title=TITLES[asked], reason=reason, fix=fix)
    planned, kept = _yield_to_files(facts, settings.plan_settings(facts, name, chosen, forced))
    is_generated = any(item.value == WORD for item in planned)
    exclusion = find_exclusion(facts.told, name, chosen.ports)
    ports = "" if chosen.doubt else name_ports(chosen.ports)
    is_ours = ports and facts.told("NCCL_IB_HCA") in (None, f"={ports}")
    network = Network(
        fabric=name,
        why=f"{forced}; {chosen.why}" if forced else chosen.why,
        port_count=None if chosen.doubt else len(chosen.ports) or None,
        ports=tuple(ports.split(",")) if is_ours else (),
        files=((WORD, render_topology(facts.kind.switches)),) if facts.kind and is_generated else (),
    )
    losers = [f"not {TITLES[n]}: {it.why}" for n, it in found.items() if it.has_hardware and not it.is_here]
    notes = [chosen.doubt, *losers, *chosen.notes, *_describe_plugins(facts)]
    notes += [*kept, find_unexpected(facts, chosen.ports) or ""]
    notes += [f"{exclusion}: NCCL will not use {TITLES[name]}" if exclusion else ""]
    return Fabric(network, planned, tuple(filter(None, notes)))


def _yield_to_files(facts: Facts, planned: Planned) -> tuple[tuple[Setting, ...], list[str]]:
    """Return the settings that NCCL's files leave open, and notes: a variable would override a file."""
    settings, notes = [], []
    for name, value, why in planned:
        theirs, path = facts.configured.get(name, (None, ""))
        if theirs is None:
            settings.append(Setting(name, value, why, Policy.IF_UNSET))
        elif theirs != value and not facts.environ.get(name):
            notes.append(f"{name}: keeping {theirs!r} from {path} (otherwise {value!r}: {why})")
    return tuple(settings), notes


def _describe_plugins(facts: Facts) -> list[str]:
    loaded = facts.net_plugin()
    others = [path for path in facts.plugins if path != loaded and "libnccl-net" not in path]
    notes = [f"NCCL would load the net plugin {loaded}"] if loaded else []
    return notes + ([f"found beside NCCL: {', '.join(others)}"] if others else [])


def plan_node(host: Host, environ: Mapping[str, str], options: Options, allocation: Allocation) -> Fabric:
    """Return how this node talks to the other nodes of a job.

    Azure's metadata service may be asked once per node, but never by each process of a node.

    Raises:
        HardwareMissing: The fabric that was asked for is not here.
    """
    hosts, node = allocation.hosts, allocation.node_rank
    own = hosts[node] if node is not None and node < len(hosts) else ""
    peers = (allocation.master_addr, *(one for place, one in enumerate(hosts) if place != node))
    facts = read_facts(host, environ, own, peers, ask=allocation.scope is Scope.NODE)
    forced, required = options.get("fabric"), options.get("require_fabric")
    fabric = plan_fabric(facts, None if forced and forced.value == "auto" else forced, required)
    network, notes = fabric.network, list[str]()
    if facts.ports or facts.interfaces:  # a recorded machine may have neither
        unnamed = f"no interface is named to NCCL and gloo: {facts.why_interface}"
        notes = [f"fabric {network.fabric}: {network.why}", *fabric.notes]
        notes += [unnamed] if facts.interface is None else []
    notes += map(str, find_faults(facts, spans_nodes=not is_loopback(allocation.master_addr)))
    proof, why_not = None, ""
    if options.switch("verify_fabric"):
        proof, why_not = plan_proof(facts, network, required.origin if required else "")
    notes += [f"--verify-fabric: {why_not}"] if why_not else []
    return replace(fabric, notes=tuple(notes), proof=proof)


def judge_variables(host: Host, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return notes on the network variables of a job on one node."""
    facts = read_variables(host, environ, read_ports(host))
    return tuple(map(str, find_faults(facts, spans_nodes=False)))


def explain_network(host: Host, environ: Mapping[str, str], library: str) -> tuple[str, str, str]:
    """Return what is wrong with a library's variables of a process, the fix, and this node's interfaces.

    The first two are empty if nothing is wrong.
    """
    spans = environ.get("WORLD_SIZE") != environ.get("LOCAL_WORLD_SIZE")
    facts = read_variables(host, environ, read_ports(host))
    faults = find_faults(facts, spans_nodes=spans and not is_loopback(environ.get("MASTER_ADDR", "")))
    faults = tuple(fault for fault in faults if fault.name.startswith(library.upper()))
    whats = "; ".join(f"{fault.name}={fault.value!r}: {fault.what}" for fault in faults)
    fixes = "; ".join(fault.fix for fault in faults)
    return whats, fixes, describe_interfaces(facts.interfaces)


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
