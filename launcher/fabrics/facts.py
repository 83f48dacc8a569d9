"""Facts on which the choice of a fabric rests, and what a fabric finds."""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.machine.infiniband import Port

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.core.model import Gpu
    from launcher.machine.azure_sizes import VmKind
    from launcher.machine.azure_vm import Vm
    from launcher.machine.network import Interface

ELSEWHERE = "start the job on nodes that have it, or leave the flag out"
"""The fix for hardware that is not there."""
IMEX_CHANNELS = "/dev/nvidia-caps-imex-channels"


@frozen
class Configured:
    """A variable that one of NCCL's configuration files sets, and the file."""

    name: str
    value: str
    path: str


@frozen
class TopologyFile:
    """A topology (or graph) file for NCCL, and the PCI addresses that it names, in lower case."""

    path: str
    addresses: frozenset[str] = frozenset()


@frozen
class Facts:
    """Facts about this node that matter for its fabric.

    Attributes:
        ports: Ports of all RDMA devices.
        interfaces: Interfaces of the network namespace.
        interface: Name of the interface that leads to the other nodes; None if unknown.
        why_interface: How that is known, or why it is not.
        default_interfaces: Interfaces with a default route; read only if there are several ports.
        gpu_paths: Places of the machine's GPUs in the PCI tree, exposed or not; read with these.
        vm: The Azure VM, as far as it is known.
        is_azure: Whether this is certainly an Azure VM.
        plugins: Paths of plugins that NCCL could load; for each name the one that the loader finds first.
        strays: Plugins in folders that the loader does not search.
        configured: Variables in NCCL's own configuration files; like environment variables they are the
            user's.
        topologies: Existing files for the family of the VM.
        gpus: The exposed GPUs, as far as known; read only if a topology file may name them.
        has_topologyd: Whether NCCL finds a topology file by itself.
        has_imex: Whether a channel for NVLink between nodes is exposed to us; read only on VMs that have one.
        mpi_chooses: Whether a file of Open MPI says which interfaces its ranks use.
        environ: The environment of the launcher.
    """

    ports: tuple[Port, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    interface: str | None = None
    why_interface: str = ""
    default_interfaces: frozenset[str] = frozenset()
    gpu_paths: tuple[tuple[str, ...], ...] = ()
    vm: Vm | None = None
    is_azure: bool = False
    plugins: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    configured: tuple[Configured, ...] = ()
    topologies: tuple[TopologyFile, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    has_topologyd: bool = False
    has_imex: bool = False
    mpi_chooses: bool = False
    environ: Mapping[str, str] = {}

    @property
    def kind(self) -> VmKind | None:
        """What all VMs of this one's size have; None if that is unknown."""
        return self.vm.kind if self.vm else None

    @property
    def vm_name(self) -> str:
        """The name of the VM's size; empty if it is unknown."""
        return self.vm.name if self.vm else ""

    def told(self, name: str) -> str | None:
        """Return the user's value of a variable, as NCCL would see it; None if unset."""
        configured = (item.value for item in self.configured if item.name == name)
        return self.environ.get(name) or next(configured, None)

    def net_plugin(self) -> str | None:
        """Return the net plugin that NCCL would load; None if there is none."""
        wanted = self.told("NCCL_NET_PLUGIN")
        if wanted and "/" in wanted:
            return wanted
        names = (wanted, f"libnccl-net-{wanted}.so") if wanted else ("libnccl-net.so",)
        by_name = {path.rpartition("/")[2]: path for path in self.plugins}
        return next((by_name[name] for name in names if name in by_name), None)

    def reachable(self, ports: Sequence[Port]) -> tuple[Port, ...]:
        """Return the ports whose device file is exposed to us; without it no program can use a port."""
        return tuple(port for port in ports if port.has_uverbs is not False)


@frozen
class Found:
    """Whether a fabric can be used here.

    Attributes:
        is_here: Whether it can be used.
        why: Evidence for it, or what is missing.
        ports: Ports to use.
        has_hardware: Whether its hardware is here, usable or not.
        fix: What would make it usable; empty if neither we nor the user can do that.
        notes: Unusual facts about it.
        doubt: Why no list of its ports is set; empty if one is.
    """

    is_here: bool
    why: str
    ports: tuple[Port, ...] = ()
    has_hardware: bool = False
    fix: str = ""
    notes: tuple[str, ...] = ()
    doubt: str = ""


@frozen
class Wish:
    """The fabric that the user forces, and the one that the user requires; empty for none."""

    forced: str = ""
    forced_origin: str = ""
    required: str = ""
    required_origin: str = ""


def unusable(why: str, fix: str = "") -> Found:
    """Return that hardware is here, but cannot be used."""
    return Found(False, why, has_hardware=True, fix=fix)


def count(ports: tuple[Port, ...], kind: str) -> str:
    """Return e.g. ``8 active InfiniBand ports of 400 Gb/s``."""
    rates = sorted({port.rate_gbps for port in ports if port.rate_gbps is not None})
    of = f" of {' and '.join(f'{rate:g}' for rate in rates)} Gb/s" if rates else ""
    return f"{len(ports)} active {kind} port{'s' if len(ports) != 1 else ''}{of}"


def name_ports(ports: tuple[Port, ...]) -> str:
    """Return e.g. ``mlx5_0:1,mlx5_1:1``, as NCCL and UCX name ports."""
    return ",".join(f"{port.device}:{port.number}" for port in ports)


def efa_ports(facts: Facts) -> tuple[Port, ...]:
    """Return the active ports of AWS's Elastic Fabric Adapter."""
    return tuple(port for port in facts.ports if port.driver == "efa" and port.state == "ACTIVE")


def ethernet_ports(facts: Facts) -> tuple[Port, ...]:
    """Return the active ports with link layer Ethernet, including those of accelerated networking."""
    return tuple(
        port
        for port in facts.ports
        if port.link_layer == "Ethernet" and port.state == "ACTIVE" and port.driver != "efa"
    )


def is_accelerated_networking(facts: Facts, port: Port) -> bool:
    """Whether a port is the fast path of an interface that Hyper-V gives a VM."""
    by_name = {item.name: item for item in facts.interfaces}
    below = by_name.get(port.interface or "")
    above = by_name.get(below.master) if below is not None and below.master else None
    return above is not None and above.kind == "ethernet"
