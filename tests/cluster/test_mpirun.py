"""``launcher run --engine mpirun`` with real mpiruns and a real sshd on simulated nodes."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.rehearse.cluster import Cluster
from tests.cluster.conftest import need_namespaces
from tests.cluster.fleets import ALLREDUCE, Fleet, make_key
from tests.mpis import FAMILIES, find_mpi

pytestmark = [pytest.mark.root]

MakeFleet = Callable[..., Fleet]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[MakeFleet]:
    """Return a function that makes N nodes with a family of MPI and a key of the job."""
    need_namespaces()
    made: list[Fleet] = []
    clusters: list[Cluster] = []

    def make(family: str, nodes: int = 2, *, key: bool = True) -> Fleet:
        cluster = Cluster(nodes)
        clusters.append(cluster)
        cluster.__enter__()
        made.append(Fleet(cluster, find_mpi(family), make_key(tmp_path) if key else "", tmp_path))
        return made[-1]

    yield make
    for one in made:
        one.close()
    for cluster in clusters:
        cluster.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_four_nodes_by_one_command_on_each(family: str, fleet: MakeFleet) -> None:
    """4 nodes x 2 ranks: the sum over all is right, ranks are where they were asked for, all end with 0."""
    four = fleet(family, 4)
    four.start_all("--nproc-per-node", "2", "--no-prefix", "--", "python", four.script(ALLREDUCE))
    head, *others = four.wait()
    assert head.status == 0, [one.err[-1500:] for one in (head, *others)]
    records = head.records
    assert sorted(record["mpi_rank"] for record in records) == list(range(8))
    assert {record["sum"] for record in records} == {36}
    assert Counter(record["node"] for record in records) == {f"node{i}": 2 for i in range(4)}
    for record in records:
        rank = record["mpi_rank"]
        want = {
            "RANK": rank,
            "LOCAL_RANK": rank % 2,
            "NODE_RANK": rank // 2,
            "WORLD_SIZE": 8,
            "LOCAL_WORLD_SIZE": 2,
        }
        assert {name: int(record[name]) for name in want} == want
        assert record["node"] == f"node{rank // 2}" and record["MASTER_ADDR"] == "node0"
    assert [one.status for one in others] == [0, 0, 0], [one.err[-500:] for one in others]
    assert [four.processes(node) for node in four.cluster.nodes] == [[]] * 4


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rank_of_another_node_fails(family: str, fleet: MakeFleet) -> None:
    """Status 7 of rank 3 is the job's on every node, and the verdict names rank and host."""
    two = fleet(family, 2)
    script = two.script(
        """
        import os, sys, time
        if os.environ["RANK"] == "3":
            sys.exit(7)
        time.sleep(100)
        """
    )
    two.start_all("--nproc-per-node", "2", "--", "python", script)
    head, other = two.wait()
    assert (head.status, other.status) == (7, 7), head.err[-3000:]
    assert "rank 3 of 4 failed first: it exited with status 7" in head.err
    assert "host node1, node 1" in head.err
    assert [two.processes(node) for node in two.cluster.nodes] == [[], []]


@pytest.mark.parametrize("family", FAMILIES)
def test_sigterm_gives_every_rank_its_time(family: str, fleet: MakeFleet, tmp_path: Path) -> None:
    """Each rank needs 3 to 5 s to save its state, and has them, wherever it runs; then all is gone."""
    two = fleet(family, 2)
    script = two.script(
        f"""
        import os, signal, sys, time
        def save(*_):
            time.sleep(5 if os.environ["RANK"] == "3" else 3)
            open("{tmp_path}/saved" + os.environ["RANK"], "w").close()
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        open("{tmp_path}/ready" + os.environ["RANK"], "w").close()
        while True:
            time.sleep(1)
        """
    )
    two.start_all("--nproc-per-node", "2", "--", "python", script)
    deadline = time.monotonic() + 40
    while len(list(tmp_path.glob("ready*"))) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    two.cluster.kill(two.launchers[0].pid, signal.SIGTERM)
    head, other = two.wait()
    assert len(list(tmp_path.glob("saved*"))) == 4, head.err[-3000:]
    assert (head.status, other.status) == (0, 0), head.err[-3000:]
    assert [two.processes(node) for node in two.cluster.nodes] == [[], []]
