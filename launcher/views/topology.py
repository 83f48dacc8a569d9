"""Shows the parts of a node, the distances between them, and what a job has of them (docs/topology.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from launcher.checks.finding import render_count
from launcher.core.errors import LauncherError, UsageError
from launcher.core.frozen import frozen
from launcher.core.ranks import render_cpu_list
from launcher.core.redact import printable, redact
from launcher.core.version import __version__
from launcher.machine.gpu_facts import GpuFacts, describe_gpu
from launcher.machine.hardware import MEANINGS, SELF, Hardware, count_switched, distance, read_hardware
from launcher.machine.host import Host
from launcher.machine.infiniband import is_usable
from launcher.machine.network import Interface
from launcher.options.reading import Options
from launcher.output.tables import align
from launcher.planning.assignment import Assigned, assign, find_visible
from launcher.planning.plan import plan_job

VERSION = 1
GIB = 1 << 30
LISTED = 4
"""Maximum number of an interface's addresses, and of its routes, in its row."""
PORT = ("device", "number", "link_layer", "state", "rate_gbps", "numa_node", "interface", "driver")
INTERFACE = ("name", "kind", "is_up", "has_carrier", "speed_mbps", "master")


@frozen
class TopologyView:
    """The facts to show.

    Attributes:
        hardware: The node's parts.
        visible: Indices of the GPUs that CUDA_VISIBLE_DEVICES does not hide.
        assigned: The devices and CPUs of each process.
        notes: Notes for the reader.
    """

    hardware: Hardware
    visible: frozenset[int] = frozenset()
    assigned: tuple[Assigned, ...] = ()
    notes: tuple[str, ...] = ()


def take_view(host: Host, environ: Mapping[str, str], options: Options) -> TopologyView:
    """Return the parts of a node, and which of them each process of its plan has.

    If no job can be planned, the view has the parts alone and a note with the reason.

    Raises:
        UsageError: A flag or its variable is malformed.
    """
    hardware = read_hardware(host)
    visible = find_visible(environ, hardware)
    try:
        plan = plan_job(environ, host, options, ())
    except UsageError:
        raise
    except LauncherError as error:
        problems = [f"no ranks are shown: {redact(problem.what)}" for problem in error.problems]
        return TopologyView(hardware, visible, notes=tuple(problems))
    if not plan.processes:
        note = "no ranks are shown: ranks are assigned when the processes start"
        return TopologyView(hardware, visible, notes=(note,))
    each = int(options.number("gpus_per_process", 1))
    return TopologyView(hardware, visible, assign(plan, environ, hardware, each))


def render(view: TopologyView, form: str) -> str:
    """Return a view as ``text`` or ``json``."""
    return json.dumps(describe(view), indent=1) + "\n" if form == "json" else render_text(view)


