"""What DeepSpeed needs in tests: a folder for what it compiles, and its own command."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = "deepspeed_zero.py"


def deepspeed_environ() -> dict[str, str]:
    """Return its variables on machines without a GPU, and a PATH on which its command is.

    At first use it compiles a small operation, for 20 s or more: once for all tests, whatever HOME is.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.environ.get("LAUNCHER_CACHE") or os.path.join(cache, "cluster-launcher")
    return {
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": os.path.join(folder, "torch_extensions"),
        "PATH": ":".join((os.path.dirname(sys.executable), find_commands(), os.environ["PATH"])),
    }


def find_commands() -> str:
    """Return the folder with the commands ``deepspeed`` and ``ninja``."""
    found = importlib.util.find_spec("deepspeed")
    if found is None or found.origin is None:
        pytest.fail("no deepspeed: run bash tools/test.sh", pytrace=False)
    site = os.path.dirname(os.path.dirname(found.origin))
    return os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(site))), "bin")


TUNED = """
import argparse, json, os, socket, time
import deepspeed, torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser.add_argument("--out")
options = deepspeed.add_config_arguments(parser).parse_args()
deepspeed.init_distributed()
torch.manual_seed(0)
network = nn.Linear(64, 64)
engine, *_ = deepspeed.initialize(args=options, model=network, model_parameters=network.parameters())
size = engine.train_micro_batch_size_per_gpu()
total = torch.tensor(10.0 ** engine.global_rank)
deepspeed.comm.all_reduce(total)
hosts = [None] * engine.world_size
torch.distributed.all_gather_object(hosts, socket.gethostname())
if engine.global_rank == 0:
    with open(options.out, "a") as file:
        seen = {"total": float(total), "size": size, "hosts": hosts, "master": os.environ["MASTER_ADDR"]}
        file.write(json.dumps(seen) + chr(10))
while os.environ.get("STAYS"):
    time.sleep(1)
for step in range(12):
    loss = engine(torch.full((size, 64), float(engine.global_rank))).square().mean()
    engine.backward(loss)
    engine.step()
"""


TUNING = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "LAUNCHER_ROLL_CALL_TIMEOUT": "60"}
"""The autotuner takes an experiment for a failure that says "error" anywhere, be it in a warning."""


def write_tuned(folder: Path) -> tuple[str, ...]:
    """Write a script and a configuration for the autotuner, and return its command.

    Each experiment adds a line to the file ``out``: the sum over all ranks, which differs for each set of
    them, and where they run.
    """
    (folder / "tuned.py").write_text(TUNED)
    config = {
        "train_micro_batch_size_per_gpu": [4],
        "optimizer": {"type": "Adam", "params": {"lr": 0.001, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
        "autotuning": {
            "enabled": True,
            "fast": True,
            "start_profile_step": 2,
            "end_profile_step": 4,
            "exps_dir": str(folder / "experiments"),
            "results_dir": str(folder / "results"),
        },
    }
    (folder / "ds.json").write_text(json.dumps(config))
    script = (str(folder / "tuned.py"), "--out", str(folder / "out"))
    return (
        *(sys.executable, "-m", "deepspeed.launcher.runner", "--autotuning", "tune"),
        *script,
        *("--deepspeed", "--deepspeed_config", str(folder / "ds.json")),
    )


def read_tuned(folder: Path) -> list[dict[str, Any]]:
    """Return what experiments have written."""
    return [json.loads(line) for line in (folder / "out").read_text().splitlines()]
