"""Allocation and number of processes to ranks: pure arithmetic, with invariants that hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.model import Allocation, Place, Scope, Topology
from launcher.identity.topology import plan_topology
from tests.unit.platforms_model import deterministic


def node(node_rank: int, node_count: int) -> Allocation:
    return Allocation("test", Scope.NODE, "node0", 6105, node_rank, node_count)


@deterministic(100)
@given(node_count=st.integers(1, 64), each=st.integers(1, 16))
def test_nodes_together_have_every_rank_once(node_count: int, each: int) -> None:
    """Each node plans alone; the ranks of all nodes cover the world, consecutive on each."""
    shapes = [plan_topology(node(index, node_count), each) for index in range(node_count)]
    ranks = [place.rank for shape in shapes for place in shape.places]
    assert ranks == list(range(node_count * each))
    assert {shape.world_size for shape in shapes} == {len(ranks)}
    assert all([p.local_rank for p in shape.places] == list(range(each)) for shape in shapes)
    assert [shape.node_rank for shape in shapes] == list(range(node_count))


def test_a_process_keeps_what_the_platform_gave_it() -> None:
    """Cyclic placement: rank 1 is local rank 0 of node 1; what is unknown stays unknown."""
    given_ = Allocation("test", Scope.PROCESS, "node0", 6105, 1, 2, rank=1, world_size=4, local_rank=0)
    shape = plan_topology(given_, 99)
    assert (shape.world_size, shape.rank, shape.local_rank) == (4, 1, 0)
    assert (shape.node_rank, shape.node_count, shape.local_size) == (1, 2, None)
    assert shape.places == (Place(1, 0),)


@pytest.mark.parametrize(("rank", "local_rank", "local_size"), [(4, 0, 2), (-1, 0, 2), (0, 2, 2), (0, -1, 2)])
def test_a_place_is_inside_of_its_world(rank: int, local_rank: int, local_size: int) -> None:
    """Of the job and of the node."""
    with pytest.raises(ValueError, match="rank"):
        Topology(4, 2, 0, local_size, "node0", 6105, (Place(rank, local_rank),))
