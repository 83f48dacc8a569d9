"""DeepSpeed for real, on simulated nodes without GPUs: its own training, its own command, its autotuner.

The batch is the job's, so that two processes must reach the very loss that one reaches: each sees half of
the data, and ZeRO gives each half of the optimizer's state. Whoever did not hear of the other would not.
"""

from __future__ import annotations

import os
import re

import pytest

from tests.cluster.frameworks import EXAMPLES, printed, rehearse, run_example
from tests.zero import EXAMPLE, deepspeed_environ

pytestmark = [pytest.mark.root, pytest.mark.torch, pytest.mark.xdist_group("deepspeed")]

FIGURES = re.compile(r"epoch 3/3: (loss [\d.]+, accuracy [\d.]+ %) \((\d+) processes\)")
STYLES = {
    "azureml-mpi": "process",
    "azureml-pytorch": "node",
    "azure-batch": "node",
    "openmpi": "process",
}


@pytest.fixture(scope="module")
def alone() -> str:
    """Return the figures that one process reaches."""
    (found,) = FIGURES.findall(run_example("plain", EXAMPLE, nodes=1, environ=deepspeed_environ()))
    assert found[1] == "1"
    return str(found[0])


@pytest.mark.parametrize("like", STYLES)
def test_two_nodes_learn_what_one_process_learns(like: str, alone: str) -> None:
    """However a platform starts it: the loss of the same steps, to its last digit."""
    out = run_example(like, EXAMPLE, scope=STYLES[like], environ=deepspeed_environ())
    assert FIGURES.findall(out) == [(alone, "2")]


def test_its_own_command_on_each_of_two_nodes(alone: str) -> None:
    """``deepspeed train.py`` under the launcher: told its node, it starts its half, without ssh."""
    command = ("deepspeed", os.path.join(EXAMPLES, EXAMPLE))
    done = rehearse("azure-batch", *command, environ=deepspeed_environ())
    assert FIGURES.findall(printed(done)) == [(alone, "2")]
    started = re.findall(
        r"launcher.launch .*--master_addr=(\S+) .*--node_rank=(\d)", done.stdout + done.stderr
    )
    assert sorted(started) == [("10.77.0.10", "0"), ("10.77.0.10", "1")]
