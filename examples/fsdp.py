"""Train on handwritten digits with each process keeping only its share of the network (FSDP2).

    launcher run -- python examples/fsdp.py

Parameters, gradients and the optimizer's state are cut into as many shares as there are processes; a layer is
whole only while it computes. N processes share each batch that one would take, and learn the same.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.fsdp import fully_shard

STEPS = 30
BATCH = 192  # of the whole job


def main() -> None:
    """Join the job, train, and print what was learned."""
    device = join()
    digits, answers = load_digits(return_X_y=True)
    images = torch.tensor(digits, dtype=torch.float32, device=device) / 16
    labels = torch.tensor(answers, device=device)
    torch.manual_seed(0)  # the same network everywhere, of which each process keeps its share
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    network.to(device)
    for layer in network:
        fully_shard(layer)
    fully_shard(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)

    for step in range(STEPS):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(step))[:BATCH]
        mine = order[dist.get_rank() :: dist.get_world_size()].to(device)
        loss = nn.functional.cross_entropy(network(images[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()  # the gradients' mean over all processes, of which each keeps its share
        optimizer.step()

    with torch.no_grad():
        loss = nn.functional.cross_entropy(network(images), labels)
    kept = sum(parameter.to_local().numel() for parameter in network.parameters())
    count = sum(parameter.numel() for parameter in network.parameters())
    losses = [torch.zeros_like(loss) for _ in range(dist.get_world_size())]
    dist.all_gather(losses, loss)
    agree = "the same" if len(set(map(float, losses))) == 1 else f"DIFFERENT: {losses}"
    if dist.get_rank() == 0:
        print(f"loss {loss:.5f}, {agree} in {len(losses)} processes; each keeps {kept} of {count} parameters")
    dist.destroy_process_group()


def join() -> torch.device:
    """Meet the other processes, and return the device that is this one's own."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")  # env://: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return device


if __name__ == "__main__":
    main()
