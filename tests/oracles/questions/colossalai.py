"""Colossal-AI: ``launch_from_torch``, and from_slurm and from_openmpi where their variables are.

Stood in for: its package (initialize.py is loaded alone), accelerator, logger and seeds.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from tests.oracles.questions import meeting
from tests.oracles.questions.alone import load_alone, stand_in

stand_in("colossalai.accelerator", "colossalai.logging", "colossalai.utils")
import_module("colossalai.accelerator").get_accelerator().set_device = meeting.torch.cuda.set_device
initialize: Any = load_alone("colossalai/initialize.py")


def answer() -> dict[str, Any]:
    """The other two take the master as arguments, hence from the variables."""
    where = {"host": os.environ["MASTER_ADDR"], "port": int(os.environ["MASTER_PORT"])}
    answers = [_launch(initialize.launch_from_torch)]
    if all(name in os.environ for name in ("SLURM_PROCID", "SLURM_NPROCS")):
        answers.append(
            _launch(initialize.launch_from_slurm, **where) | {"local_rank": answers[0]["local_rank"]}
        )
    if all(f"OMPI_COMM_WORLD_{name}" in os.environ for name in ("RANK", "LOCAL_RANK", "SIZE")):
        answers.append(_launch(initialize.launch_from_openmpi, **where))
    assert all(found == answers[0] for found in answers), answers
    return answers[0]


def _launch(function: Any, **where: Any) -> dict[str, Any]:
    meeting.begin()
    function(verbose=False, **where)
    return {**meeting.result(), "local_rank": meeting.met["device"]}
