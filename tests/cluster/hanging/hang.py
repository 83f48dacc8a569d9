"""Jobs with PyTorch and gloo that come to a stand, because one rank does something else than the others.

    python hang.py KIND RANK FOLDER

This rank differs in step 2; before that each writes a file, ``ready-RANK``, in the folder. Comments in
brackets mark the lines that a report must name.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

KIND, DIFFERENT, FOLDER = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
RANK = int(os.environ["RANK"])
WRITES = subprocess.Popen(["sh", "-c", "while :; do echo starts; sleep 0.5; done"])
"""Writes until this rank is ready: on a busy machine the start takes longer than the stall timeout, and the
import of torch holds the GIL."""

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402


def skip() -> None:
    """Go on without the others, to a line that waits for something else."""
    time.sleep(3600)  # [skip]


def elsewhere() -> None:
    """Skip the collective, and wait for the others in the next one."""
    dist.barrier()  # [elsewhere]


def spin() -> None:
    """Run in a loop without an end, on one line."""
    any(count < 0 for count in itertools.count())  # [spin]


def fifo() -> None:
    """Read a file that gives nothing: a FIFO that has no writer."""
    os.mkfifo(FOLDER / "fifo")
    (FOLDER / "fifo").read_text()  # [fifo]


def stopped() -> None:
    """Be stopped, as by a debugger or Ctrl-Z."""
    os.kill(os.getpid(), signal.SIGSTOP)  # [stopped]


class Locked(Dataset[int]):
    """Data whose lock was held when the worker was forked."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.lock.acquire()  # [worker]
        return index


def loader() -> None:
    """Wait for a DataLoader's worker, which waits for a lock."""
    data = Locked()
    with data.lock:
        for _ in DataLoader(data, num_workers=1):  # [loader]
            pass


def shorter() -> None:
    """Call the collective with a shorter tensor."""
    dist.all_reduce(torch.ones(1 << 10))  # [shorter]


def longer() -> None:
    """Call the collective with a longer tensor."""
    dist.all_reduce(torch.ones(1 << 20))  # [longer]


def wait_for_others() -> None:
    """Wait until the others are ready, and have had time for their call."""
    while len(list(FOLDER.glob("ready-*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.05)
    time.sleep(1.0)


def fails() -> None:
    """End with an error while the others wait."""
    wait_for_others()
    raise RuntimeError("loss is not finite")  # [fails]


def killed() -> None:
    """Be killed, as by the kernel for memory; a worker of a DataLoader still holds our connections."""
    with (data := Locked()).lock:
        iterator = iter(DataLoader(data, num_workers=1))
    wait_for_others()
    os.kill(os.getpid(), signal.SIGKILL)
    next(iterator)


def reduce() -> None:
    """Add up, as the others do."""
    dist.all_reduce(torch.ones(1 << 16))  # [others]


def meet() -> None:
    """Meet in a barrier."""
    dist.barrier()  # [barrier]


def monitor() -> None:
    """Meet in a barrier that has a timeout."""
    dist.monitored_barrier()  # [monitored]


def pause() -> None:
    """Add up now and then: its node is paused meanwhile."""
    os.write(1, b"step\n")
    time.sleep(0.1)
    reduce()


def make_step() -> Callable[[], None]:
    """Return what the ranks do in each step."""
    if KIND == "ddp":
        model = DistributedDataParallel(torch.nn.Linear(64, 64))
        return lambda: model(torch.ones(8, 64)).sum().backward()  # [ddp]
    return {"barrier": meet, "monitored": monitor, "paused": pause}.get(KIND, reduce)


DIFFER: dict[str, Callable[[], None]] = {
    one.__name__: one
    for one in (skip, elsewhere, spin, fifo, stopped, loader, shorter, longer, fails, killed)
} | {"paused": reduce}


def get_ready() -> None:
    """Say that the rank comes to the place where it, or another one, differs."""
    WRITES.kill()
    WRITES.wait()
    (FOLDER / f"ready-{RANK}").touch()


def main() -> None:
    """Train until one rank differs."""
    if KIND in ("absent", "early"):
        get_ready()
        if RANK == DIFFERENT:
            (fails if KIND == "early" else skip)()
    dist.init_process_group("gloo")  # [init]
    step = make_step()
    for number in range(1000):
        if number == 2:
            dist.barrier()
            get_ready()
            if RANK == DIFFERENT:
                DIFFER.get(KIND, skip)()
        step()


if __name__ == "__main__":
    main()
