"""Composer: ``initialize_dist`` and the getters of utils/dist.py, loaded alone.

Stood in for: its devices (which only name the backend).
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from tests.oracles.questions import meeting
from tests.oracles.questions.alone import load_alone, stand_in

stand_in("composer.utils.device")
device: Any = import_module("composer.utils.device")
device.is_hpu_installed = lambda: False
device.get_device().dist_backend = "gloo"
utils: Any = load_alone("composer/utils/dist.py")


def answer() -> dict[str, Any]:
    """NODE_RANK is read here, and by few others; a world of one makes a store of its own."""
    meeting.begin()
    utils.initialize_dist("cpu")
    met = meeting.result() if "master_addr" in meeting.met else {}
    return {
        **met,
        "rank": utils.get_global_rank(),
        "world_size": utils.get_world_size(),
        "local_rank": utils.get_local_rank(),
        "local_size": utils.get_local_world_size() if "LOCAL_WORLD_SIZE" in os.environ else None,
        "node_rank": utils.get_node_rank() if "NODE_RANK" in os.environ else None,
    }
