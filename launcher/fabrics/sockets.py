"""The interface through which the libraries connect: all fabrics need it, at least for the first contact.

A rank of MPI gets it for its own TCP connections, too. Open MPI's ranks try every interface that both ends
have. docker0 has the same address on all nodes, so a connection to it ends at the node itself. libfabric
takes the first interface. mpirun itself is already running when we could tell it anything (``--engine
mpirun`` tells it: see `launcher.engines.dialects`).

Source: NCCL "Environment Variables" (NCCL_SOCKET_IFNAME: a list of prefixes, exact after ``=``; by default
ib* comes first, then any but docker*, lo and virbr*), PyTorch "torch.distributed" (Common environment
variables: GLOO_SOCKET_IFNAME, names without prefixes or ``^``), TensorPipe (TP_SOCKET_IFNAME); Open MPI "TCP"
(btl_tcp_if_include, btl_tcp_if_exclude: one of the two, in variables or files); libfabric fi_tcp(7)
(FI_TCP_IFACE).
"""

from __future__ import annotations

from launcher.core.mpi import HYDRA, OPEN_MPI

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.fabrics.facts import Facts

SYNTAX = frozenset(",^=")
"""Characters that the kernel accepts in an interface's name, but that have a meaning in these variables."""
ONE_NAME = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
EXCLUDE = "btl_tcp_if_exclude"
INCLUDE = "btl_tcp_if_include"


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


def plan_mpi(facts: Facts) -> Iterator[tuple[str, str, str]]:
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
