"""Transformers: ``TrainingArguments(use_cpu=True)`` with its device set up, as Trainer does."""

from __future__ import annotations

import tempfile
from importlib import import_module
from typing import Any

from tests.oracles.questions import meeting

arguments: Any = import_module("transformers.training_args")
state: Any = import_module("accelerate.state")
FOLDER = tempfile.gettempdir()


def answer() -> dict[str, Any]:
    """Through Accelerate, with conditions of its own."""
    meeting.begin()
    state.AcceleratorState._reset_state(reset_partial_state=True)
    made = arguments.TrainingArguments(output_dir=FOLDER, use_cpu=True, report_to="none")
    return {
        **meeting.result(),
        "rank": made.process_index,
        "world_size": made.world_size,
        "local_rank": made.local_process_index,
    }
