"""What stands on PyTorch: FSDP, Lightning, Transformers' Trainer, Accelerate, on two nodes of every platform.

Each example prints the loss over all images, from parameters that all processes agree on. Two processes share
each batch that one would take, so it has to be the loss that one process reaches alone: with a wrong rank,
world or master it is another one, or none.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from itertools import product

import pytest

from tests.cluster.conftest import need_namespaces
from tests.cluster.frameworks import EXAMPLES, printed, rehearse, run_alone, run_example

pytestmark = [pytest.mark.root, pytest.mark.torch]

STYLES = {
    "azureml-mpi": "lightning_fit.py",
    "azureml-pytorch": "transformers_trainer.py",
    "azure-batch": "accelerate_loop.py",
    "openmpi": "fsdp.py",
}
"""How two nodes are started, and which example is seen there in every run of the tests."""
NAMES = tuple(STYLES.values())
OPTIONS = {"lightning_fit.py": {"LAUNCHER_FRAMEWORK": "lightning"}}
RESULT = re.compile(r"^loss ([\d.]+), the same in (\d+) process(?:es)?(.*)$", flags=re.MULTILINE)
AGREE = 2e-4
"""Gradients of two halves are those of the whole up to the order of additions."""
SHOW = "import os, sys; os.write(1, (' '.join(sys.argv[1:]) + chr(10)).encode())"


def read_result(text: str) -> tuple[float, int, str]:
    """Return the loss, how many processes agree on it, and the rest of the one line that rank 0 prints."""
    (found,) = RESULT.findall(text)
    return float(found[0]), int(found[1]), found[2]


@cache
def loss_alone(name: str) -> float:
    """Return what one process reaches."""
    loss, count, _ = read_result(run_alone(name))
    assert count == 1
    return loss


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("like", "name"),
    [
        pytest.param(like, name, marks=pytest.mark.xdist_group(name))
        for like, name in sorted(product(STYLES, NAMES), key=lambda pair: STYLES[pair[0]] != pair[1])
    ],
)
def test_two_nodes_learn_what_one_process_learns(like: str, name: str) -> None:
    """Each example once, and each platform: started once per process by some, once per node by others."""
    need_namespaces()
    loss, count, rest = read_result(run_example(like, name, environ=OPTIONS.get(name)))
    assert count == 2
    assert loss == pytest.approx(loss_alone(name), abs=AGREE)
    if name == "fsdp.py":
        assert "each keeps 8613 of 17226 parameters" in rest


@pytest.mark.xdist_group("accelerate_loop.py")
def test_accelerate_launch_is_told_the_job() -> None:
    """``accelerate launch`` once per node, without a config file or a flag: 2 nodes x 2 processes."""
    need_namespaces()
    command = (sys.executable, "-m", "accelerate.commands.launch", f"{EXAMPLES}/accelerate_loop.py")
    loss, count, _ = read_result(printed(rehearse("azure-batch", *command, processes=2)))
    assert count == 4
    assert loss == pytest.approx(loss_alone("accelerate_loop.py"), abs=AGREE)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("like", "scope", "engine"),
    [
        ("azureml-mpi", "process", "auto"),
        ("azure-batch", "node", "process"),
        ("azure-batch", "node", "torchrun"),
    ],
)
def test_each_process_gets_arguments_of_its_own(like: str, scope: str, engine: str) -> None:
    """Whoever starts it: mpirun, the launcher, torchrun's agent."""
    need_namespaces()
    flags = {"LAUNCHER_EXPAND_ARGS": "1", "LAUNCHER_LOCAL_RANK_ARG": "1", "LAUNCHER_ENGINE": engine}
    words = ("python", "-c", SHOW, "--node=${NODE_RANK}", "$RANK/$WORLD_SIZE", "$UNKNOWN")
    done = printed(rehearse(like, *words, processes=2, scope=scope, environ=flags))
    assert sorted(done.splitlines()) == [
        f"--local_rank={local} --node={node} {2 * node + local}/4 $UNKNOWN"
        for local in range(2)
        for node in range(2)
    ]
