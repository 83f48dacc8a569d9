"""Engines: the ways to start processes, one file each."""

from launcher.core.model import TORCHRUN

WITH_WORKERS = (TORCHRUN, "accelerate", "axolotl", "deepspeed", "llamafactory", "swift", "trl")
"""Engines whose processes we can identify: each has its own RANK in its environment."""
