"""Table of the fabrics, and the choice of the one over which the nodes talk.

A fabric's ``find`` says whether it is here, and why or why not. Its ``plan`` gives the settings that it
needs, each with a reason. Everything is pure over `launcher.fabrics.facts.Facts`.
"""

from __future__ import annotations

from launcher.core.errors import HardwareMissing, Problem
from launcher.core.frozen import frozen
from launcher.core.model import Network, Policy, Proof, Setting
from launcher.fabrics import plugins, sockets, verbs
from launcher.fabrics.facts import Found, Wish, name_ports
from launcher.fabrics.topology_file import WORD, find_switches, render_topology
from launcher.fabrics.variables import find_exclusion

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from launcher.fabrics.facts import Facts

    Planned = Iterable[tuple[str, str, str]]
    """(name, value, reason) of each setting."""


@frozen
class Row:
    """A fabric: its name for users, its title, whether it is here, and the settings that it needs."""

    name: str
    title: str
    find: Callable[[Facts], Found]
    plan: Callable[[Facts, Found, Wish], Planned]


FABRICS = (
    Row("ib", "InfiniBand", verbs.find_infiniband, verbs.plan_infiniband),
    Row("efa", "EFA", plugins.find_efa, plugins.plan_efa),
    Row("gcp", "GPUDirect-TCPX", plugins.find_gcp, plugins.plan_gcp),
    Row("roce", "RoCE", verbs.find_roce, verbs.plan_roce),
    Row("tcp", "TCP", sockets.find_tcp, sockets.plan_tcp),
)
"""Best first: unless the user forces a fabric, the first one that is here is used."""
NO_WISH = Wish()
NAMES = tuple(row.name for row in FABRICS)


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


def plan_fabric(facts: Facts, wish: Wish = NO_WISH) -> Fabric:
    """Choose the fabric of a job of several nodes, and the settings of its processes.

    Args:
        facts: Facts about this node.
        wish: The fabric that the user forces, or requires.

    Raises:
        HardwareMissing: The forced or required fabric is not here, a variable rules it out, or the job would
            use another one.
    """
    found = {row.name: row.find(facts) for row in FABRICS}
    name = wish.forced or next(name for name in NAMES if found[name].is_here)
    chosen = found[name]
    for asked, origin in ((wish.forced, wish.forced_origin), (wish.required, wish.required_origin)):
        if asked:
            why = f"{name}: {wish.forced_origin or chosen.why}"
            _check(facts, asked, origin, "" if name == asked else why, found[asked])
    row = next(row for row in FABRICS if row.name == name)
    settings, kept = _yield_to_files(
        facts, [*sockets.plan_interface(facts, name), *row.plan(facts, chosen, wish)]
    )
    switches, unlike = find_switches(facts, chosen.ports)
    exclusion = find_exclusion(facts.told, name, chosen.ports)
    network = Network(
        fabric=name,
        why=chosen.why if name != wish.forced else f"{wish.forced_origin}; {chosen.why}",
        port_count=None if chosen.doubt else len(chosen.ports) or None,
        ports=_name_ports(facts, chosen),
        files=((WORD, render_topology(switches)),) if any(item.value == WORD for item in settings) else (),
    )
    notes = (
        *(
            chosen.doubt,
            *_describe_losers(found, name),
            *chosen.notes,
            *_describe_plugins(facts),
            *kept,
            unlike,
        ),
        f"{exclusion}: NCCL will not use {row.title}" if exclusion else "",
    )
    return Fabric(network, settings, tuple(filter(None, notes)))


def _check(facts: Facts, asked: str, origin: str, instead: str, wanted: Found) -> None:
    """Raise HardwareMissing if the job would not run over a fabric that was asked for."""
    reason = "" if wanted.is_here else wanted.why
    reason = reason or (f"the fabric is {instead}" if instead else "")
    reason = reason or find_exclusion(facts.told, asked, wanted.ports)
    if reason:
        fix = wanted.fix or "leave the flag out, or unset the variable that rules it out"
        title = next(row.title for row in FABRICS if row.name == asked)
        what = f"{origin}, but no {title} can be used: {reason}"
        raise HardwareMissing(Problem("no-fabric", what, "this node", fix))


def _name_ports(facts: Facts, found: Found) -> tuple[str, ...]:
    names = "" if found.doubt else name_ports(found.ports)
    kept = facts.told("NCCL_IB_HCA")
    return tuple(names.split(",")) if names and kept in (None, f"={names}") else ()


def _yield_to_files(facts: Facts, planned: Planned) -> tuple[tuple[Setting, ...], list[str]]:
    """Return the settings that NCCL's files leave open, and notes: a variable would override a file."""
    by_file = {item.name: item for item in facts.configured}
    settings, notes = [], []
    for name, value, why in planned:
        if name not in by_file:
            settings.append(Setting(name, value, why, Policy.IF_UNSET))
        elif by_file[name].value != value and not facts.environ.get(name):
            item = by_file[name]
            notes.append(f"{name}: keeping {item.value!r} from {item.path} (otherwise {value!r}: {why})")
    return tuple(settings), notes


def _describe_losers(found: dict[str, Found], name: str) -> list[str]:
    """Return why existing hardware is not used, a note for each fabric."""
    return [
        f"not {row.title}: {found[row.name].why}"
        for row in FABRICS
        if row.name != name and found[row.name].has_hardware and not found[row.name].is_here
    ]


def _describe_plugins(facts: Facts) -> list[str]:
    loaded = facts.net_plugin()
    others = [path for path in facts.plugins if path != loaded and "libnccl-net" not in path]
    notes = [f"NCCL would load the net plugin {loaded}"] if loaded else []
    return notes + ([f"found beside NCCL: {', '.join(others)}"] if others else [])
