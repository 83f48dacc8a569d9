"""Asks the real DeepSpeed where a process stands, once for each environment in a list on standard input.

What would talk to other processes is replaced: the process group, and MPI.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from deepspeed.accelerator import get_accelerator
from deepspeed.comm import comm
from deepspeed.comm.utils import (
    get_local_rank_from_launcher,
    get_world_rank_from_launcher,
    get_world_size_from_launcher,
)
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.model_checkpointing.utils import create_universal_parallel_info

OTHERS = {
    name: getattr(comm, name)
    for name in (
        "mpi_discovery",
        "patch_aml_env_for_torch_nccl_backend",
        "patch_aws_sm_env_for_torch_nccl_backend",
    )
}
"""Its ways of asking somebody else."""


class Group:
    """A process group that only has what env:// would have."""

    def __init__(self, *_: object) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def is_initialized(self) -> bool:
        """It is."""
        return True

    def get_rank(self, group: object = None) -> int:
        """As torch.distributed takes it from env://."""
        return self.rank

    def get_world_size(self, group: object = None) -> int:
        """As torch.distributed takes it from env://."""
        return self.size


def ask(environ: dict[str, str]) -> dict[str, Any]:
    """Return what DeepSpeed says of a process with this environment."""
    os.environ.clear()
    os.environ.update(environ)
    asked: list[str] = []
    comm.cdb, comm.TorchBackend, comm.init_deepspeed_backend = None, Group, lambda *_: None
    for name, function in OTHERS.items():
        setattr(comm, name, partial(note, asked, name, function))
    try:
        comm.init_distributed("gloo")
        return {"asked": asked, **describe()}
    except Exception as error:  # what it dies of is the answer
        return {"asked": asked, "error": f"{type(error).__name__}: {error}"}


def note(asked: list[str], name: str, function: Callable[..., None], **options: object) -> None:
    """Note that a function is called, and call it; MPI itself would start here."""
    asked.append(name)
    if name != "mpi_discovery":
        function(**options)


def describe() -> dict[str, Any]:
    """Return all that DeepSpeed reads of the place of a process."""
    engine = SimpleNamespace()
    arguments = SimpleNamespace(local_rank=get_local_rank_from_launcher())
    DeepSpeedEngine._do_args_sanity_check(engine, arguments)
    DeepSpeedEngine._configure_with_arguments(engine, arguments, None)
    found = {
        "rank": get_world_rank_from_launcher(),
        "local_rank": arguments.local_rank,
        "world_size": get_world_size_from_launcher(),
        "master": f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        "engine_local_rank": engine.local_rank,
        "local_size": get_accelerator().device_count(),
        "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME"),
    }
    if "CROSS_RANK" in os.environ and "CROSS_SIZE" in os.environ:
        groups = SimpleNamespace(mpu=None)
        place = create_universal_parallel_info(groups, has_moe_layers=False)
        found |= {"machine_rank": place.machine_rank, "num_machines": place.num_machines}
    return found


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps([ask(environ) for environ in json.load(sys.stdin)]) + "\n")
