"""One rank of a healthy job: ``python steps.py FILE COUNT``. Steps of a little work and an allreduce by gloo.

Rank 0 writes how long each step has taken, in nanoseconds, as JSON.
"""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist

WARM_UP = 100
FLOATS = 1 << 16
SIDE = 256


def main(path: str, count: int) -> None:
    """Make the steps."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    gradient, weights = torch.ones(FLOATS), torch.rand(SIDE, SIDE)
    taken = []
    for _ in range(WARM_UP + count):
        began = time.perf_counter_ns()
        (weights @ weights).sum().item()
        dist.all_reduce(gradient)
        gradient.div_(dist.get_world_size())
        taken.append(time.perf_counter_ns() - began)
    if dist.get_rank() == 0:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(taken[WARM_UP:], file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
