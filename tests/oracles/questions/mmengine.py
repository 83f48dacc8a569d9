"""MMEngine: ``init_dist`` by the launcher that ``infer_launcher`` names, and by the others that can be.

Stood in for: its package (dist/utils.py is loaded alone), its question for other accelerators, and scontrol.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from tests.oracles.questions import meeting
from tests.oracles.questions.alone import load_alone, stand_in

stand_in("mmengine.device")
device: Any = import_module("mmengine.device")
device.is_mlu_available = device.is_npu_available = device.is_musa_available = lambda: False
utils: Any = load_alone("mmengine/dist/utils.py")
utils.subprocess.getoutput = lambda _: "the first of scontrol's"
NEEDS = {
    "pytorch": ("RANK",),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NODELIST"),
    "mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
}


def answer() -> dict[str, Any]:
    """Every launcher that could be asked for here gives the same."""
    assert utils.infer_launcher() == "pytorch"
    before = dict(os.environ)
    answers = {}
    for launcher, names in NEEDS.items():
        if all(name in before for name in names):
            os.environ.clear()
            os.environ.update(before)
            meeting.begin()
            utils.init_dist(launcher, backend="gloo")
            answers[launcher] = {**meeting.result(), "local_rank": meeting.met["device"]}
    different = [name for name, found in answers.items() if found != answers["pytorch"]]
    assert not different, f"by launcher {different[0]}: {answers[different[0]]}"
    return answers["pytorch"]
