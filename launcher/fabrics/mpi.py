"""Settings for a rank's own MPI, if MPI started us: the interface for its TCP connections.

Open MPI's ranks try every interface that both ends have. docker0 has the same address on all nodes, so a
connection to it ends at the node itself. libfabric takes the first interface. mpirun itself is already
running when we could tell it anything (``--engine mpirun`` tells it: see `launcher.engines.dialects`).

Source: Open MPI "TCP" (btl_tcp_if_include, btl_tcp_if_exclude: one of the two, in variables or files);
libfabric fi_tcp(7) (FI_TCP_IFACE).
"""

from __future__ import annotations

from launcher.core.mpi import HYDRA, OPEN_MPI
from launcher.fabrics.facts import Facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

EXCLUDE = "btl_tcp_if_exclude"
INCLUDE = "btl_tcp_if_include"


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
