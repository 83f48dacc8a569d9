"""Facts on which the choice of a fabric rests: ports, interfaces, plugins, files of NCCL and of Open MPI.

A fabric finds a `Found` in them.
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.mpi import OPEN_MPI
from launcher.machine import network
from launcher.machine.azure import Vm, VmKind, ask_vm, is_azure, read_vm
from launcher.machine.infiniband import Port, is_usable, read_ports
from launcher.machine.libraries import NCCL_PLUGINS, find_libraries, list_libraries
from launcher.machine.network import DEFAULT, Interface, leads_out, read_interfaces
from launcher.machine.numa import read_gpu_paths, read_gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.core.model import Gpu
    from launcher.machine.host import Host

ELSEWHERE = "start the job on nodes that have it, or leave the flag out"
"""The fix for hardware that is not there."""
IMEX_CHANNELS = "/dev/nvidia-caps-imex-channels"
OFI_FOLDERS = (
    *("/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu"),
    *("/opt/amazon/aws-ofi-nccl/lib", "/opt/aws-ofi-nccl/lib", "/opt/aws-ofi-nccl/install/lib"),
)
"""Folders in which AWS's installers and images put the plugin."""
LINK_LOCAL = ("fe80:", "169.254.")
TOPOLOGYD = "/var/run/nvidia-topologyd"
"""Folder from which NCCL takes a topology file by itself, if there is one."""
KUBERNETES = "KUBERNETES_SERVICE_HOST"


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
        kind: What all Azure VMs of this one's size have; None if that is unknown.
        vm_name: The name of the VM's size; empty if it is unknown.
        is_azure: Whether this is certainly an Azure VM.
        plugins: Paths of plugins that NCCL could load; for each name the one that the loader finds first.
        strays: Plugins in directories that the loader does not search.
        configured: Variables in NCCL's own configuration files, each with its value and its file; like
            environment variables they are the user's.
        topologies: Paths of existing topology and graph files for the family of the VM, and the PCI addresses
            in each, in lower case.
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
    kind: VmKind | None = None
    vm_name: str = ""
    is_azure: bool = False
    plugins: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    configured: Mapping[str, tuple[str, str]] = {}
    topologies: Mapping[str, frozenset[str]] = {}
    gpus: tuple[Gpu, ...] = ()
    has_topologyd: bool = False
    has_imex: bool = False
    mpi_chooses: bool = False
    environ: Mapping[str, str] = {}

    def told(self, name: str) -> str | None:
        """Return the user's value of a variable, as NCCL would see it; None if unset."""
        return self.environ.get(name) or self.configured.get(name, (None,))[0]

    def net_plugin(self) -> str | None:
        """Return the net plugin that NCCL would load; None if there is none."""
        wanted = self.told("NCCL_NET_PLUGIN")
        if wanted and "/" in wanted:
            return wanted
        names = (wanted, f"libnccl-net-{wanted}.so") if wanted else ("libnccl-net.so",)
        by_name = {path.rpartition("/")[2]: path for path in self.plugins}
        return next((by_name[name] for name in names if name in by_name), None)

    def ethernet_ports(self) -> tuple[Port, ...]:
        """Return the active ports with link layer Ethernet, including those of accelerated networking."""
        active = (port for port in self.ports if port.state == "ACTIVE" and port.driver != "efa")
        return tuple(port for port in active if port.link_layer == "Ethernet")

    def above(self, name: str | None) -> Interface | None:
        """Return the interface that an interface is a member of; None if it is none's."""
        by_name = {item.name: item for item in self.interfaces}
        return by_name.get(by_name[name].master or "") if name in by_name else None

    def is_fast_path(self, port: Port) -> bool:
        """Whether a port is the fast path of an interface of Hyper-V's (accelerated networking)."""
        above = self.above(port.interface)
        return above is not None and above.kind == "ethernet"

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


