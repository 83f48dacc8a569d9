"""The examples do what they say, in real processes, before any launcher is involved."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.torch

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 120
GOOD_PERCENT = 95.0
# Gradients averaged over N processes are those of one up to the order of additions, so that an image on the
# border may fall on either side. One of the 357 test images is 0.28 %.
AGREE_PERCENT = 0.6
EPOCH = re.compile(
    r"epoch (?P<epoch>\d+)/\d+: loss (?P<loss>[\d.]+), accuracy (?P<accuracy>[\d.]+) %"
    r" \((?P<job>[^)]*)\)"
)


class Epoch(NamedTuple):
    """One line of ``train_ddp.py``."""

    number: int
    loss: float
    accuracy: float
    job: str


@pytest.fixture(scope="module", autouse=True)
def _torch_is_there() -> None:
    """Fail, rather than skip, where the framework environment is missing."""
    if importlib.util.find_spec("torch") is None:
        pytest.fail("torch is not installed: run bash tools/test.sh", pytrace=False)


def start(script: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start an example with these variables and none that a job would set."""
    environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    # One thread each: the processes share the cores, and sums depend on the number of threads.
    environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / script), *arguments],
        env=environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_job(
    world_size: int, script: str, *arguments: str, processes_per_node: int
) -> list[subprocess.Popen[str]]:
    """Start an example as a job with explicit variables, in rank order."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        start(
            script,
            *arguments,
            RANK=str(rank),
            WORLD_SIZE=str(world_size),
            LOCAL_RANK=str(rank % processes_per_node),
            NODE_RANK=str(rank // processes_per_node),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
        for rank in range(world_size)
    ]


def finish(processes: list[subprocess.Popen[str]], status: int = 0) -> tuple[list[str], list[str]]:
    """Wait for all, require this status of each, and return what they printed: stdout, stderr."""
    try:
        texts = [process.communicate(timeout=TIMEOUT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    outputs, errors = [output for output, _ in texts], [error for _, error in texts]
    assert [status] * len(processes) == [process.returncode for process in processes], errors
    return outputs, errors


def run_alone(script: str, *arguments: str) -> str:
    """Run an example by hand, with no variables set, and return what it printed."""
    (output,), _ = finish([start(script, *arguments)])
    return output


def parse_epochs(text: str) -> list[Epoch]:
    """Return the epochs in what rank 0 printed."""
    return [
        Epoch(int(found["epoch"]), float(found["loss"]), float(found["accuracy"]), found["job"])
        for found in EPOCH.finditer(text)
    ]


@pytest.fixture(scope="module")
def alone() -> list[Epoch]:
    """The epochs of one process."""
    return parse_epochs(run_alone("train_ddp.py"))


@pytest.mark.thorough
def test_one_process_without_variables_learns_the_digits(alone: list[Epoch]) -> None:
    """By hand the script is a world of one, and reaches 95 % in its default number of epochs."""
    assert [epoch.number for epoch in alone] == [1, 2, 3, 4, 5]
    assert {"1 process on 1 node"} == {epoch.job for epoch in alone}
    assert alone[-1].accuracy >= GOOD_PERCENT


def test_two_processes_reach_what_one_reaches(alone: list[Epoch]) -> None:
    """The same global batches and averaged gradients: every epoch agrees, not only the last."""
    (printed, other), _ = finish(start_job(2, "train_ddp.py", processes_per_node=1))
    assert other == "", "only rank 0 prints"
    together = parse_epochs(printed)
    assert {"2 processes on 2 nodes"} == {epoch.job for epoch in together}
    assert len(alone) == len(together)
    for expected, actual in zip(alone, together, strict=True):
        assert actual.loss == pytest.approx(expected.loss, rel=0.02, abs=0.002)
        assert actual.accuracy == pytest.approx(expected.accuracy, abs=AGREE_PERCENT)


@pytest.mark.thorough
def test_resumes_after_the_saved_epoch(alone: list[Epoch], tmp_path: Path) -> None:
    """Two processes stop after epoch 3; one takes over at 4, and ends where it would alone."""
    checkpoint = tmp_path / "digits.pt"
    arguments = ("--epochs", "3", "--checkpoint", str(checkpoint))
    (first, _), _ = finish(start_job(2, "train_ddp.py", *arguments, processes_per_node=2))
    assert [epoch.number for epoch in parse_epochs(first)] == [1, 2, 3]
    assert {"2 processes on 1 node"} == {epoch.job for epoch in parse_epochs(first)}

    second = run_alone("train_ddp.py", "--checkpoint", str(checkpoint))
    assert second.startswith(f"resumed from {checkpoint} after epoch 3\n")
    resumed = parse_epochs(second)
    assert [epoch.number for epoch in resumed] == [4, 5]
    assert resumed[-1].accuracy == pytest.approx(alone[-1].accuracy, abs=AGREE_PERCENT)
    assert [checkpoint] == list(tmp_path.iterdir()), "no half-written file stays behind"


def test_all_reduce_adds_up_and_shows_who_took_part() -> None:
    """One JSON line on rank 0: the right sum, and each process's own variables in rank order."""
    (printed, *others), _ = finish(start_job(3, "allreduce.py", processes_per_node=2))
    assert others == ["", ""]
    expected = {
        "sum": 6,
        "expected": 6,
        "processes": [
            {
                "hostname": socket.gethostname(),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank % 2),
                "NODE_RANK": str(rank // 2),
                "MASTER_ADDR": "127.0.0.1",
            }
            for rank in range(3)
        ],
    }
    assert expected == json.loads(printed)
