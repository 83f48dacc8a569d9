"""JAX's example on two simulated nodes, as each platform starts it: it learns what one process learns.

Each process has half of the images. The loss of a job that did not add up over both, or that counted one
half twice, is another one from the first step on.
"""

from __future__ import annotations

import pytest

from launcher.rehearse.cluster import find_fallback_reason
from tests.cluster.frameworks import run_example

pytestmark = [pytest.mark.torch, pytest.mark.root]

EXAMPLE = "jax_data_parallel.py"


@pytest.fixture(scope="module")
def alone() -> str:
    """What one process learns."""
    if find_fallback_reason():
        pytest.skip("needs root, or a kernel that gives user namespaces to us")
    job, _, learned = last_line(run_example("plain", EXAMPLE, nodes=1)).partition(": ")
    assert job == "processes 1, devices 1"
    return learned


def last_line(printed: str) -> str:
    """Return what rank 0 said at its end; gloo says something before."""
    return printed.splitlines()[-1]


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("like", "scope"),
    [
        ("azureml-mpi", None),  # mpirun starts a launcher for every process
        ("azure-batch", None),
        ("azureml-pytorch", "node"),
        ("openmpi", None),
    ],
)
def test_two_nodes_learn_what_one_process_learns(alone: str, like: str, scope: str | None) -> None:
    """``jax.distributed.initialize()`` without arguments, on every platform; the script shows what it is."""
    printed = run_example(like, EXAMPLE, scope=scope)
    assert last_line(printed) == f"processes 2, devices 2: {alone}"
