"""Ignite: its native model of ``idist.initialize("gloo")``. Its count of nodes, a collective, is left out."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from tests.oracles.folder import oracles_folder
from tests.oracles.questions import meeting

sys.path.append(str(oracles_folder()))
native: Any = import_module("ignite.distributed.comp_models.native")
native._NativeDistModel._setup_attrs = lambda self: None


def answer() -> dict[str, Any]:
    """Under Slurm it reads SLURM_* first, and warns where RANK's kind differs."""
    meeting.begin()
    model = native._NativeDistModel.create_from_backend("gloo")
    return {**meeting.result(), "local_rank": model.get_local_rank()}
