"""Train a classifier of handwritten digits with Horovod on PyTorch.

    launcher run --nproc-per-node 2 -- python examples/horovod_torch.py     # gloo
    launcher run --engine mpirun -- python examples/horovod_torch.py        # MPI
    mpirun -np 2 launcher run -- python examples/horovod_torch.py           # MPI

Nothing in here knows which of these started it: hvd.init() finds out. Each rank takes its share of
every batch, and Horovod averages the gradients, so N processes take the steps that one would take.
"""

from __future__ import annotations

import argparse

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

SEED = 0
TRAIN_COUNT = 1440  # of 1797 images; divides evenly by the batch and by most process counts
BATCH = 96  # of the whole job


def main() -> None:
    """Join the job, train, and say how well it went."""
    parser = argparse.ArgumentParser(description="Train on digits with Horovod.")
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs

    hvd.init()
    check_average()
    torch.manual_seed(SEED)
    images, labels = load_digits(return_X_y=True)
    pixels, classes = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for _ in range(epochs):
        train_epoch(model, optimizer, pixels[:TRAIN_COUNT], classes[:TRAIN_COUNT])

    right = model(pixels[TRAIN_COUNT:]).argmax(dim=1) == classes[TRAIN_COUNT:]
    weights = torch.cat([part.detach().flatten() for part in model.parameters()])
    apart = (hvd.allgather(weights[None]) - weights).abs().max()
    if hvd.rank() == 0:
        sizes = f"{hvd.size()} ranks, {hvd.local_size()} on each node"
        by = "MPI" if hvd.mpi_enabled() else "gloo"
        print(f"accuracy {right.float().mean():.3f} ({sizes}, by {by}); weights differ by {apart:g}")
    hvd.shutdown()


def check_average() -> None:
    """Stop unless a gradient that is another on each rank comes back as the mean of all."""
    weight = nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
    (weight * -hvd.rank()).sum().backward()
    optimizer.step()
    mean = (hvd.size() - 1) / 2
    if weight.item() != mean:
        raise SystemExit(f"rank {hvd.rank()}: a step of {weight.item()}, and the mean is {mean}")


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, pixels: Tensor, classes: Tensor) -> None:
    """Take one step per batch, on this rank's share of it."""
    for rows in torch.randperm(len(pixels)).split(BATCH):  # the same order on every rank
        mine = rows[hvd.rank() :: hvd.size()]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(pixels[mine]), classes[mine]).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
