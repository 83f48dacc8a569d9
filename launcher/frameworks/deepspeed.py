"""DeepSpeed: what its own launcher gives its processes besides the contract of PyTorch.

Where RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are set, ``init_distributed`` needs no more.
Where one is missing it asks mpi4py, which calls MPI_Init; on Azure ML it reads variables that may not be
there, and sets NCCL_SOCKET_IFNAME to what it likes.

Source: deepspeed/comm/comm.py, launcher/launch.py, ops/csrc/cpu/comm/shm_interface.cpp (0.19).
"""

from __future__ import annotations

from launcher.core.model import Place, Setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.frameworks.case import Case


def plan_common(case: Case) -> list[Setting]:
    """Return the size of this node, and which of the nodes it is.

    A LOCAL_SIZE that equals the world makes processes on CPUs talk through shared memory: one that lies
    makes them wait for processes of another node there.
    """
    values = [
        ("LOCAL_SIZE", case.topology.local_size, "local_size"),
        ("CROSS_RANK", case.topology.node_rank, "node_rank"),
        ("CROSS_SIZE", case.topology.node_count, "node_count"),
    ]
    return [Setting(name, str(value), case.origin(fact)) for name, value, fact in values if value is not None]


def plan_process(case: Case, place: Place) -> list[Setting]:
    """Return nothing: what differs from process to process is PyTorch's contract."""
    return []
