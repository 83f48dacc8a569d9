"""Expects a bandwidth from the hardware of the nodes, and judges the measured one by it.

An all-reduce crosses the border of each node once in each direction, whatever the number of its processes
(see `launcher.bandwidth.definitions`). So its bus bandwidth between nodes is at most the sum of one node's
ports, and the slowest node limits all nodes.
"""

from __future__ import annotations

from launcher.bandwidth.definitions import render_gbps
from launcher.core.environ import shorten
from launcher.core.frozen import frozen
from launcher.core.redact import redact
from launcher.machine.infiniband import Port, is_usable, read_ports
from launcher.machine.network import Interface, cluster_interface, read_interfaces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.machine.host import Host

GOOD = 0.75
"""From this fraction of the ports' rates on, the result is good: protocols, PCI and the CPU take the rest."""
GOOD_NVLINK = 0.65
"""The same for NVLinks: a ring of GPUs reaches three quarters of their rates at best."""
OTHER_FABRIC = 0.25
"""Below this fraction no port is merely slow: the traffic takes another way."""
TELLING_BYTES = 8 << 20
TELLING_S = 0.1
"""Samples that are both smaller and quicker than these show latency rather than bandwidth."""
IB_DISABLE, NET, P2P_DISABLE = "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_P2P_DISABLE"
SWITCHES = {IB_DISABLE: "the ports", NET: "the ports", P2P_DISABLE: "NVLinks"}
"""Variables that keep NCCL from hardware, and from which."""
INFINIBAND = "InfiniBand"
RDMA = "RDMA"
ETHERNET = "interface"
NVLINK = "NVLink"


@frozen
class Ways:
    """Hardware through which a node can talk.

    Attributes:
        name: Name of the node.
        port_gbps: Rate of each port that NCCL can use.
        port_kind: `INFINIBAND`, or `RDMA` for RoCE and EFA.
        interface: Name of the interface that leads to the other nodes.
        interface_gbps: Its speed; None if it is unknown or not believable.
        nvlink_gbps: Total rate of a GPU's NVLinks in one direction.
        hints: What keeps NCCL on this node from its ports or NVLinks.
    """

    name: str
    port_gbps: tuple[float, ...] = ()
    port_kind: str = INFINIBAND
    interface: str | None = None
    interface_gbps: float | None = None
    nvlink_gbps: float | None = None
    hints: tuple[str, ...] = ()


@frozen
class Expectation:
    """The bus bandwidth that the job should come near to.

    Attributes:
        gbps: None if unknown.
        of: Its origin: ``8 InfiniBand ports``, ``eth0``; without a number, why there is none.
        kind: `INFINIBAND`, `RDMA`, `ETHERNET`, `NVLINK`; empty without a number.
        notes: Unusual facts about the nodes: one has fewer ports than the others.
    """

    gbps: float | None
    of: str
    kind: str = ""
    notes: tuple[str, ...] = ()


@frozen
class Verdict:
    """The verdict on a measurement.

    Attributes:
        level: ``good``, ``slow``, ``other-fabric``, or ``unknown``.
        text: One line.
        hints: What to look at, one line each.
    """

    level: str
    text: str
    hints: tuple[str, ...] = ()


def read_ways(
    host: Host,
    environ: Mapping[str, str],
    name: str,
    master: str | None,
    read_nvlink_gbps: Callable[[], float | None] = lambda: None,
) -> Ways:
    """Read the hardware through which a node can talk.

    Args:
        host: The node.
        environ: The environment of a process of the job: the user's choice of an interface, NCCL's switches.
        name: Name of the node in reports.
        master: Address of rank 0: the interface towards it leads to all other nodes.
        read_nvlink_gbps: Returns the total rate of a GPU's NVLinks in one direction.
    """
    interfaces = read_interfaces(host)
    lead = _find_interface(host, interfaces, environ, master)
    ports, kind = choose_ports(read_ports(host), interfaces)
    return Ways(
        name=name,
        port_gbps=tuple(port.rate_gbps for port in ports if port.rate_gbps),
        port_kind=kind,
        interface=lead.name if lead else None,
        interface_gbps=believable_gbps(lead) if lead else None,
        nvlink_gbps=read_nvlink_gbps(),
        hints=read_hints(environ, ports),
    )


