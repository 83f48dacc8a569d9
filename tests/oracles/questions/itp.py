"""MAE, BEiT, data2vec-vision: ``init_distributed_mode`` with ``--dist_on_itp``.

These are repositories, not packages, and their licences do not let us keep their file: this reads the
same six variables in the same way.
"""

from __future__ import annotations

import os
from typing import Any

from tests.oracles.questions import meeting


def answer() -> dict[str, Any]:
    """Open MPI's names for who we are, PyTorch's for where to meet, and a tcp:// address made of these."""
    meeting.begin()
    world = {key: int(os.environ[f"OMPI_COMM_WORLD_{key}"]) for key in ("RANK", "SIZE", "LOCAL_RANK")}
    url = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    meeting.dist.init_process_group("nccl", url, world_size=world["SIZE"], rank=world["RANK"])
    return {**meeting.result(), "local_rank": world["LOCAL_RANK"]}
