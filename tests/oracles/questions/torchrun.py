"""torchrun inside of a process: what a job has left over must not make it one of several agents."""

from __future__ import annotations

from importlib import import_module
from typing import Any

run: Any = import_module("torch.distributed.run")


def answer() -> dict[str, Any]:
    """``torchrun train.py`` is a job of its own, on one node."""
    config, _, _ = run.config_from_args(run.get_args_parser().parse_args(["train.py"]))
    return {"own_job": (config.min_nodes, config.max_nodes, config.nproc_per_node) == (1, 1, 1)}
