"""Reads all parts of a node and the distances between them, for ``launcher topology``."""

from __future__ import annotations

from launcher.core.frozen import frozen, replace
from launcher.machine.infiniband import read_ports
from launcher.machine.network import read_interfaces, read_routes
from launcher.machine.numa import PCI_DEVICES, parse_pci_path, read_layout
from launcher.machine.nvml import read_amd_gpus, read_gpu_facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from launcher.core.model import Layout
    from launcher.machine.host import Host
    from launcher.machine.infiniband import Port
    from launcher.machine.network import Interface
    from launcher.machine.nvml import GpuFacts, NvLink

SELF, PIX, PXB, PHB, NODE, SYS, UNKNOWN = "X", "PIX", "PXB", "PHB", "NODE", "SYS", "?"
MEANINGS = {
    PIX: "one PCI switch between them",
    PXB: "several PCI switches between them",
    PHB: "the same PCI host bridge",
    NODE: "the same NUMA node; no shared host bridge that /sys shows",
    SYS: "another NUMA node",
    UNKNOWN: "not known",
}
"""Distances in the PCI tree, from near to far, as ``nvidia-smi topo -m`` names them, with their meanings."""
NEAREST = tuple(MEANINGS)


@frozen
class NumaNode:
    """A NUMA node and those of its CPUs that we may use.

    Attributes:
        number: Its number; None if the kernel reports no NUMA nodes.
        cpus: CPUs that we may use.
        core_count: Number of their physical cores, fewer than CPUs if cores have several threads.
    """

    number: int | None
    cpus: tuple[int, ...] = ()
    core_count: int = 0


@frozen
class Part:
    """A GPU or a port in the distance matrix, with its place in the PCI tree.

    Attributes:
        label: ``GPU0``; ``mlx5_0``, or ``mlx5_0:2`` if the device has several ports.
        path: Its path in the PCI tree; empty if unknown.
        numa_node: Its NUMA node; None if unknown.
        gpu, port: The GPU or the port; the other one is None.
    """

    label: str
    path: tuple[str, ...] = ()
    numa_node: int | None = None
    gpu: GpuFacts | None = None
    port: Port | None = None


@frozen
class Hardware:
    """A node's parts.

    Attributes:
        hostname: The node's own name.
        nodes: NUMA nodes, by number.
        gpus: Exposed GPUs: NVIDIA's in the order of PCI addresses, then AMD's.
        ports: Ports of RDMA devices, InfiniBand or not.
        interfaces: Network interfaces.
        routes: (interface, networks that it leads to).
        paths: (address of a GPU, its path in the PCI tree).
    """

    hostname: str
    nodes: tuple[NumaNode, ...] = ()
    gpus: tuple[GpuFacts, ...] = ()
    ports: tuple[Port, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    routes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    paths: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """GPUs, then ports, in the order of the matrix."""
        paths: dict[str | None, tuple[str, ...]] = dict(self.paths)
        gpus = [
            Part(f"GPU{gpu.index}", paths.get(gpu.address, ()), self._node(gpu.numa_node), gpu=gpu)
            for gpu in self.gpus
        ]
        return (*gpus, *(self._port(port) for port in self.ports))

    def _port(self, port: Port) -> Part:
        several = sum(other.device == port.device for other in self.ports) > 1
        label = f"{port.device}:{port.number}" if several else port.device
        return Part(label, port.pci_path, self._node(port.numa_node), port=port)

    def _node(self, node: int | None) -> int | None:
        """Return a device's NUMA node; if there is only one, that one, whatever the device reports."""
        return self.nodes[0].number if len(self.nodes) == 1 else node


def read_hardware(host: Host) -> Hardware:
    """Return the parts of a node. Slow: asks NVML, and opens several files of each device."""
    nvidia = read_gpu_facts(host)
    amd = [replace(gpu, index=len(nvidia) + gpu.index) for gpu in read_amd_gpus(host)]
    gpus, ports = (*nvidia, *amd), read_ports(host)
    return Hardware(
        hostname=host.hostname(),
        nodes=_nodes(read_layout(host, name_gpus=False), gpus, ports),
        gpus=gpus,
        ports=ports,
        interfaces=read_interfaces(host),
        routes=tuple(read_routes(host).items()),
        paths=tuple((gpu.address, _read_path(host, gpu.address)) for gpu in gpus if gpu.address),
    )


def _read_path(host: Host, address: str) -> tuple[str, ...]:
    path = parse_pci_path(host.read_link(f"{PCI_DEVICES}/{address}") or "")
    return path if path[-1:] == (address,) else ()


def _nodes(layout: Layout, gpus: Iterable[GpuFacts], ports: Iterable[Port]) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes with CPUs that we may use, and those with a GPU or a port.

    If the CPUs' node is unknown and all devices name the same node, the CPUs belong to that one.
    """
    cpus: dict[int | None, list[int]] = {}
    cores: dict[int | None, int] = {}
    for core in layout.cores:
        cpus.setdefault(core.node, []).extend(core.cpus)
        cores[core.node] = cores.get(core.node, 0) + 1
    told = [gpu.numa_node for gpu in gpus] + [port.numa_node for port in ports]
    named = {node for node in told if node is not None}
    if set(cpus) == {None} and len(named) == 1:
        only = named.pop()
        cpus, cores = {only: cpus[None]}, {only: cores[None]}
    for node in named:
        cpus.setdefault(node, [])
    order = sorted(cpus, key=lambda node: -1 if node is None else node)
    return tuple(NumaNode(node, tuple(sorted(cpus[node])), cores.get(node, 0)) for node in order)


def distance(a: Part, b: Part) -> str:
    """Return the distance between two parts, in the notation of ``nvidia-smi topo -m``.

    ``NV4`` means four NVLinks between two GPUs, also through a switch; otherwise see `relate`.
    """
    if a == b:
        return SELF
    if a.gpu is not None and b.gpu is not None:
        links = count_links(a.gpu, b.gpu)
        if links:
            return f"NV{links}"
    return relate(a.path, a.numa_node, b.path, b.numa_node)


def relate(a: tuple[str, ...], a_node: int | None, b: tuple[str, ...], b_node: int | None) -> str:
    """Return the distance between two devices, by their paths in the PCI tree and their NUMA nodes.

    /sys shows each port of a switch as a bridge. So two devices at one switch have at most two path entries
    each below their shared path: the bridge and the device itself.
    """
    shared = 0
    while shared < min(len(a), len(b)) and a[shared] == b[shared]:
        shared += 1
    if shared > 1:
        return PIX if max(len(a), len(b)) - shared <= 2 else PXB
    if shared == 1:
        return PHB
    if a_node is None or b_node is None:
        return UNKNOWN
    return NODE if a_node == b_node else SYS


def count_links(a: GpuFacts, b: GpuFacts) -> int:
    """Return the number of NVLinks between two GPUs: direct ones, or else the fewer links to switches."""
    direct = sum(link.count for link in a.links or () if is_link_between(link, b))
    return direct or min(count_switched(a), count_switched(b))


def is_link_between(link: NvLink, other: GpuFacts) -> bool:
    """Whether links lead directly to another GPU."""
    return link.to != "switch" and link.address is not None and link.address == other.address


def count_switched(gpu: GpuFacts) -> int:
    """Return the number of NVLinks from a GPU to switches."""
    return sum(link.count for link in gpu.links or () if link.to == "switch")
