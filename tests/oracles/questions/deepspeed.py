"""DeepSpeed: ``init_distributed()``, which may ask MPI, or set variables as Azure ML's old page had them.

Stood in for: the process group (see `meeting`), the functions that ask MPI and patch variables (noted
when they are called), and its compiled operation for shared memory.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from tests.oracles.questions import meeting

os.environ["DS_ACCELERATOR"] = "cpu"
comm: Any = import_module("deepspeed.comm.comm")
backend: Any = import_module("deepspeed.comm.torch")
backend.build_shm_op = lambda: None
asked: list[str] = []
comm.init_deepspeed_backend = lambda *_: None
comm.mpi_discovery = lambda **_: asked.append("mpi")
comm.patch_aml_env_for_torch_nccl_backend = lambda **_: asked.append("overwrites")
comm.patch_aws_sm_env_for_torch_nccl_backend = lambda **_: asked.append("overwrites")


def answer() -> dict[str, Any]:
    """The launcher's variables are complete, so it asks nobody else and overwrites nothing."""
    meeting.begin()
    asked.clear()
    comm.cdb = None
    comm.init_distributed(dist_backend="gloo", verbose=False)
    checks = {"asks_mpi": "mpi" in asked, "overwrites": "overwrites" in asked}
    return {**meeting.result(), "local_rank": int(os.environ["LOCAL_RANK"]), **checks}
