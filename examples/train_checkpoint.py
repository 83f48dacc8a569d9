"""Train, and when told to stop, save where every process stands; started again, go on from there.

    launcher run --nproc-per-node 4 -- python examples/train_checkpoint.py --checkpoint /mnt/shared/digits

Preemption, a time limit, ``podman stop`` and Ctrl-C all arrive as a signal, and the launcher passes it
on to each process. What a script has to do about it, here:

1. The handler takes a note and returns. What it interrupts may be half of an all-reduce or half of a
   checkpoint; to save or to raise in the handler would leave that half done.
2. After each step the processes agree. The signal reaches them at different moments, some before and some
   after the same step: one that left alone would leave the others waiting in the next all-reduce.
3. It leaves the loop before it saves, and the DataLoader's workers end. At half of ``--grace`` the launcher
   tells them, too, and torch fails a process whose worker was killed, be it in the middle of a save.
4. Each saves its part, and only when all parts are there does ``latest`` name them. Whenever the job is
   killed, ``latest`` names a checkpoint that is whole: the new one or the one before.
5. The exit code is 128 + the signal's number: the work isn't done, so start the script again.

All nodes share the directory. It has ``step-120/rank-0.pt``, ``step-120/rank-1.pt`` ... and
``latest``, which says ``120``; what is older is yours to remove.

A job that goes on takes the very steps that it would have taken without the interruption: which images
belong to a step follows from its number, and each process's random numbers are part of its checkpoint.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

# Before there is a process group: see train_ddp.py.
import torch.distributed.nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)  # USR1: sbatch --signal, --signal-map TERM=USR1
SEED = 0
IMAGE_COUNT = 4096
BATCH = 64  # of the whole job

told = 0  # the signal that asks us to stop


def main() -> None:
    """Join the job, go on where it stood, train until done or told, and leave."""
    for number in STOPPING:
        signal.signal(number, take_note)
    options = parse_options()
    device = join()
    last = train(options, device)
    dist.destroy_process_group()
    raise SystemExit(128 + last if last else 0)


def take_note(number: int, _frame: FrameType | None) -> None:
    """Handle a signal: remember it. The loop asks after each step."""
    global told
    told = number


def train(options: argparse.Namespace, device: torch.device) -> int:
    """Take steps until ``--steps`` or a signal; return the signal, 0 if none came."""
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    images = make_images()
    network = build_network().to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(SEED + 1 + rank)  # dropout: every process draws numbers of its own
    done = resume(options.checkpoint, network, optimizer)
    model = DistributedDataParallel(network)

    batches = Batches(done, options.steps)
    # A generator of its own: the loader draws a seed for its workers, from the network's numbers otherwise.
    own = torch.Generator().manual_seed(SEED)
    loader = DataLoader(images, batch_sampler=batches, num_workers=options.workers, generator=own)
    step, number = done, 0
    for step, (pixels, labels) in enumerate(loader, done + 1):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pixels.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        number = agree(told, device)
        if rank == 0:
            print(f"step {step}: loss {loss.item():.6f}", flush=True)
        if number:
            break
        if step % options.every == 0 and step < options.steps:
            save(options.checkpoint, step, network, optimizer)
    if step > done:
        save(options.checkpoint, step, network, optimizer)
    if number:
        print(f"{signal.Signals(number).name}: rank {rank} stops after step {step}", flush=True)
    return number


def parse_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description="Train, save when told to stop, resume.")
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="resume from, save to")
    parser.add_argument("--steps", type=int, default=1000, help="when to end")
    parser.add_argument("--every", type=int, default=100, help="save every so many steps, too")
    parser.add_argument("--workers", type=int, default=0, help="processes of each DataLoader")
    return parser.parse_args()


def join() -> torch.device:
    """Meet the other processes, and return the device that is this one's own."""
    device = torch.device("cpu")
    if torch.cuda.is_available():  # one GPU per process
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return device


def agree(number: int, device: torch.device) -> int:
    """Return the highest of all processes' numbers, the same for all: each asks after every step."""
    highest = torch.tensor(number, device=device)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    return int(highest)


def make_images() -> TensorDataset:
    """Return images of ten kinds, each a pattern under noise, and which kind each is."""
    patterns = torch.randn(10, 64)
    labels = torch.randint(10, (IMAGE_COUNT,))
    return TensorDataset(patterns[labels] + 2 * torch.randn(IMAGE_COUNT, 64), labels)


def build_network() -> nn.Module:
    """Return the network."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))


class Batches:
    """This process's share of each batch, from one step on: a pure function of the step's number.

    A DataLoader's workers fetch some batches ahead. What they had fetched at the end is fetched again.
    """

    def __init__(self, done: int, steps: int) -> None:
        self.done, self.steps = done, steps
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the images' numbers, step after step; each epoch has an order of its own."""
        per_epoch = IMAGE_COUNT // BATCH
        epoch, order = -1, torch.empty(0)
        for step in range(self.done, self.steps):
            if step // per_epoch != epoch:
                epoch = step // per_epoch
                order = torch.randperm(IMAGE_COUNT, generator=torch.Generator().manual_seed(epoch))
            first = step % per_epoch * BATCH
            yield order[first : first + BATCH][self.rank :: self.world_size].tolist()

    def __len__(self) -> int:
        """Return how many steps are left."""
        return self.steps - self.done


def save(folder: Path, step: int, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write this process's part; when all have, the checkpoint is the latest."""
    part = folder / f"step-{step}" / f"rank-{dist.get_rank()}.pt"
    part.parent.mkdir(parents=True, exist_ok=True)
    random = torch.get_rng_state()  # on a GPU: torch.cuda.get_rng_state() as well
    states = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "random": random}
    torch.save(states, part)
    dist.barrier()
    if dist.get_rank() == 0:
        new = folder / "latest.new"
        new.write_text(f"{step}\n")
        new.replace(folder / "latest")


def resume(folder: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load this process's part of the latest checkpoint, and return how many steps it has seen."""
    latest = [0]
    if dist.get_rank() == 0 and (folder / "latest").exists():
        latest = [int((folder / "latest").read_text())]
    dist.broadcast_object_list(latest)  # rank 0 looks: what one process sees, all must
    if latest[0]:
        part = folder / f"step-{latest[0]}" / f"rank-{dist.get_rank()}.pt"
        states: dict[str, Any] = torch.load(part, map_location="cpu")
        network.load_state_dict(states["network"])
        optimizer.load_state_dict(states["optimizer"])
        torch.set_rng_state(states["random"])
        print(f"rank {dist.get_rank()} goes on after step {latest[0]}", flush=True)
    return latest[0]


if __name__ == "__main__":
    main()
