"""One rank of a job that is restarted: ``python -I -S restart_rank.py MODE FOLDER WORLD_SIZE``.

- ``floor``: ends at once.
- ``bare``: imports nothing that is not part of the interpreter.
- ``train``: takes steps of a small network by PyTorch, DistributedDataParallel and gloo.
- ``horovod``: takes steps of an allreduce with Horovod elastic, whose survivors go on.

It writes lines ``WHAT NANOSECONDS`` (CLOCK_MONOTONIC, the same on all simulated nodes) into the FIFO
``FOLDER/reports``: ``up`` when its own code begins, ``step`` after the first step. The last rank then waits
for a byte from the FIFO ``FOLDER/go``, writes ``death``, and kills itself by SIGKILL.
"""

from __future__ import annotations

import posix
import sys
import time

KILL = 9
RANK_NAMES = (b"RANK", b"OMPI_COMM_WORLD_RANK", b"HOROVOD_RANK")
REST_S = 600.0


class Reports:
    """What this rank says, and what it is told."""

    def __init__(self, folder: str, world_size: str) -> None:
        self._folder, self._world_size = folder, int(world_size)
        self._reports = posix.open(f"{folder}/reports", posix.O_WRONLY)

    def say(self, what: str) -> None:
        """Report an event that happens now."""
        posix.write(self._reports, f"{what} {time.monotonic_ns()}\n".encode())

    def die_if_told(self) -> None:
        """As the last rank, wait for the order to die, and die."""
        rank = next(int(posix.environ[name]) for name in RANK_NAMES if name in posix.environ)
        if rank == self._world_size - 1:
            posix.read(posix.open(f"{self._folder}/go", posix.O_RDONLY), 1)
            self.say("death")
            posix.kill(posix.getpid(), KILL)


def run_bare(reports: Reports) -> None:
    """Do nothing."""
    reports.die_if_told()
    time.sleep(REST_S)


def run_train(reports: Reports) -> None:
    """Train; from the second step on the others wait for the last rank, inside of an allreduce."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    network = torch.nn.Sequential(
        *(torch.nn.Conv2d(1, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
        *(torch.nn.Flatten(), torch.nn.Linear(32 * 4 * 4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)),
    )
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    images, labels = torch.rand(24, 1, 8, 8), torch.randint(10, (24,))
    is_first = True
    while True:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if is_first:
            is_first = False
            reports.say("step")
            reports.die_if_told()


def run_horovod(reports: Reports) -> None:
    """Take steps with Horovod elastic."""
    import horovod.torch as hvd
    import torch

    hvd.init()

    @hvd.elastic.run  # type: ignore[untyped-decorator]
    def train(state: object) -> None:
        del state
        is_first = True
        while True:
            hvd.allreduce(torch.zeros(1), name="step")
            if is_first:
                is_first = False
                reports.say("step")
                reports.die_if_told()

    train(hvd.elastic.TorchState(torch.nn.Linear(1, 1), step=0))


def end_floor(reports: Reports) -> None:
    """End at once."""
    del reports


MODES = {"floor": end_floor, "bare": run_bare, "train": run_train, "horovod": run_horovod}


def main(mode: str, folder: str, world_size: str) -> None:
    """Say that our code begins, and go on as the mode says."""
    reports = Reports(folder, world_size)
    reports.say("up")
    MODES[mode](reports)


if __name__ == "__main__":
    main(*sys.argv[1:])
