"""The nodes learn each other's addresses, by the start signal or by an exchange, on nodes of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.rehearse.cluster import Cluster
from tests.cluster.conftest import need_namespaces
from tests.cluster.together import Job
from tests.process.looking import wait_for

pytestmark = [pytest.mark.root, pytest.mark.xdist_group("peers")]

TOKEN = {"LAUNCHER_TOKEN": "0123456789abcdef-a-token"}
SHOW = ("--framework", "tensorflow", "--", "sh", "-c", 'echo "$TF_CONFIG"')
MASTER_PORT = 6105


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Return a job on three nodes."""
    need_namespaces()
    with Cluster(3) as three:
        yield (one := Job(three, tmp_path))
        one.close()


CONTROL_PORT = 6106


@pytest.mark.parametrize(
    ("flags", "port"), [((), CONTROL_PORT), (("--no-peers",), MASTER_PORT)], ids=["peers", "no-peers"]
)
@pytest.mark.parametrize("environ", [{}, TOKEN], ids=["", "token"])
def test_all_are_told_all_addresses(
    job: Job, environ: dict[str, str], flags: tuple[str, ...], port: int
) -> None:
    """At the cluster's address alone: by the start signal, or without one at the master's port."""
    addresses = [node.address for node in job.cluster.nodes]
    job.start(0, *flags, *SHOW, environ=environ)
    wait_for(lambda: job.listens(0, port), "node 0 listens")
    assert job.listens(0, port) == f"{addresses[0]}:{port}"
    assert not job.listens(0, MASTER_PORT + CONTROL_PORT - port), "one place is enough"
    for index in (1, 2):
        job.start(index, *flags, *SHOW, environ=environ)
    for one in job.wait().values():
        assert one.status == 0, one.err
        assert json.loads(one.out)["cluster"]["worker"] == [f"{address}:2222" for address in addresses]


@pytest.mark.parametrize("stay", ["1", "0"], ids=["stay", "exec"])
def test_launchers_of_one_process_each_are_told_them_too(job: Job, stay: str) -> None:
    """Six ranks on three nodes, dealt one by one: node 1 has the ranks 1 and 4."""
    addresses = [node.address for node in job.cluster.nodes]
    shape = {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": addresses[0], "LAUNCHER_STAY": stay}
    for rank in range(6):
        node, local_rank = rank % 3, rank // 3
        place = {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "NODE_RANK": str(node)}
        job.start_as(node, rank, "--scope", "process", "--nnodes", "3", *SHOW, environ={**shape, **place})
    for one in job.wait().values():
        assert one.status == 0, one.err
        named = [f"{address}:{port}" for address in addresses for port in (2222, 2223)]
        assert sorted(json.loads(one.out[one.out.index("{") :])["cluster"]["worker"]) == sorted(named)
