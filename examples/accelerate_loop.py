"""Train on handwritten digits with a loop of one's own and Accelerate.

    launcher run -- python examples/accelerate_loop.py                 # no accelerate launch, no config file
    launcher run -- accelerate launch examples/accelerate_loop.py      # or with it: one per node

Accelerate finds its place in the variables that are there. N processes share each batch that one would take,
average their gradients, and learn the same.
"""

from __future__ import annotations

import torch
import torch.distributed.nn  # before there is a process group: see train_ddp.py
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 96  # of the whole job


def main() -> None:
    """Join the job, train, and leave, with nothing left that still holds the connections."""
    accelerator = Accelerator(cpu=not torch.cuda.is_available())  # without the word, CPUs train alone
    train(accelerator)
    accelerator.free_memory()
    accelerator.end_training()


def train(accelerator: Accelerator) -> None:
    """Train, and print what was learned."""
    torch.manual_seed(0)
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(
        TensorDataset(images, labels),
        BATCH // accelerator.num_processes,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(0),  # one order for all; Accelerate deals out the batches
    )
    network, optimizer, loader = accelerator.prepare(network, optimizer, loader)

    for _ in range(3):
        for batch, answers in loader:
            loss = nn.functional.cross_entropy(network(batch), answers)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()

    with torch.no_grad():
        scores = network(images.to(accelerator.device))
        loss = nn.functional.cross_entropy(scores, labels.to(accelerator.device))
        own = sum(parameter.square().sum() for parameter in network.parameters())
    weights = accelerator.gather(own.reshape(1)).tolist()
    agree = "the same" if len(set(weights)) == 1 else f"DIFFERENT: {weights}"
    if accelerator.is_main_process:
        print(f"loss {loss:.5f}, {agree} in {accelerator.num_processes} processes", flush=True)


if __name__ == "__main__":
    main()
