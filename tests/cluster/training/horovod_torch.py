"""Horovod on PyTorch: softmax regression, gradients averaged by gloo."""

from __future__ import annotations

import horovod.torch as hvd
import torch
from torch import nn

from tests.cluster.training.run import TRAIN_COUNT, Run


def main() -> None:
    """Train from the checkpoint to the last step."""
    run = Run()
    hvd.init()
    torch.manual_seed(0)
    model = nn.Linear(64, 10)
    done, arrays = hvd.broadcast_object(run.load() if hvd.rank() == 0 else None, name="checkpoint")
    if arrays:
        model.load_state_dict({name: torch.tensor(value) for name, value in arrays.items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    pixels, labels = torch.tensor(run.pixels), torch.tensor(run.labels)
    for step, rows in run.steps(done, hvd.rank(), hvd.size()):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(pixels[rows]), labels[rows]).backward()
        optimizer.step()
        if hvd.rank() == 0:
            run.save(step, {name: value.numpy() for name, value in model.state_dict().items()})
    right = model(pixels[TRAIN_COUNT:]).argmax(dim=1) == labels[TRAIN_COUNT:]
    if hvd.rank() == 0:
        weights = {name: value.numpy() for name, value in model.state_dict().items()}
        run.finish(float(right.float().mean()), weights)
    hvd.barrier()
    hvd.shutdown()


if __name__ == "__main__":
    main()
