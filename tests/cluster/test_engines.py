"""torchrun's agent on two nodes: the real one, on simulated nodes with a network and a name of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.rehearse.cluster import Cluster
from tests.process.starting import clean_environ

pytestmark = [pytest.mark.root, pytest.mark.torch]

DEADLINE_S = 120.0
JOB = r"""
    import json, os, socket, sys
    import torch, torch.distributed as dist

    if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0" and os.environ["RANK"] == os.environ.get("FAILS"):
        sys.exit(3)
    dist.init_process_group("gloo")
    total = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(total)
    names = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_ADDR")
    names += ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE")
    names += ("TORCHELASTIC_RESTART_COUNT", "LAUNCHER_LAUNCHED")
    seen = {name: os.environ.get(name) for name in names} | {"node": socket.gethostname()}
    sys.stdout.write(json.dumps({**seen, "sum": int(total)}) + "\n")
    dist.destroy_process_group()
"""
MPI = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "PMIX_RANK": "0",
}


@pytest.fixture
def job(tmp_path: Path) -> str:
    """Return a script that adds up over all processes and prints what it saw."""
    path = tmp_path / "job.py"
    path.write_text(textwrap.dedent(JOB))
    return str(path)


def run_job(
    cluster: Cluster, words: Sequence[tuple[str, ...]], script: str, **variables: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """Start ``launcher run`` on every node with its own words; return what ranks printed, and errors."""
    jobs = []
    for node, own in zip(cluster.nodes, words, strict=True):
        line = (
            *(sys.executable, "-m", "launcher", "run", "--nproc-per-node", "2"),
            *own,
            *(sys.executable, script),
        )
        environ = clean_environ(OMP_NUM_THREADS="1", OMPI_COMM_WORLD_RANK=str(node.index), **variables)
        jobs.append(
            subprocess.Popen(
                cluster.argv(node, line),
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    done = [(process.communicate(timeout=DEADLINE_S), process.returncode) for process in jobs]
    errors = [err for (_, err), _ in done]
    assert [status for _, status in done] == [0] * len(jobs), "\n".join(errors)
    lines = [line for (out, _), _ in done for line in out.splitlines() if line.startswith("{")]
    return sorted((json.loads(line) for line in lines), key=lambda seen: int(seen["RANK"])), errors


def assert_world(found: list[dict[str, Any]]) -> None:
    """Four ranks on two nodes, each with the truth in all its names, and the right sum."""
    assert [seen["RANK"] for seen in found] == ["0", "1", "2", "3"]
    assert {seen["sum"] for seen in found} == {10}
    for seen in found:
        assert seen["NODE_RANK"] == seen["GROUP_RANK"] == str(int(seen["RANK"]) // 2)
        assert seen["OMPI_COMM_WORLD_RANK"] == seen["RANK"]
        assert seen["OMPI_COMM_WORLD_LOCAL_RANK"] == seen["LOCAL_RANK"] == str(int(seen["RANK"]) % 2)
        assert seen["OMPI_COMM_WORLD_SIZE"] == seen["WORLD_SIZE"] == "4"
        assert seen["LAUNCHER_LAUNCHED"]
    assert len({(seen["node"], seen["NODE_RANK"]) for seen in found}) == 2


@pytest.mark.parametrize("engine", ["torchrun", "auto"])
def test_a_fixed_job_on_two_nodes(cluster: Cluster, job: str, engine: str) -> None:
    """torchrun's agents, asked for, give the same world as the launcher's own engine; the ranks have met."""
    ours = ("--nnodes", "2", "--engine", engine, "--master-addr", cluster.nodes[0].address)
    words = [(*ours, "--node-rank", str(node.index)) for node in cluster.nodes]
    found, errors = run_job(cluster, words, job, LAUNCHER_PREFIX="0", LAUNCHER_REQUIRE_MEETING="1", **MPI)
    assert "never-met" not in "".join(errors)
    assert_world(found)
    assert {seen["MASTER_ADDR"] for seen in found} == {cluster.nodes[0].address}
    assert {seen["node"] for seen in found if seen["NODE_RANK"] == "0"} == {"node0"}
    assert {seen["TORCHELASTIC_RESTART_COUNT"] for seen in found} == {"0"}


@pytest.mark.parametrize("nodes", ["1:2", "2"])
def test_an_elastic_job_meets_where_it_is_told(cluster: Cluster, job: str, nodes: str) -> None:
    """The same words on both nodes; which is which is found out, and no name has to resolve."""
    endpoint = f"{cluster.nodes[0].address}:29400"
    words = ("--nnodes", nodes, "--rdzv-endpoint", endpoint, "--rdzv-backend", "c10d", "--scope", "node")
    found, _ = run_job(cluster, [words, words], job, **MPI)
    assert_world(found)
    assert {seen["MASTER_ADDR"] for seen in found} <= {node.address for node in cluster.nodes}


@pytest.mark.thorough
def test_a_platforms_elastic_job_is_torchruns(cluster: Cluster, job: str) -> None:
    """Kubeflow's PET_* for an elastic job, and no flags: as torchrun would in the launcher's place."""
    pet = {
        "PET_NNODES": "2:2",
        "PET_NPROC_PER_NODE": "2",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"{cluster.nodes[0].name}:29400",
        "PET_RDZV_ID": "job",
        "PET_MAX_RESTARTS": "1",
    }
    found, _ = run_job(cluster, [("--scope", "node")] * 2, job, **MPI, **pet)
    assert_world(found)
