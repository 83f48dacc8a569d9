"""The settings of a fabric (``settings.txt``), and TCP, which all fabrics need for the first contact.

TCP is the fabric if nothing better is here, or if the user asks for it. NCCL uses any active RDMA port over
Ethernet as RoCE. If that port is the fast path of a hypervisor's interface, no other node answers there, and
the job hangs or fails. So RDMA is switched off if it certainly leads nowhere, or if the user asks for TCP.
UCX would use such a port too. Its list of devices is enough to keep it from all others. UCX_TLS would have to
name the transports inside a node as well, and UCX complains about transports that it was built without.

A rank of MPI gets the interface for its own TCP connections, too. Open MPI's ranks try every interface that
both ends have. docker0 has the same address on all nodes, so a connection to it ends at the node itself.
libfabric takes the first interface. mpirun itself is already running when we could tell it anything
(``--engine mpirun`` tells it: see `launcher.engines.dialects`).

Source: NCCL "Environment Variables" (NCCL_SOCKET_IFNAME: a list of prefixes, exact after ``=``; by default
ib* comes first, then any but docker*, lo and virbr*), PyTorch "torch.distributed" (Common environment
variables: GLOO_SOCKET_IFNAME, names without prefixes or ``^``), TensorPipe (TP_SOCKET_IFNAME); Open MPI "TCP"
(btl_tcp_if_include, btl_tcp_if_exclude: one of the two, in variables or files); libfabric fi_tcp(7)
(FI_TCP_IFACE) and fabric(7) (FI_PROVIDER); NCCL_IB_DISABLE, NCCL_NET; UCX "Frequently Asked Questions"
(UCX_NET_DEVICES, UCX_TLS).
"""

from __future__ import annotations

from launcher.core.blocks import read_rows
from launcher.core.mpi import HYDRA, OPEN_MPI
from launcher.fabrics.facts import Facts, Found, name_ports
from launcher.fabrics.plugins import find_named
from launcher.fabrics.topology_file import plan_family

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = read_rows("fabrics/settings.txt")
SYNTAX = frozenset(",^=")
"""Characters that the kernel accepts in an interface's name, but that have a meaning in these variables."""
EXCLUDE = "OMPI_MCA_btl_tcp_if_exclude"
GCP = "gcp"


def plan_settings(facts: Facts, fabric: str, found: Found, forced: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and reason of each variable that a fabric needs, and of those of Azure's VM.

    Args:
        facts: Facts about this node.
        fabric: Name of the fabric.
        found: The fabric as it was found here.
        forced: The flag that forces the fabric; empty for none.
    """
    interface = facts.interface if facts.interface and SYNTAX.isdisjoint(facts.interface) else ""
    others = [item.name for item in facts.interfaces if item.addresses and not item.is_loopback]
    mpi = _find_mpi(facts) if len(others) > 1 else ""
    plugin, path = find_named(facts)
    known = {
        "interface": interface,
        "why_interface": facts.why_interface,
        "others": ", ".join(others),
        "of_open_mpi": interface if mpi == OPEN_MPI.name else "",
        "of_hydra": interface if mpi == HYDRA.name else "",
        "ports": "" if found.doubt else name_ports(found.ports),
        "why": found.why,
        "forced": forced,
        "forced_verbs": "" if facts.net_plugin() else forced,  # a plugin's network has another name
        "plugin": "" if facts.net_plugin() else plugin,
        "plugin_path": path,
        "no_rdma": forced or why_no_rdma(facts),
    }
    unknown = [f"{{{name}}}" for name, text in known.items() if not text]
    for fabrics, name, value, why in ROWS:
        is_known = not any(word in value + why for word in unknown)
        if is_known and (fabrics == "*" or fabric in fabrics.split()):
            yield name, value.format_map(known), why.format_map(known)
    if fabric != GCP:
        yield from plan_family(facts, found.ports)


def _find_mpi(facts: Facts) -> str:
    """Return the name of the MPI that started us if its interface is not chosen yet; empty for none."""
    if OPEN_MPI.rank[0] in facts.environ:
        return "" if facts.mpi_chooses or facts.environ.get(EXCLUDE) else OPEN_MPI.name
    return HYDRA.name if any(name in facts.environ for name in HYDRA.rank) else ""


def why_no_rdma(facts: Facts) -> str:
    """Return why NCCL certainly cannot use any RDMA port of this node; empty if that is not certain."""
    if facts.kind is not None and not facts.kind.has_verbs:
        return f"{facts.vm_name} has RDMA without SR-IOV"
    ethernet = facts.ethernet_ports()
    if not ethernet or any(port.link_layer != "Ethernet" for port in facts.ports):
        return ""  # a port that is not ready yet may be ready when NCCL starts
    names = ", ".join(port.device for port in ethernet)
    if facts.is_azure:
        return f"{names}: accelerated networking, and no InfiniBand"
    is_useless = all(map(facts.is_fast_path, ethernet))
    return f"{names}: the fast path of an ordinary interface" if is_useless else ""
