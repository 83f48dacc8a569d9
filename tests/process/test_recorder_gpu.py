"""The flight recorder of a real NCCL: asked through torch's own pipe while a collective hangs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.process.starting import launch

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.xdist_group("torch")]

SKIPS = """
import os, sys, time
import torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank % torch.cuda.device_count())
dist.init_process_group("nccl")
for _ in range(3):
    dist.all_reduce(torch.ones(1000, device="cuda"))
torch.cuda.synchronize()
if sys.argv[1] == "skips" and rank == 1:
    time.sleep(600)
dist.all_reduce(torch.ones(500 if sys.argv[1] == "size" and rank == 1 else 1000, device="cuda"))
torch.cuda.synchronize()
time.sleep(600)
"""


def hang(folder: Path, how: str, processes: int) -> str:
    """Run ranks that hang; return what the launcher says."""
    (folder / "train.py").write_text(SKIPS)
    flags = ("--stall-timeout", "15", "--on-stall", "stop", "--evidence-dir", str(folder / "evidence"))
    words = ("run", "--init", "--nproc-per-node", str(processes), *flags, "--", sys.executable)
    return launch(*words, str(folder / "train.py"), how).stderr


def count_gpus() -> int:
    """Return the number of GPUs that torch can use."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def test_one_rank_dumps_through_torchs_own_pipe(tmp_path: Path) -> None:
    """One GPU is enough to see that the variables make a pipe, and that a byte in it makes a dump."""
    if count_gpus() < 1:
        pytest.skip("needs a GPU")
    log = hang(tmp_path, "sleeps", 1)
    assert "dumps of the flight recorders: " in log, log
    assert os.listdir(tmp_path / "evidence" / "node0") == ["recorder_rank_0"]


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("skips", "rank 1 never joined all_reduce number 4 of process group 0 (4 kB); rank 0 waited"),
        ("size", "rank 1 gave [[500]] (2 kB)"),
    ],
)
def test_a_hang_of_two_ranks_is_explained(tmp_path: Path, how: str, sentence: str) -> None:
    if count_gpus() < 2:
        pytest.skip("needs two GPUs: NCCL refuses two ranks on one")
    log = hang(tmp_path, how, 2)
    assert f"flight recorder: {sentence}" in log, log
    assert json.dumps(sorted(os.listdir(tmp_path / "evidence" / "node0"))).count("recorder_rank_") == 2
