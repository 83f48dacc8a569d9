"""Train a small vision transformer on handwritten digits with the Trainer of Transformers.

    launcher run -- python examples/transformers_trainer.py

The model is made from a configuration: nothing is downloaded. The Trainer finds its place in the variables
that are there. N processes share each batch that one would take, and learn the same.
"""

from __future__ import annotations

import gc
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a process group: see train_ddp.py
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

BATCH = 96  # of the whole job


class Digits(Dataset[dict[str, Tensor]]):
    """1797 images of 8 x 8 gray pixels."""

    def __init__(self) -> None:
        """Load them."""
        pixels, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
        self.labels = torch.tensor(labels)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return one image as the model takes it."""
        return {"pixel_values": self.images[index], "labels": self.labels[index]}


def main() -> None:
    """Train, and leave the job, with nothing left that still holds the connections."""
    schedule = {"max_steps": 60, "learning_rate": 0.01, "dataloader_drop_last": True}
    quiet = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    mine = BATCH // int(os.environ.get("WORLD_SIZE", "1"))
    on_cpu = not torch.cuda.is_available()  # without the word, processes on CPUs train alone
    with tempfile.TemporaryDirectory() as folder:
        train(
            TrainingArguments(folder, per_device_train_batch_size=mine, use_cpu=on_cpu, **schedule, **quiet)
        )
    gc.collect()  # the trainer and its network, in each other's hands
    if dist.is_initialized():
        dist.destroy_process_group()


def train(arguments: TrainingArguments) -> None:
    """Train, and print what was learned."""
    shape = {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10}
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    torch.manual_seed(0)
    digits = Digits()
    model = ViTForImageClassification(ViTConfig(**shape, **size))
    trainer = Trainer(model, arguments, train_dataset=digits)
    trainer.train()
    with torch.no_grad():
        images, labels = digits.images.to(model.device), digits.labels.to(model.device)
        loss = model.eval()(pixel_values=images, labels=labels).loss
        own = sum(parameter.square().sum() for parameter in model.parameters())
    weights = trainer.accelerator.gather(own.reshape(1)).tolist()
    agree = "the same" if len(set(weights)) == 1 else f"DIFFERENT: {weights}"
    if trainer.is_world_process_zero():
        print(f"loss {loss:.5f}, {agree} in {arguments.world_size} processes", flush=True)


if __name__ == "__main__":
    main()
