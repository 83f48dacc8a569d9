"""JAX: ``jax.distributed.initialize()`` without arguments, up to its coordination service.

Stood in for: that service and its client (they would listen and connect), and Kubernetes' API.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any
from unittest.mock import MagicMock

distributed: Any = import_module("jax._src.distributed")
distributed._jax = MagicMock()
distributed.State.initialize_preemption_sync_manager = lambda self: None
devices: list[str] = []


class Config:
    """Notes which GPUs JAX would use."""

    @staticmethod
    def update(name: str, value: str) -> None:
        """Take one setting."""
        if name == "jax_cuda_visible_devices":
            devices[:] = value.split(",")


distributed.config = Config


def answer() -> dict[str, Any]:
    """Also the GPUs, which are ours to say wherever there are some."""
    devices.clear()
    state = distributed.State()
    state.initialize()
    host, _, port = state.coordinator_address.rpartition(":")
    return {
        "rank": state.process_id,
        "world_size": state.num_processes,
        "master_addr": host.strip("[]"),
        "master_port": int(port),
        "gpus": ",".join(devices) or None,
    }