def _find_interface(
    host: Host, interfaces: Sequence[Interface], environ: Mapping[str, str], master: str | None
) -> Interface | None:
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        named = environ.get(variable, "").removeprefix("=")
        for interface in interfaces:
            if interface.name == named:
                return interface
    return cluster_interface(host, interfaces, master, ()) if master else None


def believable_gbps(interface: Interface) -> float | None:
    """Return the speed of a real interface; None for a virtual one, whose 10 Gb/s is only a claim."""
    is_hardware = interface.kind not in ("virtual", "bridge", "loopback")
    return interface.speed_mbps / 1000 if interface.speed_mbps and is_hardware else None


def choose_ports(ports: Sequence[Port], interfaces: Sequence[Interface]) -> tuple[tuple[Port, ...], str]:
    """Return the ports that NCCL would use, and their kind: InfiniBand, or else RoCE and EFA.

    The fast path of Azure's accelerated networking is an RDMA device too. It is recognized by its interface,
    which is a member of an ordinary one.
    """
    usable = tuple(port for port in ports if is_usable(port))
    if usable:
        return usable, INFINIBAND
    kinds = {interface.name: interface.kind for interface in interfaces}
    members = {
        interface.name
        for interface in interfaces
        if interface.master and kinds.get(interface.master) != "bond"
    }
    others = tuple(
        port
        for port in ports
        if port.state == "ACTIVE"
        and port.has_uverbs
        and (port.driver == "efa" or (port.link_layer == "Ethernet" and port.interface not in members))
    )
    return others, RDMA


def read_hints(environ: Mapping[str, str], ports: Sequence[Port]) -> tuple[str, ...]:
    """Return what visibly keeps NCCL from the hardware of this node, without secrets."""
    is_set = {name: environ.get(name, "0") not in ("", "0") for name in (IB_DISABLE, P2P_DISABLE)}
    is_set[NET] = environ.get(NET, "").lower() == "socket"
    hints = [
        f"{name}={shorten(redact(environ[name]))} is set: NCCL does not use {left}"
        for name, left in SWITCHES.items()
        if is_set[name]
    ]
    if any(port.has_uverbs is False for port in ports):
        hints.append(
            "/dev/infiniband is not in the container: docker run --device /dev/infiniband --cap-add IPC_LOCK"
        )
    return tuple(hints)


def plan_expectation(nodes: Sequence[Ways], backend: str, processes_per_node: int) -> Expectation:
    """Return the bus bandwidth that all processes together should come near to.

    Args:
        nodes: All nodes of the job.
        backend: ``nccl``, or ``gloo``, which can use only TCP.
        processes_per_node: Lowest number of processes on a node; each process drives a port of its own.
    """
    if len(nodes) == 1:
        return _expect_inside(nodes[0], backend)
    if backend == "gloo":
        return _slowest([_expect_interface(node) for node in nodes])
    return _slowest([_expect_ports(node, processes_per_node) for node in nodes], _compare_ports(nodes))


def _expect_inside(node: Ways, backend: str) -> Expectation:
    if backend == "nccl" and node.nvlink_gbps:
        return Expectation(node.nvlink_gbps, "a GPU's NVLinks", NVLINK)
    inside = "GPUs" if backend == "nccl" else "processes"
    return Expectation(None, f"one node: between its {inside}, no network is used")


def _expect_interface(node: Ways) -> Expectation:
    if node.interface is None:
        return Expectation(None, f"{node.name} does not tell which interface leads to the others")
    if node.interface_gbps is None:
        return Expectation(None, f"{node.interface} of {node.name} does not tell its speed")
    return Expectation(node.interface_gbps, node.interface, ETHERNET)


