"""The exchange of addresses, and the control channel, on nodes of their own: who gets in and who does not."""

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


@pytest.mark.parametrize("environ", [{}, TOKEN], ids=["", "token"])
def test_all_are_told_all_addresses(job: Job, environ: dict[str, str]) -> None:
    """At the cluster's address alone, which is free again then."""
    addresses = [node.address for node in job.cluster.nodes]
    job.start(0, *SHOW, environ=environ)
    wait_for(lambda: job.listens(0, MASTER_PORT), "the first launcher listens")
    assert job.listens(0, MASTER_PORT) == f"{addresses[0]}:{MASTER_PORT}"
    for index in (1, 2):
        job.start(index, *SHOW, environ=environ)
    for one in job.wait().values():
        assert one.status == 0, one.err
        assert json.loads(one.out)["cluster"]["worker"] == [f"{address}:2222" for address in addresses]


@pytest.mark.thorough
def test_a_second_launcher_of_a_node_is_refused_and_named(job: Job) -> None:
    """Two nodes with one --node-rank: the job goes on with the first, once the third is there."""
    job.start(0, *SHOW)
    job.start(1, *SHOW)
    wait_for(lambda: job.listens(0, MASTER_PORT), "the first launcher listens")
    established = ("ss", "-Htn", "state", "established", f"sport = :{MASTER_PORT}")
    wait_for(lambda: job.on(job.cluster.nodes[0], established), "node 1 is there")
    job.start(2, "--roll-call-timeout", "2", *SHOW, rank=1, key=9)
    refused = job.wait(9)[9]
    why = f"launcher 1 has already connected from {job.cluster.nodes[1].address}"
    assert refused.status == 75 and f"it was not reached: {why}" in refused.err, refused.err
    assert job.says(0, f"turned away {job.cluster.nodes[2].address}: {why}")
    job.start(2, *SHOW)
    assert {one.status for one in job.wait(0, 1, 2).values()} == {0}