def unusable(why: str, fix: str = "") -> Found:
    """Return that hardware is here, but cannot be used."""
    return Found(False, why, has_hardware=True, fix=fix)


def find_hidden(ports: tuple[Port, ...], kind: str, fix: str) -> Found:
    """Return that ports are here, but none is exposed to us."""
    return unusable(f"{count(ports, kind)}, but their /dev/infiniband/uverbs* are not exposed to us", fix)


def count(ports: tuple[Port, ...], kind: str) -> str:
    """Return e.g. ``8 active InfiniBand ports of 400 Gb/s``."""
    rates = sorted({port.rate_gbps for port in ports if port.rate_gbps is not None})
    of = f" of {' and '.join(f'{rate:g}' for rate in rates)} Gb/s" if rates else ""
    return f"{len(ports)} active {kind} port{'s' if len(ports) != 1 else ''}{of}"


def name_ports(ports: tuple[Port, ...]) -> str:
    """Return e.g. ``mlx5_0:1,mlx5_1:1``, as NCCL and UCX name ports."""
    return ",".join(f"{port.device}:{port.number}" for port in ports)


def read_facts(
    host: Host, environ: Mapping[str, str], own: str = "", peers: Sequence[str] = (), *, ask: bool = False
) -> Facts:
    """Read the facts for the choice of a fabric.

    Args:
        host: The machine, or a recorded one.
        environ: The environment of the launcher.
        own: This node in the job's list of hosts; empty if unknown.
        peers: The address of rank 0, empty if unknown, and the other nodes, as far as known.
        ask: Whether Azure's metadata service may be asked for the size of the VM.
    """
    ports, interfaces = read_ports(host), read_interfaces(host)
    certain, vm = is_azure(host, environ), read_vm(environ)
    if vm is None and ask and certain and any(map(is_usable, ports)) and not environ.get(KUBERNETES):
        vm = ask_vm(host)  # a query that only a port makes worth its time
    kind, topologies, has_several = vm.kind if vm else None, read_topologies(host, vm), len(ports) > 1
    routes = network.read_routes(host) if has_several else {}
    interface, why = choose_interface(host, interfaces, own, peers)
    plugins = find_libraries(host, environ, NCCL_PLUGINS)
    folders = OFI_FOLDERS if any(port.driver == "efa" for port in ports) else ()
    beside = [path for folder in folders for path in list_libraries(host, folder, ("libnccl-net",))]
    return Facts(
        ports=ports,
        interfaces=interfaces,
        interface=interface,
        why_interface=why,
        kind=kind,
        vm_name=vm.name if vm else "",
        is_azure=certain,
        plugins=plugins,
        strays=tuple(path for path in beside if path not in plugins),
        configured=read_configured(host, environ),
        has_topologyd=bool(host.list_folder(TOPOLOGYD)),
        mpi_chooses=read_mpi_choice(host, environ),
        environ=environ,
        topologies=topologies,
        gpus=read_gpus(host, name_gpus=False) if topologies or (kind and kind.switches) else (),
        has_imex=kind is not None and kind.has_imex and bool(host.list_folder(IMEX_CHANNELS)),
        default_interfaces=frozenset(name for name, networks in routes.items() if DEFAULT in networks),
        gpu_paths=read_gpu_paths(host) if has_several else (),
    )


def read_variables(host: Host, environ: Mapping[str, str], ports: Sequence[Port]) -> Facts:
    """Return only the facts against which the user's variables are checked."""
    configured = read_configured(host, environ)
    return Facts(ports=tuple(ports), interfaces=read_interfaces(host), configured=configured, environ=environ)


