"""DeepSpeed for real, on simulated nodes without GPUs: its own training, its own command, its autotuner.

The batch is the job's, so that two processes must reach the very loss that one reaches: each sees half of
the data, and ZeRO gives each half of the optimizer's state. Whoever did not hear of the other would not.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.rehearse.cluster import Cluster
from tests.cluster.conftest import need_namespaces
from tests.cluster.fleets import Fleet
from tests.cluster.frameworks import EXAMPLES, printed, rehearse, run_example
from tests.mpis import Mpi
from tests.process.looking import wait_for
from tests.zero import EXAMPLE, TUNING, deepspeed_environ, read_tuned, write_tuned

pytestmark = [pytest.mark.root, pytest.mark.torch, pytest.mark.xdist_group("deepspeed")]

TUNING_S = 600.0
FIGURES = re.compile(r"epoch 3/3: (loss [\d.]+, accuracy [\d.]+ %) \((\d+) processes\)")
STYLES = {"azureml-mpi": "process", "azureml-pytorch": "node", "azure-batch": "node", "openmpi": "process"}


@pytest.fixture(scope="module")
def alone() -> str:
    """Return the figures that one process reaches."""
    (found,) = FIGURES.findall(run_example("plain", EXAMPLE, nodes=1, environ=deepspeed_environ()))
    assert found[1] == "1"
    return str(found[0])


@pytest.mark.thorough
@pytest.mark.parametrize("like", ["openmpi", "azure-batch", "azureml-mpi", "azureml-pytorch"])
def test_two_nodes_learn_what_one_process_learns(like: str, alone: str) -> None:
    """However a platform starts it: the loss of the same steps, to its last digit."""
    out = run_example(like, EXAMPLE, scope=STYLES[like], environ=deepspeed_environ())
    assert FIGURES.findall(out) == [(alone, "2")]


def test_its_own_command_on_each_of_two_nodes(alone: str) -> None:
    """``deepspeed train.py`` under the launcher: told its node, it starts its half, without ssh.

    What the user tells it, here a port, stands.
    """
    command = ("deepspeed", "--master_port", "6200", os.path.join(EXAMPLES, EXAMPLE))
    done = rehearse("azure-batch", *command, environ=deepspeed_environ())
    assert FIGURES.findall(printed(done)) == [(alone, "2")]
    flags = r"launcher.launch .*--master_addr=(\S+) --master_port=(\d+) --node_rank=(\d)"
    started = re.findall(flags, done.stdout + done.stderr)
    assert sorted(started) == [("10.77.0.10", "6200", "0"), ("10.77.0.10", "6200", "1")]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Fleet]:
    """Yield two nodes with a token of the job."""
    need_namespaces()
    with Cluster(2) as cluster:
        fleet = Fleet(cluster, Mpi("", "", deepspeed_environ()), tmp_path)
        yield fleet
        fleet.close()


@pytest.mark.thorough
def test_its_autotuner_runs_experiments_on_both_nodes(two: Fleet, tmp_path: Path) -> None:
    """Started once per node: node 0 tunes, node 1 serves until it is done; experiments run on both."""
    for node in two.cluster.nodes:
        words = ("--nproc-per-node", "1", "--", *write_tuned(tmp_path))
        two.start(node, *words, command="run", environ=TUNING)
    head, other = two.wait(TUNING_S)
    assert (head.status, other.status) == (0, 0), head.err[-4000:] + other.err[-1000:]
    assert (tmp_path / "results" / "ds_config_optimal.json").exists(), head.out[-3000:]
    last = read_tuned(tmp_path)[-1]
    assert last == {"total": 11.0, "size": 4, "hosts": ["node0", "node1"], "master": "node0"}
    two.await_empty()


@pytest.mark.thorough
def test_sigterm_ends_an_experiment_on_both_nodes(two: Fleet, tmp_path: Path) -> None:
    """Told to node 0 while an experiment runs: both end with its status, and nothing is left on either."""
    for node in two.cluster.nodes:
        words = ("--nproc-per-node", "1", "--", *write_tuned(tmp_path))
        two.start(node, *words, command="run", environ={**TUNING, "STAYS": "1"})
    deadline = time.monotonic() + TUNING_S / 4
    while not (tmp_path / "out").exists():
        assert time.monotonic() < deadline, "no experiment has started"
        time.sleep(0.1)  # between two looks: there is nothing to wait on
    assert any("tuned.py" in line for line in two.processes(two.cluster.nodes[1]))
    two.cluster.kill(two.launchers[0].pid, signal.SIGTERM)
    head, other = two.wait(TUNING_S / 4)
    assert (head.status, other.status) == (143, 143), head.err[-3000:] + other.err[-1000:]
    two.await_empty()


def test_a_node_that_is_lost_is_what_failed_and_not_the_autotuner(two: Fleet, tmp_path: Path) -> None:
    """The launcher ends the autotuner, here a program of its name, because the node is gone."""
    began = tmp_path / "began"
    stub = tmp_path / "deepspeed"
    stub.write_text(f"#!/bin/sh\ntouch {began}\nexec sleep 600\n")
    stub.chmod(0o755)
    path = f"{tmp_path}:{deepspeed_environ()['PATH']}"
    for node in two.cluster.nodes:
        words = ("--nproc-per-node", "1", "--", "deepspeed", "--autotuning", "tune", __file__)
        two.start(node, *words, command="run", environ={"PATH": path})
    wait_for(began.exists, "the autotuner runs", TUNING_S / 10)
    two.cluster.kill(two.launchers[1].pid, signal.SIGKILL)
    head, _ = two.wait()
    assert head.status == 75, head.err
    assert "node 1 failed first: it is lost" in head.err and "deepspeed failed" not in head.err, head.err
