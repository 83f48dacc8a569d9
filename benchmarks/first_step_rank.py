"""One rank of a job that is measured until its first step: ``python first_step_rank.py MODE``.

It prints its line when it has printed (``print``), imported (``torch``, ``transformers``) or taken part in
its first allreduce (``allreduce``), and then waits for SIGTERM if a second word is there.
"""

from __future__ import annotations

import os
import sys

FIRST_LINE = "first-line"
"""As in `benchmarks.rank`, which a rank does not import."""
OF_MPI = {"RANK": ("OMPI_COMM_WORLD_RANK", "0"), "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "1")}
"""Variables, the names that mpirun gives them, and what they are where one process is started."""


def step(mode: str) -> None:
    """Do what the mode says."""
    if mode == "transformers":
        import transformers

        assert transformers.AutoModel and transformers.Trainer  # both are loaded when they are asked for
    if mode in ("torch", "allreduce"):
        import torch
    if mode == "allreduce":
        import torch.distributed as dist

        for name, (other, alone) in OF_MPI.items():
            os.environ.setdefault(name, os.environ.get(other, alone))
        dist.init_process_group("gloo")
        one = torch.ones(1)
        dist.all_reduce(one)
        assert one.item() == dist.get_world_size()


if __name__ == "__main__":
    step(sys.argv[1])
    print(FIRST_LINE, flush=True)
    if sys.argv[2:]:
        import signal

        signal.pause()
    os._exit(0)
