"""Allocation and number of processes to ranks: pure arithmetic, with invariants that hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.model import Allocation, Machine, Place, Plan, Process, Scope, Topology
from launcher.core.model import Mode as RunMode
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


def test_an_allocation_is_of_a_node_or_of_a_process() -> None:
    """Half of one and half of the other is a bug, and stops there."""
    with pytest.raises(ValueError, match="node_rank and node_count only"):
        Allocation("test", Scope.NODE, "node0", 6105, None, 2)
    with pytest.raises(ValueError, match="node_rank and node_count only"):
        Allocation("test", Scope.NODE, "node0", 6105, 0, 2, rank=0)
    with pytest.raises(ValueError, match="needs rank, world_size, local_rank"):
        Allocation("test", Scope.PROCESS, "node0", 6105, 0, 2, rank=0, world_size=2)


@pytest.mark.parametrize(("rank", "local_rank", "local_size"), [(4, 0, 2), (-1, 0, 2), (0, 2, 2), (0, -1, 2)])
def test_a_place_is_inside_of_its_world(rank: int, local_rank: int, local_size: int) -> None:
    """Of the job and of the node."""
    with pytest.raises(ValueError, match="rank"):
        Topology(4, 2, 0, local_size, "node0", 6105, (Place(rank, local_rank),))


def test_only_one_process_can_be_become() -> None:
    """EXEC is for exactly one; a plan without processes is none."""
    shape = plan_topology(node(0, 1), 2)
    processes = tuple(Process(place.rank, place.local_rank, ("true",), ()) for place in shape.places)
    for bad in ((), processes):
        with pytest.raises(ValueError, match="processes cannot run"):
            Plan(node(0, 1), shape, Machine(), RunMode.EXEC, bad, ())
    assert Plan(node(0, 1), shape, Machine(), RunMode.SUPERVISE, processes, ()).processes == processes


def test_values_are_frozen_equal_and_hashable() -> None:
    """What was decided is not changed afterwards."""
    one, same, other = node(0, 2), node(0, 2), node(1, 2)
    assert one == same and hash(one) == hash(same) and one != other
    with pytest.raises(AttributeError, match="frozen"):
        one.node_rank = 1  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        del one.node_rank
    with pytest.raises(TypeError):
        Place(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Place(1, 2, 3)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Place(1, 2, rank=1)  # type: ignore[misc]
    assert repr(Place(1, 0)) == "Place(rank=1, local_rank=0)"