def read_mpi_choice(host: Host, environ: Mapping[str, str]) -> bool:
    """Whether we are a rank of Open MPI, and one of its files says which interfaces ranks use.

    It reads only files that can be found without asking Open MPI: in its usual places, its prefix, the home.
    """
    if OPEN_MPI.rank[0] not in environ:
        return False
    below = [f"{prefix}/etc/openmpi-mca-params.conf" for prefix in ("", environ.get("OPAL_PREFIX", ""))]
    files = ("/etc/openmpi/openmpi-mca-params.conf", *below, f"{host.home()}/.openmpi/mca-params.conf")
    lines = [line for path in files for line in (host.read_text(path) or "").splitlines()]
    return any(line.strip().startswith("btl_tcp_if_") for line in lines)


def choose_interface(
    host: Host, interfaces: Sequence[Interface], own: str = "", peers: Sequence[str] = ()
) -> tuple[str | None, str]:
    """Return the interface that leads to the other nodes of the job, and how that is known.

    ``own`` and ``peers`` are those of `read_facts`. Names are looked up only if there is a choice: a name
    that does not resolve yet would cost seconds.
    """
    if peers and (peers[0] in ("::1", "localhost") or peers[0].startswith("127.")):
        return None, f"the job meets at {peers[0]}, on this machine"
    alive = [item for item in interfaces if _may_lead_out(item)]
    if not alive:
        return None, "no interface with an address leads out of this machine"
    if len(alive) == 1:
        return alive[0].name, "the only interface that leads to other nodes"
    known = [peer for peer in peers if peer]
    found = network.cluster_interface(host, alive, own or None, known)
    if found is None:
        names = ", ".join(item.name for item in alive)
        return None, f"unknown which of {names} leads to the other nodes"
    if own in [address for address, _ in found.addresses]:
        return found.name, f"it has {own}, this node in the list of hosts"
    return found.name, f"it leads to {known[0] if known else own}"


def _may_lead_out(interface: Interface) -> bool:
    """Whether an interface may reach other nodes: it is up, has a carrier, and an address beyond its link."""
    has_address = any(not address.startswith(LINK_LOCAL) for address, _ in interface.addresses)
    is_alive = interface.is_up is not False and interface.has_carrier is not False
    return is_alive and has_address and leads_out(interface)


def read_configured(host: Host, environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the variables that NCCL's configuration files set, each with its value and its file.

    NCCL reads $NCCL_CONF_FILE (older versions: ~/.nccl.conf), then /etc/nccl.conf, and sets only what is not
    set yet. We read all three files, because the user meant what is in any of them.
    """
    paths = (environ.get("NCCL_CONF_FILE", ""), f"{host.home()}/.nccl.conf", "/etc/nccl.conf")
    found: dict[str, tuple[str, str]] = {}
    for path in paths:
        for name, value in parse_conf(host.read_text(path) or "" if path else ""):
            found.setdefault(name, (value, path))
    return found


def parse_conf(text: str) -> list[tuple[str, str]]:
    """Return the (name, value) pairs of a configuration file, as NCCL's src/misc/param.cc reads them.

    A line is NAME=VALUE. A line that begins with ``#``, has no ``=``, or has no valid name is ignored.
    Nothing is stripped.
    """
    lines = text.split("\n")[:1000]
    pairs = [line.partition("=") for line in lines if not line.startswith("#")]
    return [(name, value) for name, equals, value in pairs if equals and name.isidentifier()]


def read_topologies(host: Host, vm: Vm | None) -> dict[str, frozenset[str]]:
    """Return the existing topology and graph files for the family of a VM, in the order of folders."""
    if vm is None or vm.kind is None or not vm.kind.family:
        return {}
    names = [f"{vm.kind.family}{between}{kind}.xml" for between in "-/" for kind in ("topo", "graph")]
    paths = [f"{folder}/{name}" for folder in ("/opt/microsoft", "/etc/topology") for name in names]
    return {path: parse_bus_ids(text) for path in paths if (text := host.read_text(path))}


def parse_bus_ids(text: str) -> frozenset[str]:
    """Return the PCI addresses in a topology file, in lower case."""
    return frozenset(part.partition('"')[0] for part in text.lower().split('busid="')[1:])
