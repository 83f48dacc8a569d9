"""Bandwidth between real processes: on this machine, and on simulated nodes of which one is throttled."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.machine.gpus import count_gpus
from launcher.machine.host import Host
from launcher.rehearse.cluster import Cluster, Node
from tests.cluster.conftest import need_namespaces
from tests.process.starting import clean_environ, launch

pytestmark = pytest.mark.torch

DEADLINE_S = 120.0
PROGRAM = ("-m", "launcher.bandwidth")
LIMIT = (
    *("qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "10mbit", "burst", "32kbit", "latency"),
    "400ms",
)
TWO = ("--nproc-per-node", "2", "--standalone")
THREADS = {"OMP_NUM_THREADS": "1"}


@pytest.mark.thorough
def test_two_processes_measure_all_sizes(tmp_path: Path) -> None:
    """Each size once, bandwidths as defined, the report where it was asked for."""
    report = tmp_path / "report.json"
    words = ("--max-bytes", "1M", "--format", "json")
    line = ("run", *TWO, "--", sys.executable, *PROGRAM, *words)
    done = launch(*line, "--output", str(report), environ=THREADS)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(report.read_text())
    assert (found["kind"], found["backend"], found["process_count"]) == ("sweep", "gloo", 2)
    assert [sample["size_bytes"] for sample in found["samples"]] == [1024 * 4**power for power in range(6)]
    for sample in found["samples"]:
        assert sample["is_right"] and 1 <= sample["iterations"] <= 20
        assert sample["bus_gbps"] == pytest.approx(8e-9 * sample["size_bytes"] / sample["time_s"])
    assert [len(node["ranks"]) for node in found["nodes"]] == [2]
    assert found["verdict"]["level"] == "unknown" and "no network" in found["verdict"]["text"]


@pytest.mark.thorough
def test_processes_that_never_come_are_an_error_of_one_line() -> None:
    """Half of a job: status 75 within the time given, and no traceback."""
    alone = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    environ = clean_environ(**alone, MASTER_ADDR="127.0.0.1", MASTER_PORT="0", **THREADS)
    program = "import os, sys; from launcher.bandwidth import __main__ as it; it.TIMEOUT_S = 1.0"
    line = [sys.executable, "-c", f"{program}; sys.exit(it.main([], os.environ))"]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 75, done.stderr
    assert "[peers-missing]" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.thorough
@pytest.mark.gpu
def test_one_gpu_measures_with_nccl(tmp_path: Path) -> None:
    """NCCL on the one GPU, through the launcher: right sums, nothing that travels, no verdict."""
    if not count_gpus(Host()):
        pytest.skip("no NVIDIA GPU here")
    report = tmp_path / "report.json"
    words = ("--max-bytes", "64M", "--format", "json", "--output", str(report))
    line = ("run", "--nproc-per-node", "1", "--standalone", "--", sys.executable, *PROGRAM, *words)
    done = launch(*line, environ=THREADS)
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    assert (found["backend"], found["process_count"]) == ("nccl", 1)
    assert all(sample["is_right"] and sample["bus_gbps"] == 0 for sample in found["samples"])
    assert found["verdict"]["text"].startswith("one process")


@pytest.mark.root
def test_pairs_name_the_throttled_node(tmp_path: Path) -> None:
    """Four nodes, one behind 10 Mbit/s: it is named, and no other."""
    need_namespaces()
    report = tmp_path / "pairs.json"
    words = ("--pairs", "--max-bytes", "256K")
    with Cluster(4) as cluster:
        throttle(cluster, cluster.nodes[2])
        outputs = run_on_all(cluster, (*words, "--format", "json", "--output", str(report)))
    found = json.loads(report.read_text())
    assert found["slow_nodes"] == ["node2"], outputs
    assert found["verdict"][0].startswith("node2 is slow with all others")
    by_nodes = {tuple(pair["nodes"]): pair for pair in found["pairs"]}
    assert len(by_nodes) == 6
    for nodes, pair in by_nodes.items():
        assert pair["bus_gbps"] < 0.02 or "node2" not in nodes
        assert pair["was_alone"] or "node2" not in nodes


def throttle(cluster: Cluster, node: Node) -> None:
    """Let a node send no more than 10 Mbit/s."""
    subprocess.run(cluster.argv(node, ["tc", *LIMIT]), check=True, timeout=30)


def run_on_all(cluster: Cluster, words: Sequence[str]) -> list[tuple[str, str]]:
    """Run it with one process on each node; return what each launcher said."""
    jobs = []
    for node in cluster.nodes:
        place = ("--nnodes", str(len(cluster.nodes)), "--node-rank", str(node.index))
        line = (*place, "--master-addr", cluster.nodes[0].address, "--engine", "process")
        command = (sys.executable, "-m", "launcher", "run", *line, "--", sys.executable, *PROGRAM, *words)
        jobs.append(
            subprocess.Popen(
                cluster.argv(node, command),
                env=clean_environ(**THREADS),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [job.communicate(timeout=DEADLINE_S) for job in jobs]
    assert [job.returncode for job in jobs] == [0] * len(jobs), outputs
    return outputs
