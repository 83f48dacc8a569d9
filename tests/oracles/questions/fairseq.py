"""fairseq: ``infer_init_method`` of distributed/utils.py, loaded alone, and the group made of its result.

Stood in for: its dataclasses (a plain namespace has the same fields) and omegaconf.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from tests.oracles.questions import meeting
from tests.oracles.questions.alone import load_alone, stand_in

stand_in("fairseq.dataclass.configs", "omegaconf", "torch_xla.core.xla_model")
utils: Any = load_alone("fairseq/distributed/utils.py")
EMPTY = {"distributed_init_method": None, "tpu": False, "pipeline_model_parallel": False}


def answer() -> dict[str, Any]:
    """With --distributed-port, which is how it is started under Slurm: the launcher's variables go first."""
    meeting.begin()
    numbers = {"distributed_port": 1, "distributed_world_size": 1, "distributed_rank": 0}
    config = Namespace(**EMPTY, **numbers, distributed_no_spawn=False, distributed_num_procs=1)
    utils.infer_init_method(config)
    meeting.dist.init_process_group(
        "gloo",
        init_method=config.distributed_init_method,
        world_size=config.distributed_world_size,
        rank=config.distributed_rank,
    )
    return {**meeting.result(), "starts_processes": not config.distributed_no_spawn}
