"""Inside of a process that this launcher started: everything is there already.

The outer launcher gave the whole contract and may have dropped or left what its own platform set, so
nothing outside is asked: the node's SLURM_PROCID is not this process's rank.
"""

from __future__ import annotations

from launcher.environ import Reader
from launcher.sources import torch_elastic


def read(reader: Reader) -> None:
    """The contract, as `launcher.frameworks.torch` writes it."""
    torch_elastic.read_worker(reader)
