"""Horovod without MPI: the variables that its own launcher gives to a process in the same place.

The other way round than the rest: Horovod's reader is compiled, and needs its rendezvous server. But its
launcher, horovodrun --gloo, makes the variables with `create_slot_env_vars`, and ours must be those.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

gloo_run: Any = import_module("horovod.runner.gloo_run")
hosts: Any = import_module("horovod.runner.common.util.hosts")


def answer() -> dict[str, Any]:
    """Names that ours lacks are left out; a name that is there has horovodrun's value."""
    for name, value in theirs().items():
        ours = os.environ.get(name, value)
        assert ours == value, f"{name}={ours}, not {value}"
    numbers = {"rank": "RANK", "world_size": "SIZE", "local_rank": "LOCAL_RANK", "local_size": "LOCAL_SIZE"}
    return {key: _number(f"HOROVOD_{name}") for key, name in numbers.items()}


def theirs() -> dict[str, str]:
    """Return what horovodrun gives to a process in the place that PyTorch's variables tell.

    Without its host, which is a name that horovodrun chooses. A process's place across nodes is that of
    its node only where all nodes have as many processes.
    """
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_WORLD_SIZE")
    rank, local_rank, size, local_size, node, nodes = (int(os.environ.get(name, 0)) for name in names)
    slot = hosts.SlotInfo("", rank, local_rank, node, size, local_size, nodes)
    given = gloo_run.create_slot_env_vars(slot)
    even = "NODE_RANK" in os.environ and local_size * nodes == size
    unknown = (
        ("HOROVOD_HOSTNAME",) if even else ("HOROVOD_HOSTNAME", "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE")
    )
    return {name: value for name, value in given.items() if name not in unknown}


def _number(name: str) -> int | None:
    return int(os.environ[name]) if name in os.environ else None
