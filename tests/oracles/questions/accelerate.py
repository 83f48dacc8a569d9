"""Accelerate: ``PartialState(cpu=True)``. The process group is stood in for, see `meeting`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tests.oracles.questions import meeting

state: Any = import_module("accelerate.state")
environment: Any = import_module("accelerate.utils.environment")


def answer() -> dict[str, Any]:
    """It prefers PMI_RANK's kind only where RANK's is missing."""
    meeting.begin()
    state.PartialState._reset_state()
    made = state.PartialState(cpu=True)
    sizes = {"local_size": environment.get_cpu_distributed_information().local_world_size}
    here = {"rank": made.process_index, "world_size": made.num_processes}
    return {**meeting.result(), **here, **sizes, "local_rank": made.local_process_index}
