"""PyTorch's process group up to the socket: all of PyTorch's own reading of variables, and no store.

What is stood in for: the TCPStore (it would listen or connect), the group behind it, and CUDA's choice
of a device, which is what libraries do with the local rank.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")
dist: Any = import_module("torch.distributed")
rendezvous: Any = sys.modules["torch.distributed.rendezvous"]

met: dict[str, Any] = {}
"""What the group was made with: rank, world_size, master_addr, master_port, device."""


class Store:
    """Notes where it would be, and whether it would listen there."""

    def __init__(self, host_name: str, port: int, world_size: int, is_master: bool, **_: object) -> None:
        met.update(master_addr=host_name, master_port=port, listens=is_master)


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    *_: object,
    world_size: int = -1,
    rank: int = -1,
    store: object = None,
    **__: object,
) -> None:
    """Find out rank, size and master as PyTorch does; a store of the caller's own means a job of one."""
    met["backend"] = backend
    if store is not None:
        met.update(rank=rank, world_size=world_size)
        return
    _, found_rank, found_size = next(rendezvous.rendezvous(init_method or "env://", rank, world_size))
    met.update(rank=found_rank, world_size=found_size)


def _barrier(*_: object, **__: object) -> None:
    """Nobody is there to wait for."""


def _set_device(device: object) -> None:
    met["device"] = torch.device(device).index if isinstance(device, str) else device


dist.init_process_group = dist.distributed_c10d.init_process_group = init_process_group
dist.is_initialized = dist.distributed_c10d.is_initialized = lambda: "rank" in met
dist.get_rank = dist.distributed_c10d.get_rank = lambda group=None: met["rank"]
dist.get_world_size = dist.distributed_c10d.get_world_size = lambda group=None: met["world_size"]
dist.get_backend = dist.distributed_c10d.get_backend = lambda group=None: met["backend"] or "gloo"
dist.barrier = dist.distributed_c10d.barrier = _barrier
rendezvous.TCPStore = Store
torch.cuda.set_device = _set_device


def begin() -> None:
    """Forget the group of the environment before."""
    met.clear()


def result(names: Iterable[str] = ("rank", "world_size", "master_addr", "master_port")) -> dict[str, Any]:
    """Return what the group was made with; nothing of it means that none was made."""
    return {name: met.get(name) for name in names}
