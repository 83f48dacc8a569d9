"""Train a small network on handwritten digits with DeepSpeed: ZeRO shares out what the optimizer keeps.

    launcher run -- python examples/deepspeed_zero.py       # one process per GPU, on every node of the job
    launcher run -- deepspeed examples/deepspeed_zero.py    # the same, started by DeepSpeed's own command

The launcher's variables are all that DeepSpeed reads: where they are, it asks neither MPI nor Azure ML. The
batch is that of the whole job: N processes take the same steps, and reach the same loss, as one.
"""

from __future__ import annotations

import argparse

import deepspeed
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

BATCH = 96
TRAIN_COUNT = 1440  # of 1797 images, a multiple of the batch
CONFIG = {
    "train_batch_size": BATCH,
    "optimizer": {"type": "Adam", "params": {"lr": 0.003, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
}


def main() -> None:
    """Join the job, train, and say how well."""
    options = parse_options()
    deepspeed.init_distributed()
    rank, world_size = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    engine, *_ = deepspeed.initialize(model=network, config=CONFIG)
    images, labels = load_data(engine.device)
    for epoch in range(1, options.epochs + 1):
        order = torch.randperm(TRAIN_COUNT)  # the same on every rank, which takes its part of each batch
        losses = [
            step(engine, images[rows], labels[rows])
            for rows in order[rank::world_size].split(BATCH // world_size)
        ]
        loss = torch.stack(losses).mean()
        deepspeed.comm.all_reduce(loss)
        accuracy = (engine(images[TRAIN_COUNT:]).argmax(dim=1) == labels[TRAIN_COUNT:]).float().mean()
        if rank == 0:
            figures = f"loss {float(loss) / world_size:.4f}, accuracy {100 * float(accuracy):.1f} %"
            print(f"epoch {epoch}/{options.epochs}: {figures} ({world_size} processes)", flush=True)
    engine.destroy()
    deepspeed.comm.destroy_process_group()


def step(engine: deepspeed.DeepSpeedEngine, images: Tensor, labels: Tensor) -> Tensor:
    """Take one step on this process's part of a batch, and return its loss."""
    loss = nn.functional.cross_entropy(engine(images), labels)
    engine.backward(loss)
    engine.step()
    return loss.detach()


def load_data(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return all images and their digits."""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32, device=device) / 16, torch.tensor(labels, device=device)


def parse_options() -> argparse.Namespace:
    """Return the command line's options; ``deepspeed`` tells each process its local rank."""
    parser = argparse.ArgumentParser(description="Train on digits with DeepSpeed.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--local_rank", type=int, help="for scripts that need it: LOCAL_RANK says the same")
    return parser.parse_args()


if __name__ == "__main__":
    main()
