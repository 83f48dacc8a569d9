"""Bandwidth between real processes: on this machine, and on simulated nodes of which one is throttled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from launcher.machine.gpus import count_gpus
from launcher.machine.host import Host
from launcher.rehearse.cluster import Cluster, SimulatedNode
from tests.cluster.conftest import need_namespaces
from tests.process.starting import clean_environ, launch

pytestmark = pytest.mark.torch

DEADLINE_S = 120.0
PROGRAM = ("-m", "launcher.bandwidth")
LIMIT = (
    *("qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "50mbit", "burst", "32kbit", "latency"),
    "400ms",
)
TWO = ("--nproc-per-node", "2", "--standalone")
THREADS = {"OMP_NUM_THREADS": "1"}


@pytest.mark.thorough
def test_two_processes_measure_all_sizes() -> None:
    """Each size once, the right sums, and a verdict, from rank 0 alone."""
    done = launch("run", *TWO, "--no-prefix", "--", sys.executable, *PROGRAM, environ=THREADS)
    assert done.returncode == 0, done.stderr
    title, _, _, *samples, _, verdict = done.stdout.splitlines()
    assert title.startswith("all-reduce of float32, processes: 2, nodes: 1, gloo, torch ")
    assert [line.split()[0] for line in samples] == [f"{1 << power:,}" for power in range(10, 31, 4)]
    assert "nothing to compare with (gloo uses neither InfiniBand nor NVLink)" in verdict


@pytest.mark.thorough
def test_processes_that_never_come_end_the_measurement() -> None:
    """Half of a job: torch's own error within the time given, which the launcher's report explains."""
    alone = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    environ = clean_environ(**alone, MASTER_ADDR="127.0.0.1", MASTER_PORT="0", **THREADS)
    program = "import os, sys; from launcher.bandwidth import __main__ as it, job; job.TIMEOUT_S = 1.0"
    line = [sys.executable, "-c", f"{program}; sys.exit(it.main([], os.environ))"]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 1 and "1/2 clients joined" in done.stderr


@pytest.mark.thorough
@pytest.mark.gpu
def test_one_gpu_measures_with_nccl() -> None:
    """NCCL on the one GPU, through the launcher: right sums, nothing that travels, no verdict."""
    if not count_gpus(Host()):
        pytest.skip("no NVIDIA GPU here")
    line = ("run", "--nproc-per-node", "1", "--standalone", "--", sys.executable, *PROGRAM)
    done = launch(*line, environ=THREADS)
    assert done.returncode == 0, done.stderr
    assert "processes: 1, nodes: 1, NCCL " in done.stdout and "WRONG" not in done.stdout
    assert "verdict: one process" in done.stdout


@pytest.mark.root
def test_pairs_name_the_throttled_node() -> None:
    """Four nodes, one behind 50 Mbit/s: it is named as slow with all others, and no other is."""
    need_namespaces()
    with Cluster(4) as cluster:
        throttle(cluster, cluster.nodes[2])
        outputs = run_on_all(cluster, ("--pairs",))
    report = outputs[0][0]
    # Beside other tests a single pair may be slow, too
    (verdict,) = (line for line in report.splitlines() if "slow with all others" in line)
    assert "verdict: node2: slow with all others" in verdict, report
    slowest = [line for line in report.splitlines() if line.startswith("  node") and "Gb/s, " in line]
    assert len(slowest) == 6
    assert all(("node2" in line) == (index < 3) for index, line in enumerate(slowest)), report


def throttle(cluster: Cluster, node: SimulatedNode) -> None:
    """Let a node send no more than 50 Mbit/s."""
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
