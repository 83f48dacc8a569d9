"""Sum one number over all processes, and show who took part: the smallest proof of a job.

    launcher run -- python examples/allreduce.py

Process r contributes r + 1 to an all-reduce (gloo, so any machine will do). Rank 0 prints one line
of JSON: the sum, the sum it should be, and what each process saw in its environment, in rank order.
Exits 1 if the sum is wrong.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

VARIABLES = ("RANK", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR")


def main() -> int:
    """Return 0 if the sum is right on this process, else 1."""
    # A missing peer should be an error within a minute; the default is half an hour.
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world_size = dist.get_rank(), dist.get_world_size()

    value = torch.tensor(rank + 1)
    dist.all_reduce(value)
    expected = world_size * (world_size + 1) // 2

    mine = {"hostname": socket.gethostname(), **{name: os.environ.get(name) for name in VARIABLES}}
    processes: list[dict[str, str | None] | None] = [None] * world_size
    dist.all_gather_object(processes, mine)

    if rank == 0:
        print(json.dumps({"sum": int(value), "expected": expected, "processes": processes}))
    dist.destroy_process_group()
    return 0 if int(value) == expected else 1


if __name__ == "__main__":
    sys.exit(main())
