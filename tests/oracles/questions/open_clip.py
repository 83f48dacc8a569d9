"""OpenCLIP: ``init_distributed_device`` of its training script, loaded alone; Horovod is off."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from tests.oracles.questions import meeting
from tests.oracles.questions.alone import load_alone, stand_in

stand_in("horovod.torch")
distributed: Any = load_alone("open_clip_train/distributed.py")


def answer() -> dict[str, Any]:
    """Prefers SLURM_PROCID's way in where that is set. A world of one needs no group."""
    meeting.begin()
    args = Namespace(device="cpu")
    distributed.init_distributed_device(args)
    here = {"rank": args.rank, "world_size": args.world_size, "local_rank": args.local_rank}
    return {**(meeting.result() if args.distributed else {}), **here}
