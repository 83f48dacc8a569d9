"""Makes a Topology from an Allocation and the number of processes per node, and places spare nodes.

Spare nodes wait to take the place of a lost one. Each node has an index among all nodes. With ``node_count``
nodes in the job, the first ``node_count`` have their index as their rank, and the others are spare. A spare
node that takes the place of a lost one gets its rank; the lost one, if it comes back, is a spare node from
then on. Pure.
"""

from __future__ import annotations

from launcher.core.errors import make_error
from launcher.core.frozen import replace
from launcher.core.model import Allocation, Place, Scope, Topology

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.options.reading import Options


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
    nodes, node = allocation.node_count, allocation.node_rank
    places: tuple[Place, ...] = ()
    if allocation.rank is not None and allocation.local_rank is not None and not allocation.task:
        places = (Place(allocation.rank, allocation.local_rank),)
    elif not allocation.task:
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
        (turn, domain), (size, rest) = divmod(local_rank, count), divmod(local_size, count)
        if rank % local_size == domain * size + min(domain, rest) + turn:
            return True
    return False


def list_places(rank: int, local_rank: int, local_size: int, node_count: int) -> list[int]:
    """Return the nodes that can have a rank in a job whose nodes all run ``local_size`` processes.

    It is the node of placement in blocks (node by node), and that of cyclic placement (one rank per node in
    turn), unless the local rank excludes it.
    """
    found = (find_block(rank, local_rank, local_size), find_dealt(rank, local_rank, node_count))
    return [node for node in dict.fromkeys(found) if node is not None]


def find_block(rank: int, local_rank: int, local_size: int) -> int | None:
    """Return the node of a rank if all nodes are full, filled one after the other; None if it is on none."""
    node, place = divmod(rank, local_size)
    return node if place == local_rank else None


def find_dealt(rank: int, local_rank: int, node_count: int) -> int | None:
    """Return the node of a rank if all nodes are full, dealt ranks in turn; None if it is on none."""
    turn, node = divmod(rank, node_count)
    return node if turn == local_rank else None


def find_rank(index: int, node_count: int, seats: Mapping[int, int]) -> int | None:
    """Return the rank of a node in the job; None for a spare one.

    Args:
        index: Index of the node among all nodes.
        node_count: Number of nodes in the job.
        seats: The ranks of nodes that have taken the place of another one, by index.
    """
    if index in seats:
        return seats[index]
    return index if index < node_count and index not in seats.values() else None


def take_seat(allocation: Allocation, options: Options, seats: Mapping[int, int]) -> Allocation:
    """Return the allocation of the job without its spare nodes.

    A spare node has no rank before it takes a place; its plan is that of the last node until then.

    Raises:
        UsageError: The launchers of this job cannot wait as spare nodes, or too few nodes are left.
    """
    spares = int(options.number("spares", 0))
    if not spares:
        return allocation
    asked, index, is_node = options.origins("spares")[0], allocation.node_rank, allocation.scope is Scope.NODE
    count = (allocation.node_count or 0) - spares
    if (engine := options.text("engine")) in ("mpirun", "torchrun"):
        raise make_error("no-spares-engine", asked=asked, engine=engine)
    if not is_node and allocation.local_size == 1:
        raise make_error("no-spares-of-one", asked=asked)
    if not is_node or allocation.node_count is None or index is None or allocation.ranks_at_start:
        raise make_error("no-spares-unranked", asked=asked)
    if count < 2:
        raise make_error("no-spares-left", asked=asked, nodes=allocation.node_count)
    rank = find_rank(index, count, seats)
    occupants = {taken: by for by, taken in seats.items()}
    listed = allocation.hosts if len(allocation.hosts) == allocation.node_count else ()
    return replace(
        allocation,
        node_count=count,
        node_rank=count - 1 if rank is None else rank,
        hosts=tuple(listed[occupants.get(place, place)] for place in range(count)) if listed else (),
        spare=index if rank is None else None,
        spare_hosts=tuple(listed[one] for one in range(len(listed)) if find_rank(one, count, seats) is None),
        index=index,
    )
