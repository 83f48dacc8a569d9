"""--preload with the frameworks themselves: training to the digit, DataLoaders, record, stacks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.looking import wait_for
from tests.process.starting import DEADLINE_S, ROOT, launch, open_launcher

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("preload_torch")]

TWO = ("run", "--nproc-per-node", "2")
USED = " imported once, "
TRAINS = """
import json
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(0)
dist.init_process_group("gloo")
data = TensorDataset(torch.randn(128, 16), torch.randn(128, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler, num_workers=2, multiprocessing_context="{method}")
layers = torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1)
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item().hex(), torch.get_num_threads(), flush=True)
print([parameter.double().sum().item().hex() for parameter in model.parameters()])
dist.destroy_process_group()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_training_is_the_same_to_the_digit(method: str, tmp_path: Path) -> None:
    """DDP over gloo, and a DataLoader with workers."""
    script = tmp_path / "train.py"
    body = TRAINS.format(method=method)
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    script.write_text(f"def main():\n{lines}\nif __name__ == '__main__':\n    main()\n")
    plain = launch(*TWO, str(script))
    forked = launch(*TWO, "--preload", "torch", str(script))
    assert plain.returncode == forked.returncode == 0, plain.stderr + forked.stderr
    assert USED in forked.stderr
    assert sorted(forked.stdout.splitlines()) == sorted(plain.stdout.splitlines())


@pytest.mark.thorough
def test_record_writes_the_error(tmp_path: Path) -> None:
    """The report quotes it, as without."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os\nfrom torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\ndef main():\n    if os.environ['RANK'] == '1': raise ValueError('of rank 1')\n"
        "    import time; time.sleep(600)\nmain()\n"
    )
    record = tmp_path / "failure.json"
    done = launch(*TWO, "--preload", "torch", "--failure-file", str(record), str(script))
    assert done.returncode == 1 and USED in done.stderr
    told = json.loads(record.read_text())
    assert told["rank"] == 1 and told["exception"] == "ValueError: of rank 1"
    assert "template.py" not in told["traceback"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("example", "module"),
    [
        ("jax_data_parallel", "jax"),
        ("tensorflow_multiworker", "tensorflow"),
        ("transformers_trainer", "transformers"),
    ],
)
def test_other_frameworks_survive(example: str, module: str) -> None:
    """Their example runs in forks of one process."""
    environ = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = launch(*TWO, "--preload", "auto", f"{ROOT}/examples/{example}.py", environ=environ)
    assert done.returncode == 0, done.stderr
    assert module in done.stderr.partition(USED)[0] or "more" in done.stderr.partition(USED)[0]
    assert "not used" not in done.stderr


def test_it_can_be_looked_at(tmp_path: Path) -> None:
    """py-spy and `launcher stacks` show the script's frames, and none of ours."""
    script = tmp_path / "train.py"
    text = "def wait_here():\n    print(os.getpid(), flush=True)\n    time.sleep(600)\n"
    script.write_text(f"import os, time\n{text}wait_here()\n")
    running = open_launcher(*TWO, "--preload", "torch", str(script))
    assert running.stdout is not None
    pids = [int(running.stdout.readline().split()[-1]) for _ in range(2)]
    try:
        stacks = launch("stacks", "--job", str(running.pid))
        assert stacks.stdout.count("wait_here") >= 1, stacks.stdout + stacks.stderr
        assert "template.py" not in stacks.stdout
        spied = subprocess.run(
            ["py-spy", "dump", "--pid", str(pids[0])], capture_output=True, text=True, check=True
        )
        assert "wait_here" in spied.stdout and "template" not in spied.stdout
    finally:
        running.terminate()
        running.communicate(timeout=DEADLINE_S)


@pytest.mark.thorough
def test_coverage_measures_the_script(tmp_path: Path) -> None:
    """``coverage run`` is the program, and each rank writes its own data."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os\nif os.environ['RANK'] == '0':\n    print('zero')\nelse:\n    print('one')\n"
    )
    data = tmp_path / "data"
    command = (sys.executable, "-m", "coverage", "run", "-p", "--data-file", str(data), str(script))
    done = launch(*TWO, "--preload", "json", *command)
    assert done.returncode == 0, done.stderr
    assert USED in done.stderr
    wait_for(lambda: len(list(tmp_path.glob("data.*"))) == 2, "a file for each rank")
