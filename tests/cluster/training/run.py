"""What all programs here have in common: digits, the order of the images, checkpoints and a result.

    python PROGRAM FOLDER STEPS PAUSE_S

A batch is a function of the step's number alone, so that a resumed run sees the images of an undisturbed one.
`digits.npz` in the folder has the images: that is faster than to load scikit-learn in each rank.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

TRAIN_COUNT = 1440  # of 1797 images
BATCH = 96
EVERY = 2
"""A checkpoint is written every so many steps."""
Array = np.ndarray[Any, Any]


class Run:
    """One rank of an attempt.

    Attributes:
        rank: Which one.
        pixels: All images, 64 pixels in 0..1 each.
        labels: The digits that they show.
    """

    def __init__(self) -> None:
        """Read the command line, and write our process id where the test finds it."""
        folder, steps, pause_s = sys.argv[1:]
        self.rank = int(os.environ["RANK"])
        self._folder, self._steps, self._pause_s = Path(folder), int(steps), float(pause_s)
        attempt = os.environ.get("LAUNCHER_ATTEMPT", "0")
        replace(self._folder / f"pid-{self.rank}-{attempt}", str(os.getpid()).encode())
        digits = np.load(self._folder / "digits.npz")
        self.pixels, self.labels = digits["pixels"], digits["labels"]

    def load(self) -> tuple[int, dict[str, Array]]:
        """Return how many steps the checkpoint has seen, and its arrays; 0 and none at the beginning."""
        try:
            with np.load(self._folder / "checkpoint.npz") as found:
                arrays = dict(found)
        except FileNotFoundError:
            return 0, {}
        return int(arrays.pop("step")), arrays

    def steps(self, done: int, share: int, shares: int) -> Iterator[tuple[int, Array]]:
        """Yield the number of each step that is left, and our share of its images."""
        for step in range(done, self._steps):
            rows = np.random.default_rng(step).permutation(TRAIN_COUNT)[:BATCH]
            yield step, rows[share::shares]
            time.sleep(self._pause_s)  # a step of a larger model takes longer

    def save(self, step: int, arrays: Mapping[str, Array]) -> None:
        """Write a checkpoint after a step if it is time for one; only rank 0 calls this."""
        if (step + 1) % EVERY:
            return
        new = self._folder / "new.npz"
        np.savez(new, allow_pickle=False, step=step + 1, **arrays)
        os.replace(new, self._folder / "checkpoint.npz")
        replace(self._folder / "step", str(step + 1).encode())

    def finish(self, right: float, arrays: Mapping[str, Array]) -> None:
        """Write the result: the share of right answers, and a hash of all weights."""
        content = b"".join(np.ascontiguousarray(arrays[name]).tobytes() for name in sorted(arrays))
        result = {"accuracy": right, "weights": hashlib.sha256(content).hexdigest()}
        replace(self._folder / "result.json", json.dumps(result).encode())


def replace(path: Path, content: bytes) -> None:
    """Write a file so that no reader sees a part of it."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    os.replace(new, path)
