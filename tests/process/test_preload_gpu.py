"""--preload on a machine with a GPU: ranks open it after the fork; a module that opens it is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launcher.machine.gpus import list_minors
from launcher.machine.host import Host
from tests.process.starting import launch
from tests.process.test_recorder_gpu import count_gpus

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.xdist_group("torch"),
    pytest.mark.skipif(not list_minors(Host()), reason="no NVIDIA GPU: there is no /dev/nvidia0"),
]

USED = " imported once, "
REDUCES = """
import os
import torch, torch.distributed as dist
assert not torch.cuda.is_initialized()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
value = torch.ones(1 << 20, device="cuda")
dist.all_reduce(value)
torch.cuda.synchronize()
print("sum", int(value.sum().item()) >> 20, torch.cuda.initial_seed(), flush=True)
dist.destroy_process_group()
"""


def run(folder: Path, *flags: str, processes: int) -> tuple[int, str, str]:
    """Run the script; return status, output and messages."""
    script = folder / "train.py"
    script.write_text(REDUCES)
    words = ("run", "--nproc-per-node", str(processes), *flags, "--", sys.executable, str(script))
    done = launch(*words)
    return done.returncode, done.stdout, done.stderr


def test_ranks_initialise_cuda_after_the_fork(tmp_path: Path) -> None:
    """NCCL over all GPUs of this machine, in forks of a process that has imported torch."""
    count = count_gpus()
    status, printed, log = run(tmp_path, "--preload", "torch", processes=count)
    assert status == 0, log
    assert USED in log
    assert printed.count(f"sum {count} ") == count


def test_module_that_initialises_cuda_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its context would not survive the fork: the ranks start in the ordinary way."""
    (tmp_path / "opens_gpu.py").write_text("import torch\ntorch.ones(1, device='cuda')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    status, printed, log = run(tmp_path, "--preload", "opens_gpu", processes=1)
    assert status == 0, log
    assert USED not in log
    assert "preload skipped" in log
    assert "/dev/nvidia" in log
    assert "sum 1 " in printed