def render_text(view: TopologyView) -> str:
    """Return the view for people: the matrix, then one table for each kind of part."""
    hardware = view.hardware
    blocks = [
        [headline(hardware)],
        _matrix(hardware),
        _gpus(view),
        _ports(hardware),
        _interfaces(hardware),
        _nodes(hardware),
        _processes(view.assigned),
        [f"note: {printable(note)}" for note in view.notes],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def headline(hardware: Hardware) -> str:
    """Return the hostname and the number of parts of each kind, in one line."""
    cpus = sum(len(node.cpus) for node in hardware.nodes)
    counts = [
        render_count(len(hardware.gpus), "GPU"),
        render_count(len(hardware.ports), "RDMA port"),
        render_count(len(hardware.nodes), "NUMA node"),
        render_count(cpus, "CPU"),
    ]
    return f"{printable(hardware.hostname)}: {', '.join(counts)}"


def _matrix(hardware: Hardware) -> list[str]:
    parts = hardware.parts
    if not parts:
        return []
    rows = [[distance(row, column) for column in parts] for row in parts]
    head = ["", *(part.label for part in parts), "NUMA"]
    lines = _table(head, [[p.label, *row, _or(p.numa_node)] for p, row in zip(parts, rows, strict=True)])
    used = {cell for row in rows for cell in row}
    legend = [f"  {word:<5} {meaning}" for word, meaning in MEANINGS.items() if word in used]
    if any(cell.startswith("NV") for cell in used):
        legend.insert(0, "  NV#   as many NVLinks, direct or through switches")
    return [*lines, "", f"  {SELF:<5} itself", *legend]


def _gpus(view: TopologyView) -> list[str]:
    gpus = view.hardware.gpus
    nodes = {part.gpu: part.numa_node for part in view.hardware.parts if part.gpu is not None}
    rows = [
        [
            f"GPU{gpu.index}",
            gpu.name or f"{gpu.vendor} GPU",
            "?" if gpu.memory_bytes is None else f"{gpu.memory_bytes / GIB:.0f} GiB",
            _or(gpu.address),
            _or(nodes[gpu]),
            show_links(gpu, gpus),
            show_state(gpu, gpu.index in view.visible),
            _or(gpu.uuid),
        ]
        for gpu in gpus
    ]
    return _table(["GPU", "name", "memory", "PCI", "NUMA", "NVLinks", "state", "UUID"], rows)


def show_links(gpu: GpuFacts, gpus: Sequence[GpuFacts]) -> str:
    """Return how many NVLinks of a GPU lead to switches and to each other GPU."""
    if gpu.links is None:
        return "?"
    names = {other.address: f"GPU{other.index}" for other in gpus if other.address}
    parts = [
        f"{link.count} to {names.get(link.address or '', link.to or '?')}"
        for link in gpu.links
        if link.to != "switch"
    ]
    switched = count_switched(gpu)
    return ", ".join([*([f"{switched} to switches"] if switched else []), *parts]) or "none"


def show_state(gpu: GpuFacts, is_visible: bool) -> str:
    """Return the notable state of a GPU; ``ok`` if there is none, ``?`` if its state is unknown."""
    words = [] if is_visible else ["hidden"]
    words += ["no ECC"] if gpu.has_ecc is False else []
    words += ["no spare rows left"] if gpu.remapping_failed else []
    words += ["needs a reset"] if gpu.needs_reset else []
    words += [reason for reason in gpu.throttle or () if reason != "idle"]
    known = any(fact is not None for fact in (gpu.has_ecc, gpu.throttle))
    return ", ".join(words) or ("ok" if known else "?")


def _ports(hardware: Hardware) -> list[str]:
    active = [port for port in hardware.ports if port.state == "ACTIVE"]  # of others the rate means nothing
    rates = {port: f"{port.rate_gbps:g} Gb/s" for port in active if port.rate_gbps is not None}
    rows = [
        [
            part.label,
            _or(part.port.link_layer),
            _or(part.port.state),
            rates.get(part.port, "?"),
            _or(part.path[-1] if part.path else None),
            _or(part.numa_node),
            _or(part.port.interface),
            _or(part.port.driver),
            "usable" if is_usable(part.port) else "not usable",
        ]
        for part in hardware.parts
        if part.port is not None
    ]
    head = ["port", "link", "state", "rate", "PCI", "NUMA", "interface", "driver", "as InfiniBand"]
    return _table(head, rows)


def _interfaces(hardware: Hardware) -> list[str]:
    """Return the table of the interfaces that have an address, without the loopback interface."""
    carriers = {None: "?", True: "up", False: "no carrier"}
    rows = [
        [
            interface.name,
            _or(interface.kind),
            "down" if interface.is_up is False else carriers[interface.has_carrier],
            "?" if interface.speed_mbps is None else f"{interface.speed_mbps / 1000:g} Gb/s",
            _several(show_addresses(interface)),
            _several(show_routes(interface, hardware)),
        ]
        for interface in hardware.interfaces
        if interface.addresses and not interface.is_loopback
    ]
    return _table(["interface", "kind", "state", "speed", "addresses", "leads to"], rows)


def show_addresses(interface: Interface) -> tuple[str, ...]:
    """Return addresses as ``10.0.0.4/24``, or without the prefix length if it is unknown."""
    return tuple(
        address if length is None else f"{address}/{length}" for address, length in interface.addresses
    )


def show_routes(interface: Interface, hardware: Hardware) -> tuple[str, ...]:
    """Return the networks that an interface leads to."""
    return next((networks for name, networks in hardware.routes if name == interface.name), ())


def _several(texts: Sequence[str]) -> str:
    rest = f" and {len(texts) - LISTED} more" if texts[LISTED:] else ""
    return ", ".join(texts[:LISTED]) + rest or "-"


def _nodes(hardware: Hardware) -> list[str]:
    rows = [
        [_or(node.number), str(len(node.cpus)), str(node.core_count), render_cpu_list(node.cpus) or "-"]
        for node in hardware.nodes
    ]
    return _table(["NUMA", "CPUs", "cores", "CPU list"], rows)


def _processes(assigned: Sequence[Assigned]) -> list[str]:
    rows = [
        [
            str(process.rank),
            str(process.local_rank),
            ", ".join(f"GPU{index}" for index in process.gpus) or "-",
            "not bound" if process.cpus is None else render_cpu_list(process.cpus),
            ", ".join(process.ports) or "-",
            _or(process.reach, "-"),
        ]
        for process in assigned
    ]
    return _table(["rank", "local", "GPU", "CPUs", "nearest ports", "distance"], rows)


def _or(value: object, unknown: str = "?") -> str:
    return unknown if value is None else str(value)


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return align([[printable(cell) for cell in row] for row in (head, *rows)]) if rows else []


def describe(view: TopologyView) -> dict[str, object]:
    """Return a view as a JSON object, with keys in a fixed order."""
    hardware = view.hardware
    parts = hardware.parts
    labels = {part.port: part.label for part in parts if part.port is not None}
    paths = {part.gpu: part.path for part in parts if part.gpu is not None}
    return {
        "version": VERSION,
        "launcher": __version__,
        "hostname": hardware.hostname,
        "numa_nodes": [
            {"node": node.number, "cpus": render_cpu_list(node.cpus), "cores": node.core_count}
            for node in hardware.nodes
        ],
        "gpus": [
            {**describe_gpu(gpu), "pci_path": list(paths[gpu]), "visible": gpu.index in view.visible}
            for gpu in hardware.gpus
        ],
        "ports": [
            {
                "label": labels[port],
                **{name: vars(port)[name] for name in PORT},
                "pci_path": list(port.pci_path),
                "usable": is_usable(port),
            }
            for port in hardware.ports
        ],
        "interfaces": [
            {
                **{name: vars(interface)[name] for name in INTERFACE},
                "addresses": list(show_addresses(interface)),
                "routes": list(show_routes(interface, hardware)),
            }
            for interface in hardware.interfaces
        ],
        "matrix": {
            "labels": [part.label for part in parts],
            "rows": [[distance(row, column) for column in parts] for row in parts],
        },
        "processes": [
            {
                "rank": process.rank,
                "local_rank": process.local_rank,
                "gpus": list(process.gpus),
                "cpus": None if process.cpus is None else render_cpu_list(process.cpus),
                "nearest_ports": list(process.ports),
                "distance": process.reach,
            }
            for process in view.assigned
        ],
        "notes": list(view.notes),
    }
