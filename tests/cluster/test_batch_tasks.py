"""The tasks in docker/batch on simulated nodes: both command lines as Azure Batch runs them, no container."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

from launcher.rehearse.cluster import Cluster, Node
from launcher.rehearse.variables import variables
from tests.cluster.conftest import need_namespaces
from tests.cluster.fleets import ALLREDUCE, Fleet
from tests.mpis import find_mpi
from tests.process.looking import wait_for
from tests.process.starting import ROOT

pytestmark = [pytest.mark.root]
COORDINATION_S = 30
APPLICATION_S = 120


class Task(NamedTuple):
    """The two lines of a task, as words: Batch uses no shell."""

    coordination: list[str]
    application: list[str]


def read_task(name: str) -> Task:
    """Return the lines of one of the files."""
    task = json.loads(Path(ROOT, "docker", "batch", f"{name}.json").read_text())
    lines = task["multiInstanceSettings"]["coordinationCommandLine"], task["commandLine"]
    return Task(*map(shlex.split, lines))


def run_task(name: str, cluster: Cluster, shared: Path) -> subprocess.CompletedProcess[str]:
    """Run a task in the order of the service: coordination on all nodes, then application on the master.

    Args:
        name: The file.
        cluster: Its first node is the master; two processes on each.
        shared: What `AZ_BATCH_TASK_SHARED_DIR` names on every node.

    Returns:
        The end of the application.
    """
    fleet = Fleet(cluster, find_mpi("openmpi4"), shared)
    task = read_task(name)

    def run(node: Node, words: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        work = shared.parent / f"wd-{node.hostname}"
        work.mkdir(exist_ok=True)
        batch = variables("azure-batch", cluster.nodes, node) | {"AZ_BATCH_TASK_SHARED_DIR": str(shared)}
        environ = fleet.environ(**batch, LAUNCHER_HOSTS="", LAUNCHER_NPROC_PER_NODE="2")
        path = f"{ROOT}/bin:{os.path.dirname(sys.executable)}:{environ['PATH']}"
        return subprocess.run(
            cluster.argv(node, words, cwd=str(work)),
            env={**environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    for node in cluster.nodes:
        done = run(node, task.coordination, COORDINATION_S)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    ended = run(cluster.nodes[0], task.application, APPLICATION_S)
    wait_for(lambda: not any(map(fleet.processes, cluster.nodes)), "nodes on which nothing is left")
    return ended


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return the folder in which Batch puts the common resource files."""
    need_namespaces()
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


def logs(shared: Path) -> str:
    """Return what the other nodes have written."""
    return "\n".join(path.read_text()[-2000:] for path in shared.parent.glob("wd-*/*.log"))


@pytest.mark.thorough
def test_mpirun_starts_the_ranks_of_a_batch_task(shared: Path) -> None:
    """Four ranks of MPI on two nodes; the node that serves ends with the job."""
    (shared / "job.token").write_text(secrets.token_hex(32))
    (shared / "train_ddp.py").write_text(textwrap.dedent(ALLREDUCE))
    with Cluster(2) as cluster:
        done = run_task("mpirun-task", cluster, shared)
    assert done.returncode == 0, done.stderr + logs(shared)
    records = [json.loads(text.partition("] ")[2]) for text in done.stdout.splitlines() if "sum" in text]
    assert sorted((record["node"], record["sum"]) for record in records) == [
        *[("node0", 10)] * 2,
        *[("node1", 10)] * 2,
    ]
    assert [path.parent.name for path in shared.parent.glob("wd-*/serve.log")] == ["wd-node1"]


@pytest.mark.thorough
@pytest.mark.torch
def test_launchers_on_all_nodes_are_a_batch_task(shared: Path) -> None:
    """No ssh and no key: the launchers meet, and four processes of PyTorch add up."""
    shutil.copy(Path(ROOT, "examples", "allreduce.py"), shared / "train_ddp.py")
    with Cluster(2) as cluster:
        done = run_task("nodes-task", cluster, shared)
    assert done.returncode == 0, done.stderr + logs(shared)
    (said,) = [line for line in done.stdout.splitlines() if '"sum"' in line]
    assert '"sum": 10' in said
    assert [path.parent.name for path in shared.parent.glob("wd-*/launcher.log")] == ["wd-node1"]
