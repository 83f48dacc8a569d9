"""Makes a Topology from an Allocation and the number of processes per node: pure arithmetic."""

from __future__ import annotations

from launcher.core.frozen import replace
from launcher.core.model import Allocation, Place, Scope, Topology


def plan_topology(allocation: Allocation, processes_per_node: int) -> Topology:
    """Return the shape of the job.

    If ranks are assigned at the start, or if the process has none, there are no places. Otherwise, at NODE
    scope every node is assumed to run the same number of processes: world_size is ``node_count *
    processes_per_node``, and ranks are consecutive on a node. At PROCESS scope the platform's numbers count.

    Args:
        allocation: The allocation from the platform.
        processes_per_node: Number of processes to start here; not used at PROCESS scope.
    """
    world, size = allocation.world_size, allocation.local_size
    places: tuple[Place, ...] = ()
    if allocation.scope is Scope.PROCESS and not allocation.task:
        assert allocation.rank is not None and allocation.local_rank is not None  # noqa: S101 - for mypy
        places = (Place(allocation.rank, allocation.local_rank),)
    elif not allocation.task:
        nodes, node = allocation.node_count, allocation.node_rank
        world, size = nodes and nodes * processes_per_node, processes_per_node
        if node is not None and not allocation.ranks_at_start:
            places = tuple(Place(node * size + local, local) for local in range(size))
    shape = make_topology(allocation, world, size, places)
    return replace(shape, node_rank=None) if allocation.ranks_at_start else shape


def make_topology(
    allocation: Allocation, world_size: int | None, local_size: int | None, places: tuple[Place, ...]
) -> Topology:
    """Return the shape of a job with the nodes and the master of the allocation."""
    return Topology(
        world_size=world_size,
        node_count=allocation.node_count,
        node_rank=allocation.node_rank,
        local_size=local_size,
        master_addr=allocation.master_addr,
        master_port=allocation.master_port,
        places=places,
    )


def is_by_domain(rank: int, local_rank: int, local_size: int) -> bool:
    """Whether ranks fill one NUMA node after the other while local ranks are dealt to them in turn.

    Open MPI 5 does so with ``--map-by numa`` or ``package``; any number of domains may be in a node.
    """
    for count in range(2, local_size):
        turn, domain = divmod(local_rank, count)
        size, rest = divmod(local_size, count)
        if rank % local_size == domain * size + min(domain, rest) + turn:
            return True
    return False


def list_places(rank: int, local_rank: int, local_size: int, node_count: int) -> list[int]:
    """Return the nodes that can have a rank in a job whose nodes all run ``local_size`` processes.

    It is the node of placement in blocks (node by node), and that of cyclic placement (one rank per node in
    turn), unless the local rank excludes it.
    """
    block, place = divmod(rank, local_size)
    turn, node = divmod(rank, node_count)
    return list(dict.fromkeys([block] * (place == local_rank) + [node] * (turn == local_rank)))
