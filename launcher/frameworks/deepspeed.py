"""DeepSpeed: variables that its own launcher sets beyond PyTorch's contract.

If RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are set, ``init_distributed`` needs no more. If
one is missing, it asks mpi4py, which calls MPI_Init; on Azure ML it reads variables that may be missing, and
overwrites NCCL_SOCKET_IFNAME.

Source: deepspeed/comm/comm.py, launcher/launch.py, ops/csrc/cpu/comm/shm_interface.cpp (0.19).
"""

from __future__ import annotations

from launcher.core.model import Place, Setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.frameworks.case import Case


def plan_common(case: Case) -> list[Setting]:
    """Return the number of processes on this node, its rank, and the number of nodes.

    If LOCAL_SIZE equals the world size, processes on CPUs communicate through shared memory. If it is wrong,
    they wait there for processes of another node.
    """
    values = [
        ("LOCAL_SIZE", case.topology.local_size, "local_size"),
        ("CROSS_RANK", case.topology.node_rank, "node_rank"),
        ("CROSS_SIZE", case.topology.node_count, "node_count"),
    ]
    return [Setting(name, str(value), case.origin(fact)) for name, value, fact in values if value is not None]


def plan_process(case: Case, place: Place) -> list[Setting]:
    """Return nothing: the variables that differ between processes are PyTorch's contract."""
    return []