def _expect_ports(node: Ways, processes_per_node: int) -> Expectation:
    if not node.port_gbps:
        return _expect_interface(node)
    used = sorted(node.port_gbps, reverse=True)[:processes_per_node]
    of = f"{len(used)} {node.port_kind} port{'s' if len(used) > 1 else ''}"
    if len(used) < len(node.port_gbps):
        of += f" of {len(node.port_gbps)}, one for each process"
    return Expectation(sum(used), of, node.port_kind)


def _compare_ports(nodes: Sequence[Ways]) -> tuple[str, ...]:
    """Return a line for each node that has fewer ports than the best."""
    most = max(nodes, key=lambda node: len(node.port_gbps))
    return tuple(
        f"{node.name} has {len(node.port_gbps) or 'no'} usable {most.port_kind} "
        f"port{'' if len(node.port_gbps) == 1 else 's'}, {most.name} has {len(most.port_gbps)}: "
        "all nodes go at the pace of the slowest"
        for node in nodes
        if len(node.port_gbps) < len(most.port_gbps)
    )


def _slowest(nodes: Sequence[Expectation], notes: tuple[str, ...] = ()) -> Expectation:
    unknown = [node for node in nodes if node.gbps is None]
    slowest = unknown[0] if unknown else min(nodes, key=lambda node: node.gbps or 0)
    return Expectation(slowest.gbps, slowest.of, slowest.kind, notes)


def judge(bus_gbps: float, is_telling: bool, expectation: Expectation, hints: Sequence[str] = ()) -> Verdict:
    """Return the verdict on the best bus bandwidth that was measured.

    Args:
        bus_gbps: The best over all sizes.
        is_telling: Whether the sizes were large enough to show bandwidth; see `is_telling`.
        expectation: The expected bandwidth.
        hints: Possible reasons for a slow result, from the nodes.
    """
    got = render_gbps(bus_gbps)
    if bus_gbps == 0:
        return Verdict("unknown", "one process: nothing travels; start two or more")
    if expectation.gbps is None:
        return Verdict("unknown", f"{got} Gb/s: nothing to compare with ({expectation.of})")
    of = f"{got} of {render_gbps(expectation.gbps)} Gb/s"
    fraction = bus_gbps / expectation.gbps
    if fraction >= (GOOD_NVLINK if expectation.kind == NVLINK else GOOD):
        return Verdict("good", f"{of}: as it should be", expectation.notes)
    if not is_telling:
        return Verdict("unknown", f"{of}: too little data to tell; --max-bytes 1G", expectation.notes)
    told = PROOFS.get(expectation.kind)
    if fraction < OTHER_FABRIC and told:
        look = (*expectation.notes, *hints, f"see NCCL's {told} for what it uses: NCCL_DEBUG=INFO")
        return Verdict("other-fabric", f"{of}: this is not {expectation.kind}", look)
    look = (*expectation.notes, *hints, *KIND_HINTS.get(expectation.kind, ()), PAIRS_HINT)
    return Verdict("slow", f"{of}: slower than it should be", look)


PROOFS = {INFINIBAND: "NET/ lines", RDMA: "NET/ lines", NVLINK: "lines with via P2P, or via SHM"}
"""The lines in which NCCL itself says which way it takes."""
PORT_HINTS = (
    "GPUDirect RDMA: NCCL_DEBUG=INFO says GDRDMA where it is used; without it, load nvidia-peermem",
)
KIND_HINTS = {
    INFINIBAND: PORT_HINTS,
    RDMA: PORT_HINTS,
    NVLINK: ("links that are down, GPUs that are slowed down: nvidia-smi nvlink -s, launcher check",),
}
PAIRS_HINT = "which node or link it is: --pairs"


def is_telling(size_bytes: int, time_s: float) -> bool:
    """Whether the largest size was large enough, or took long enough, to show bandwidth."""
    return size_bytes >= TELLING_BYTES or time_s >= TELLING_S
