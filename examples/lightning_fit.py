"""Train on handwritten digits with Lightning's Trainer, which is told no number of nodes and devices.

    launcher run --framework lightning -- python examples/lightning_fit.py

Lightning finds rank, world size and master by itself; ``--framework lightning`` gives the Trainer the job's
numbers for ``num_nodes`` and ``devices``, where the script has none. N processes share each batch that one
would take, and learn the same.
"""

from __future__ import annotations

import lightning
import torch
import torch.distributed.nn  # before there is a process group: see train_ddp.py
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH = 96  # of the whole job


class Digits(lightning.LightningModule):
    """Two layers, and how they learn."""

    def __init__(self) -> None:
        """Make the network, the same one everywhere, and load the images."""
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        pixels, labels = load_digits(return_X_y=True)
        self.images, self.labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Return this process's part of each batch."""
        digits = TensorDataset(self.images, self.labels)
        sampler = DistributedSampler(digits, self.trainer.world_size, self.trainer.global_rank, seed=0)
        return DataLoader(digits, BATCH // self.trainer.world_size, sampler=sampler, drop_last=True)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the loss of one batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    @torch.no_grad()
    def on_train_end(self) -> None:
        """Print what was learned, and whether all ranks learned the same."""
        here = self.device
        loss = nn.functional.cross_entropy(self.network(self.images.to(here)), self.labels.to(here))
        weights = self.all_gather(sum(p.square().sum() for p in self.parameters())).flatten().tolist()
        agree = "the same" if len(set(weights)) == 1 else f"DIFFERENT: {weights}"
        found = type(getattr(self.trainer.strategy, "cluster_environment", None)).__name__
        self.print(f"loss {loss:.5f}, {agree} in {len(weights)} processes ({found})", flush=True)


if __name__ == "__main__":
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=3, enable_model_summary=False, **quiet)
    trainer.fit(Digits())
