"""Spare nodes in the plan: who has which rank before and after one has taken the place of another."""

from __future__ import annotations

import pytest

from launcher.core.errors import UsageError
from launcher.core.model import Plan
from launcher.identity.topology import find_rank
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay

HOSTS = ",".join(f"10.0.0.{number}" for number in range(4, 9))


def plan(rank: int, seats: dict[int, int] | None = None, **flags: str) -> Plan:
    given = {"nnodes": "4", "spares": "1", "restarts": "3", "master_addr": "10.0.0.4", "node_rank": str(rank)}
    given |= flags
    host = replay({"environ": {}, "gpus": 2})
    return plan_job({}, host, read_options(given, {}), ("python", "train.py"), seats=seats)


@pytest.mark.parametrize("rank", range(4))
def test_the_first_nodes_have_their_ranks(rank: int) -> None:
    found = plan(rank)
    assert (found.topology.node_rank, found.topology.node_count, found.topology.world_size) == (rank, 4, 8)
    assert found.allocation.spare is None and found.peers is not None and found.peers.index == rank


def test_a_spare_node_waits_and_takes_a_seat() -> None:
    """It is planned as the last one, says so, and has the rank of the lost one; hosts follow."""
    found = plan(4)
    assert (found.allocation.spare, found.topology.node_count, found.topology.world_size) == (4, 4, 8)
    assert found.peers is not None and (found.peers.index, found.peers.spare_count) == (4, 1)
    assert any("node 4 is a spare node" in note for note in found.notes)
    found = plan(4, {4: 2})
    assert (found.topology.node_rank, found.allocation.spare) == (2, None)
    assert [place.rank for place in found.topology.places] == [4, 5]
    found = plan(4, {4: 2}, hosts=HOSTS)
    assert found.allocation.hosts == ("10.0.0.4", "10.0.0.5", "10.0.0.8", "10.0.0.7")


@pytest.mark.parametrize(
    ("index", "seats", "rank"),
    [(0, {}, 0), (3, {}, 3), (4, {}, None), (4, {4: 2}, 2), (2, {4: 2}, None), (2, {4: 2, 2: 3}, 3)],
)
def test_ranks_by_index(index: int, seats: dict[int, int], rank: int | None) -> None:
    assert find_rank(index, 4, seats) == rank


@pytest.mark.parametrize(
    "flags",
    [
        {"nnodes": "1"},
        {"nnodes": "1:4", "rdzv_endpoint": "10.0.0.4"},
        {"engine": "torchrun"},
        {"engine": "mpirun", "hosts": HOSTS},
    ],
    ids=["one-node", "elastic", "torchrun", "mpirun"],
)
def test_jobs_without_spare_nodes(flags: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        plan(0, None, **flags)
    assert {problem.code for problem in caught.value.problems} & {"no-spares-here", "engine-conflict"}


def test_ranks_that_the_platform_has_started_cannot_wait() -> None:
    """A launcher beside each rank is no node that could take another one's place; the fix is the scope."""
    per_rank = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "1"}
    given = {"spares": "1", "restarts": "3", "scope": "process"}
    for size, helps in (("1", True), ("2", False)):  # of two ranks on a node none is the node
        environ = {**per_rank, "MASTER_ADDR": "10.0.0.4", "LOCAL_WORLD_SIZE": size}
        with pytest.raises(UsageError) as refused:
            plan_job(environ, replay({"environ": environ}), read_options(given, {}), ("true",))
        assert ("--scope node" in refused.value.problems[0].fix) is helps
    assert plan(0, nproc_per_node="1").topology.world_size == 4
