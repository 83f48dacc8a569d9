"""Spare nodes: which node has which rank, if some nodes wait to take the place of a lost one.

Each node has an index among all nodes. With ``node_count`` nodes in the job, the first ``node_count`` have
their index as their rank, and the others are spare. A spare node that takes the place of a lost one gets its
rank; the lost one, if it comes back, is a spare node from then on.
"""

from __future__ import annotations

from launcher.core.errors import make_error
from launcher.core.frozen import replace
from launcher.core.model import Allocation, Scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.options.reading import Options


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
    asked, index = options.origins("spares")[0], allocation.node_rank
    is_node = allocation.scope is Scope.NODE
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
