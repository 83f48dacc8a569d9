"""What a choice of fabric rests on: values, and questions about them; see `launcher.fabrics.reading`."""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.machine.infiniband import Port, is_usable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.core.model import Gpu
    from launcher.machine.azure_vm import Vm
    from launcher.machine.network import Interface

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
    """What this node has, as far as its fabric goes.

    Attributes:
        ports: Of all RDMA devices.
        interfaces: Of the network namespace.
        interface: Name of the interface that leads to the other nodes; None if that cannot be told.
        why_interface: How that is known, or why it is not.
        vm: The VM of Azure, as far as it is known.
        is_azure: Whether it is certainly one.
        plugins: Paths of what NCCL could load, the loader's first choice of each name.
        strays: Plugins that are there, but where the loader does not look.
        configured: What NCCL's own configuration files set: the user's word, as variables are.
        topologies: Files that exist for the family of the VM.
        gpus: The exposed GPUs, as far as known; read only where a topology file may name them.
        has_topologyd: Whether NCCL finds a topology file by itself.
        has_imex: Whether a channel for NVLink between nodes is exposed to us; read only for VMs that have it.
        mpi_chooses: Whether a file of Open MPI's says which interfaces it takes.
        environ: The environment of the launcher.
    """

    ports: tuple[Port, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    interface: str | None = None
    why_interface: str = ""
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

    def told(self, name: str) -> str | None:
        """Return what the user set a variable to, as NCCL would see it; None where unset."""
        value = self.environ.get(name)
        if value:
            return value
        return next((item.value for item in self.configured if item.name == name), None)

    def net_plugin(self) -> str | None:
        """Return the net plugin that NCCL would load; None without one."""
        wanted = self.told("NCCL_NET_PLUGIN")
        if wanted and "/" in wanted:
            return wanted
        names = (wanted, f"libnccl-net-{wanted}.so") if wanted else ("libnccl-net.so",)
        by_name = {path.rpartition("/")[2]: path for path in self.plugins}
        return next((by_name[name] for name in names if name in by_name), None)

    def reachable(self, ports: Sequence[Port]) -> tuple[Port, ...]:
        """Return the ports whose device file is exposed to us; without it no program can use one."""
        return tuple(port for port in ports if port.has_uverbs is not False)


def infiniband_ports(facts: Facts) -> tuple[Port, ...]:
    """Return the active InfiniBand ports, exposed or not."""
    return tuple(port for port in facts.ports if is_usable(port))


def efa_ports(facts: Facts) -> tuple[Port, ...]:
    """Return the active ports of AWS's Elastic Fabric Adapter."""
    return tuple(port for port in facts.ports if port.driver == "efa" and port.state == "ACTIVE")


def ethernet_ports(facts: Facts) -> tuple[Port, ...]:
    """Return the active ports with link layer Ethernet, those of accelerated networking among them."""
    return tuple(
        port
        for port in facts.ports
        if port.link_layer == "Ethernet" and port.state == "ACTIVE" and port.driver != "efa"
    )


def roce_ports(facts: Facts) -> tuple[Port, ...]:
    """Return the active ports with link layer Ethernet that a job can use for RDMA.

    Not one that is the fast path of an ordinary interface (accelerated networking, its ``master`` is
    the interface with the address and no bond), none on Azure, which has no RoCE between VMs, and none
    in software (rxe, siw), which is slower than TCP.
    """
    if facts.is_azure:
        return ()
    return tuple(
        port for port in ethernet_ports(facts) if port.pci_path and not is_accelerated_networking(facts, port)
    )


def is_accelerated_networking(facts: Facts, port: Port) -> bool:
    """Whether a port is the fast path of an interface that Hyper-V gives a VM."""
    by_name = {item.name: item for item in facts.interfaces}
    below = by_name.get(port.interface or "")
    above = by_name.get(below.master) if below is not None and below.master else None
    return above is not None and above.kind == "ethernet"
