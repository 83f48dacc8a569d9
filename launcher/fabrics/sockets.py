"""TCP, and the interface through which the libraries connect: all fabrics need it for the first contact.

TCP is the fabric if nothing better is here, or if the user asks for it. NCCL uses any active RDMA port over
Ethernet as RoCE. If that port is the fast path of a hypervisor's interface, no other node answers there, and
the job hangs or fails. So RDMA is switched off if it certainly leads nowhere, or if the user asks for TCP.
UCX would use such a port too. Its list of devices is enough to keep it from all others. UCX_TLS would have to
name the transports inside a node as well, and UCX complains about transports that it was built without.

A rank of MPI gets it for its own TCP connections, too. Open MPI's ranks try every interface that both ends
have. docker0 has the same address on all nodes, so a connection to it ends at the node itself. libfabric
takes the first interface. mpirun itself is already running when we could tell it anything (``--engine
mpirun`` tells it: see `launcher.engines.dialects`).

Source: NCCL "Environment Variables" (NCCL_SOCKET_IFNAME: a list of prefixes, exact after ``=``; by default
ib* comes first, then any but docker*, lo and virbr*), PyTorch "torch.distributed" (Common environment
variables: GLOO_SOCKET_IFNAME, names without prefixes or ``^``), TensorPipe (TP_SOCKET_IFNAME); Open MPI "TCP"
(btl_tcp_if_include, btl_tcp_if_exclude: one of the two, in variables or files); libfabric fi_tcp(7)
(FI_TCP_IFACE) and fabric(7) (FI_PROVIDER); NCCL_IB_DISABLE, NCCL_NET; UCX "Frequently Asked Questions"
(UCX_NET_DEVICES, UCX_TLS).
"""

from __future__ import annotations

from launcher.core.mpi import HYDRA, OPEN_MPI
from launcher.fabrics.facts import Facts, Found, Wish, ethernet_ports, is_accelerated_networking
from launcher.fabrics.topology_file import plan_family

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SYNTAX = frozenset(",^=")
"""Characters that the kernel accepts in an interface's name, but that have a meaning in these variables."""
ONE_NAME = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
EXCLUDE = "btl_tcp_if_exclude"
INCLUDE = "btl_tcp_if_include"


def plan_interface(facts: Facts, fabric: str) -> Iterator[tuple[str, str, str]]:
    """Yield the variables that name the interface to the libraries, and to the MPI that started us."""
    yield from plan_sockets(facts, fabric)
    yield from _plan_mpi(facts)


def plan_sockets(facts: Facts, fabric: str) -> Iterator[tuple[str, str, str]]:
    """Yield the variables that name the interface; none if it is unknown.

    GPUDirect-TCPX compares NCCL's variables with a list of its own and refuses others, so there we set none
    of NCCL's.
    """
    if facts.interface is None or not SYNTAX.isdisjoint(facts.interface):
        return
    if fabric != "gcp":
        yield "NCCL_SOCKET_IFNAME", f"={facts.interface}", facts.why_interface
    for name in ONE_NAME:
        yield name, facts.interface, facts.why_interface


def _plan_mpi(facts: Facts) -> Iterator[tuple[str, str, str]]:
    """Yield the interface for the MPI that started us, if it could use another one."""
    others = [item.name for item in facts.interfaces if item.addresses and not item.is_loopback]
    if facts.interface is None or len(others) < 2:
        return
    why = f"{facts.why_interface}; otherwise MPI tries {', '.join(others)}"
    if OPEN_MPI.rank[0] in facts.environ:
        if not facts.mpi_chooses and not facts.environ.get(f"OMPI_MCA_{EXCLUDE}"):
            yield f"OMPI_MCA_{INCLUDE}", facts.interface, why
    elif any(name in facts.environ for name in HYDRA.rank):
        yield "FI_TCP_IFACE", facts.interface, why


def find_tcp(facts: Facts) -> Found:
    """Return that TCP is here, as it always is."""
    through = f" through {facts.interface}" if facts.interface else ""
    return Found(True, f"TCP{through}")


def plan_tcp(facts: Facts, found: Found, wish: Wish) -> Iterator[tuple[str, str, str]]:
    """Yield what keeps libraries from RDMA that is useless or unwanted, and Azure's settings for the VM."""
    why = why_no_rdma(facts)
    if wish.forced == "tcp":
        why = wish.forced_origin
        yield "NCCL_NET", "Socket", why
        yield "FI_PROVIDER", "tcp", why
    if why:
        yield "NCCL_IB_DISABLE", "1", why
        if facts.interface:
            yield "UCX_NET_DEVICES", facts.interface, why
    yield from plan_family(facts)


def why_no_rdma(facts: Facts) -> str:
    """Return why NCCL certainly cannot use any RDMA port of this node; empty if that is not certain."""
    if facts.kind is not None and not facts.kind.has_verbs:
        return f"{facts.vm_name} has RDMA without SR-IOV"
    ethernet = ethernet_ports(facts)
    if not ethernet or any(port.link_layer != "Ethernet" for port in facts.ports):
        return ""  # a port that is not ready yet may be ready when NCCL starts
    names = ", ".join(port.device for port in ethernet)
    if facts.is_azure:
        return f"{names}: accelerated networking, and no InfiniBand"
    if all(is_accelerated_networking(facts, port) for port in ethernet):
        return f"{names}: the fast path of an ordinary interface"
    return ""
