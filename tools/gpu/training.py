"""Real training through the launcher: examples, starters, and the time to a first step."""

from __future__ import annotations

import sys
import time
from typing import Any

from part import LAUNCHER, Part, all_results

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", "--standalone")
ONE = "--num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no"
ACCELERATE = (sys.executable, "-m", "accelerate.commands.launch", *ONE.split())
TURNS = 1
SHARED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "HF_HUB_OFFLINE": "1"}
"""For jobs beside others on one GPU: JAX would take most of its memory at once."""


def train(part: Part, name: str, flags: tuple[str, ...], command: tuple[str, ...], word: str) -> None:
    """Run a job that learns something; it says so, and ends with 0."""
    with part.step(name):
        done = part.job(name, flags, *command, limit_s=55, environ=SHARED)
        part.check(f"{name}: status", 0, done.status)
        part.holds(f"{name}: output", word, done.out)
        part.check(f"{name}: no warning of ours", False, "launcher: warning" in done.err)
        part.figure(f"{name}: output", (done.out[-600:], done.err[-1500:]))


def ddp(part: Part) -> None:
    """DistributedDataParallel with NCCL, and the Trainer of Transformers."""
    train(part, "ddp", (), (sys.executable, "examples/train_ddp.py", "--epochs", "2"), "accuracy")
    trainer = (sys.executable, "examples/transformers_trainer.py")
    train(part, "transformers", (), trainer, "loss")
    train(part, "transformers-preload", ("--preload", "torch,transformers"), trainer, "loss")


def two(part: Part) -> None:
    """Two ranks, and four, share the card, with gloo on CUDA tensors; also forked from one with torch."""
    for name, count, flags in (("two", 2, ()), ("four-preload", 4, ("--preload", "torch"))):
        with part.step(name):
            words = ("--nproc-per-node", str(count), *flags)
            done = part.job(name, words, *part.program("first", "gloo"), limit_s=50)
            found = all_results(done.out)
            part.check(f"{name}: status", 0, done.status)
            part.check(f"{name}: sums", [8.0 * count] * count, [one.get("value") for one in found])
            part.figure(name, (found, done.err[-1500:]))


def started(part: Part) -> None:
    """Through us: torchrun, and accelerate with and without its own starter."""
    ddp = ("examples/train_ddp.py", "--epochs", "1")
    train(part, "torchrun", (), (*TORCHRUN, *ddp), "accuracy")
    train(part, "accelerate", (), (sys.executable, "examples/accelerate_loop.py"), "the same in 1 processes")
    train(
        part, "accelerate-launch", (), (*ACCELERATE, "examples/accelerate_loop.py"), "the same in 1 processes"
    )


def jax(part: Part) -> None:
    """JAX finds its job, alone and as two processes that share the card."""
    word = (sys.executable, "examples/jax_data_parallel.py")
    train(part, "jax", (), word, "processes 1, devices 1")


def first(part: Part) -> None:
    """Seconds from the start of the starter to the first step with NCCL, in turns."""
    program = part.program("first", "nccl")
    alone = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29555",
    }
    run = (*LAUNCHER, "run", "--standalone")
    ways: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
        "bare": (program, alone),
        "launcher": ((*run, "--", *program), {}),
        "preload": ((*run, "--preload", "torch", "--", *program), {}),
        "torchrun": ((*TORCHRUN, *program[1:]), {}),
    }
    for turn in range(TURNS):
        for name, (words, environ) in ways.items():
            with part.step(f"{name}-{turn}"):
                began = time.time()
                done = part.run(f"{name}-{turn}", words, 30, environ=environ)
                found = all_results(done.out)
                part.check(f"{name}, turn {turn}: one rank has stepped", (0, 1), (done.status, len(found)))
                if found:
                    part.figure(f"{name}, turn {turn}: s", since(began, found[0]))
                    if name == "preload":
                        part.holds("preload was used", "imported once", done.err)
                        nothing = {"initialized": False, "bad_fork": False, "gpu_files": []}
                        part.check(
                            "what a fork inherits", nothing, {key: found[0].get(key) for key in nothing}
                        )


def since(began: float, rank: dict[str, Any]) -> dict[str, float]:
    """Return the seconds until each stage of a rank."""
    return {name: round(rank[name] - began, 3) for name in ("started", "imported", "joined", "stepped")}
