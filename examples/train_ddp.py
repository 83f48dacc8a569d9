"""Train a small convolutional network on handwritten digits with DistributedDataParallel.

    python examples/train_ddp.py                      # one process
    launcher run -- python examples/train_ddp.py      # one per GPU, on every node of the job

Nothing in here knows which platform started it. These variables are all that PyTorch needs, and
the launcher (or torchrun) sets them; without any, this is a job of one process.

    RANK, WORLD_SIZE           which process this is in the job, and how many there are
    LOCAL_RANK                 which process this is on its node, hence which GPU is its own
    MASTER_ADDR, MASTER_PORT   where rank 0 listens, so that the others can find it

The batch size is that of the whole job. N processes share each batch that one process would take,
and average their gradients: they take the same steps and reach the same accuracy.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist

# Imported here, before there is a process group, because its functions keep the group they find as
# a default argument: DistributedDataParallel would load it later, gloo's threads would outlive
# destroy_process_group(), and now and then abort a finished job at exit (seen with torch 2.13).
import torch.distributed.nn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SEED = 0
TRAIN_COUNT = 1440  # of 1797 images; divides evenly by the batch and by most process counts


def main() -> None:
    """Join the job, train, and leave."""
    options = parse_options()
    device = join()
    train(options, device)
    dist.destroy_process_group()


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Train from scratch, or from the checkpoint, until ``--epochs``."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if options.batch_size % world_size:
        raise SystemExit(f"--batch-size {options.batch_size} does not divide by {world_size}")
    job = describe_job(device)

    torch.manual_seed(SEED)
    train_set, test_set = load_data()
    # Deals out one shuffled order, the same on every rank: each image goes to one rank per epoch.
    sampler = DistributedSampler(train_set, world_size, rank, shuffle=True, seed=SEED)
    loader = DataLoader(train_set, options.batch_size // world_size, sampler=sampler)

    network = build_network().to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    done = resume(options.checkpoint, network, optimizer) if options.checkpoint else 0
    # Copies rank 0's weights to all, and from then on averages the gradients during backward().
    model = DistributedDataParallel(network)

    for epoch in range(done + 1, options.epochs + 1):
        sampler.set_epoch(epoch)  # another order each epoch, and the same one after a resume
        loss = train_epoch(model, loader, optimizer, device)
        accuracy = evaluate(network, test_set, device)
        if rank == 0:
            figures = f"loss {loss:.3f}, accuracy {100 * accuracy:.1f} %"
            print(f"epoch {epoch}/{options.epochs}: {figures} ({job})", flush=True)
            if options.checkpoint:
                save(options.checkpoint, network, optimizer, epoch)


def parse_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description="Train on digits with DistributedDataParallel.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=96, help="of the whole job")
    parser.add_argument("--checkpoint", metavar="PATH", help="resume from PATH, save each epoch")
    return parser.parse_args()


def join() -> torch.device:
    """Meet the other processes, and return the device that is this one's own."""
    device = torch.device("cpu")
    if torch.cuda.is_available():  # one GPU per process
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group(backend)  # env://, the variables above
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return device


def describe_job(device: torch.device) -> str:
    """Return ``"4 processes on 2 nodes"``; each node has one process whose local rank is 0."""
    processes = dist.get_world_size()
    nodes = int(total(os.environ.get("LOCAL_RANK", "0") == "0", device))
    return f"{processes} process{'es' * (processes > 1)} on {nodes} node{'s' * (nodes > 1)}"


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return the training and the test images, the same split on every rank."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    train_rows, test_rows = train_test_split(
        range(len(labels)), train_size=TRAIN_COUNT, random_state=SEED, stratify=labels
    )
    classes = torch.tensor(labels)
    return (
        TensorDataset(pixels[train_rows], classes[train_rows]),
        TensorDataset(pixels[test_rows], classes[test_rows]),
    )


def build_network() -> nn.Module:
    """Return the network: 8 x 8 gray pixels to scores of ten digits.

    No dropout and no batch norm: they depend on how a batch is split, so that N processes would
    not learn quite what one learns.
    """
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def train_epoch(
    model: nn.Module,
    loader: DataLoader[tuple[Tensor, ...]],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> float:
    """Take one step per batch, and return the epoch's mean loss over all processes."""
    losses = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        losses += loss.item()
    return total(losses / len(loader), device) / dist.get_world_size()


@torch.no_grad()
def evaluate(network: nn.Module, test_set: TensorDataset, device: torch.device) -> float:
    """Return the share of test images that are recognized; each rank looks at its part of them."""
    images, labels = (part[dist.get_rank() :: dist.get_world_size()] for part in test_set.tensors)
    right = network(images.to(device)).argmax(dim=1) == labels.to(device)
    return total(int(right.sum()), device) / len(test_set)


def total(value: float, device: torch.device) -> float:
    """Return the sum of every process's value; all of them must ask at the same point."""
    tensor = torch.tensor(float(value), device=device, dtype=torch.float64)
    dist.all_reduce(tensor)
    return float(tensor)


def resume(path: str, network: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the checkpoint if there is one, and return how many epochs it has seen.

    Only rank 0 reads the file and tells the others: the nodes need not share a disk.
    """
    states = [None]
    if dist.get_rank() == 0 and os.path.exists(path):
        states = [torch.load(path, map_location="cpu")]
    dist.broadcast_object_list(states)
    state = states[0]
    if state is None:
        return 0
    network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    if dist.get_rank() == 0:
        print(f"resumed from {path} after epoch {state['epoch']}", flush=True)
    return int(state["epoch"])


def save(path: str, network: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    """Write the checkpoint; whenever the job is killed, there is the old one or the new one."""
    state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, f"{path}.partial")
    os.replace(f"{path}.partial", path)


if __name__ == "__main__":
    main()
