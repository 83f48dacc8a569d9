"""PyTorch: DistributedDataParallel, dropout, and SGD with momentum."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # see examples/train_ddp.py
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.cluster.training.run import TRAIN_COUNT, Run


def main() -> None:
    """Train from the checkpoint to the last step."""
    run = Run()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    done = resume(run, network, optimizer)
    # Else it sorts its buckets after the first step, and a resumed run would add up in another order
    model = DistributedDataParallel(network, find_unused_parameters=True)
    pixels, labels = torch.tensor(run.pixels), torch.tensor(run.labels)
    for step, rows in run.steps(done, rank, size):
        torch.manual_seed(step * size + rank)  # dropout
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(pixels[rows]), labels[rows]).backward()
        optimizer.step()
        if rank == 0:
            run.save(step, collect(network, optimizer))
    network.eval()
    right = network(pixels[TRAIN_COUNT:]).argmax(dim=1) == labels[TRAIN_COUNT:]
    if rank == 0:
        run.finish(float(right.float().mean()), collect(network, optimizer))
    dist.barrier()
    dist.destroy_process_group()


def collect(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the weights and their momentum as arrays."""
    arrays = {}
    for number, weight in enumerate(network.parameters()):
        arrays[f"weight{number}"] = weight.detach().numpy()
        arrays[f"momentum{number}"] = optimizer.state[weight]["momentum_buffer"].numpy()
    return arrays


def resume(run: Run, network: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the checkpoint that rank 0 sees, on every rank; return how many steps it has seen."""
    found = [run.load() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    assert found[0] is not None
    done, arrays = found[0]
    for number, weight in enumerate(network.parameters() if arrays else ()):
        weight.data = torch.tensor(arrays[f"weight{number}"])
        optimizer.state[weight]["momentum_buffer"] = torch.tensor(arrays[f"momentum{number}"])
    return done


if __name__ == "__main__":
    main()
