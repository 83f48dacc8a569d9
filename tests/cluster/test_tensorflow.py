"""TensorFlow itself, started as each platform starts it: strategies meet by our TF_CONFIG, and jobs end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.rehearse.cluster import Cluster, SimulatedNode
from tests.cluster.conftest import need_namespaces
from tests.cluster.frameworks import EXAMPLES, run_alone, run_example
from tests.process.starting import clean_environ

pytestmark = [pytest.mark.torch, pytest.mark.root, pytest.mark.xdist_group("tensorflow")]
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
ENDS_S = 120.0
"""By when a job has ended from which something was taken: TensorFlow's time, our watches', the machine's."""


def records(text: str) -> list[dict[str, Any]]:
    """Return what tasks have printed as JSON; two launchers that share a pipe may do so in one line."""
    return [json.loads(found) for found in re.findall(r'\{"[^{}]*\}', text)]


# --- MultiWorkerMirroredStrategy


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """What one worker learns with all images."""
    (found,) = records(run_alone("tensorflow_multiworker.py"))
    return found


@pytest.mark.parametrize(
    "like",
    [
        "azureml-tensorflow",
        pytest.param("openmpi", marks=pytest.mark.mpi),
        "azure-batch",
        "azureml-pytorch",
        pytest.param("azureml-mpi", marks=pytest.mark.mpi),
    ],
)
def test_workers_with_different_images_take_the_steps_of_one(like: str, alone: dict[str, Any]) -> None:
    """Gradients are averaged: the weights are those that one worker gets from all images."""
    environ = {**QUIET, "LAUNCHER_FRAMEWORK": "tensorflow"}
    found = records(run_example(like, "tensorflow_multiworker.py", environ=environ))
    assert sorted(one["worker"] for one in found) == [0, 1]
    for one in found:
        assert one["workers"] == 2
        assert (one["size"], one["accuracy"]) == (alone["size"], alone["accuracy"])


# --- parameter servers


class Job:
    """A job on two nodes, one launcher on each."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.launchers: list[subprocess.Popen[str]] = []

    def start(self, roles: str, *words: str) -> None:
        """Start the example of parameter servers on both nodes."""
        folder = ("--checkpoints", str(self.folder))
        self.start_example("tensorflow_parameter_server.py", roles, *folder, *words)

    def start_example(self, name: str, roles: str, *words: str) -> None:
        """Start an example on both nodes."""
        hosts = ",".join(node.hostname for node in self.cluster.nodes)
        flags = ("--roles", roles, "--hosts", hosts, "--grace", "20")
        command = ("--", sys.executable, os.path.join(EXAMPLES, name), *words)
        for node in self.cluster.nodes:
            line = [sys.executable, "-m", "launcher", "run", *flags, *command]
            self.launchers.append(
                subprocess.Popen(
                    self.cluster.argv(node, line),
                    env=clean_environ(**QUIET, PYTHONUNBUFFERED="1"),
                    stdin=subprocess.DEVNULL,
                    stdout=(self.folder / f"{node.name}.out").open("w"),
                    stderr=(self.folder / f"{node.name}.err").open("w"),
                    text=True,
                )
            )

    def said(self, index: int, stream: str = "out") -> str:
        """Return what the launcher of a node has written so far."""
        return (self.folder / f"{self.cluster.nodes[index].name}.{stream}").read_text()

    def wait(self, index: int, timeout_s: float = ENDS_S) -> int:
        """Wait for the launcher of a node; return its status."""
        return self.launchers[index].wait(timeout_s)

    def kill_task(self, index: int, task: str) -> None:
        """SIGKILL to a task of a node, as the kernel's OOM killer does."""
        node = self.cluster.nodes[index]
        (pid,) = [pid for pid, environ in self.processes(node) if task in environ]
        subprocess.run(self.cluster.argv(node, ["kill", "-9", str(pid)]), check=True, env=clean_environ())

    def is_connected(self, node: SimulatedNode) -> bool:
        """Whether a task of a node has connections to tasks of others: they have found each other."""
        script = "awk '$4 == \"01\" && ($2 ~ /:08AE$/ || $3 ~ /:08AE$/)' /proc/net/tcp /proc/net/tcp6"
        line = self.cluster.argv(node, ["sh", "-c", script])
        done = subprocess.run(line, capture_output=True, text=True, check=False, env=clean_environ())
        return bool(done.stdout.strip())

    def processes(self, node: SimulatedNode) -> list[tuple[int, str]]:
        """Return the pids of a node's tasks, each with its TF_CONFIG's task."""
        script = (
            "for p in /proc/[0-9]*; do printf '%s ' ${p#/proc/}; "
            "tr '\\0' '\\n' < $p/environ 2>/dev/null | grep -a ^TF_CONFIG= ; echo; done"
        )
        line = self.cluster.argv(node, ["sh", "-c", script])
        done = subprocess.run(line, capture_output=True, text=True, check=False, env=clean_environ())
        rows = [row.partition(" ") for row in done.stdout.splitlines() if "TF_CONFIG=" in row]
        return [(int(pid), text.partition('"task":')[2]) for pid, _, text in rows]

    def close(self) -> None:
        """End what a failed test has left."""
        for process in self.launchers:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Return two nodes for a job of TensorFlow."""
    need_namespaces()
    with Cluster(2) as cluster:
        made = Job(cluster, tmp_path)
        yield made
        made.close()


def task(role: str, index: int = 0) -> str:
    """Return a task as TF_CONFIG writes it."""
    return f'{{"type":"{role}","index":{index}}}'


@pytest.mark.thorough
def test_a_coordinator_trains_and_all_ends_by_itself(job: Job) -> None:
    """Chief, 2 workers, 1 server and an evaluator on 2 nodes: status 0 on both, and nothing is left."""
    job.start("chief=0 worker=0,1 ps=1 evaluator=0")
    assert (job.wait(0, 300.0), job.wait(1)) == (0, 0), (
        job.said(0, "err")[-3000:] + job.said(1, "err")[-3000:]
    )
    found = records(job.said(0))
    assert {"steps": 300, "scheduled": 300} in found
    last = max((one for one in found if "evaluated" in one), key=lambda one: one["evaluated"])
    assert last["evaluated"] == 300 and last["accuracy"] > 0.9
    assert "[evaluator 0]" in job.said(0) and "[rank 0]" in job.said(0)
    assert [job.processes(node) for node in job.cluster.nodes] == [[], []]
