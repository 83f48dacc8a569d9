"""Lightning: which ClusterEnvironment a Trainer takes, and what that says after the strategy is set up.

``devices`` and ``num_nodes`` are what the script has to say itself, and says rightly. Stood in for: MPI,
which Lightning asks where mpi4py is installed and nothing else fits. No mpirun is around these
processes, and importing mpi4py calls MPI_Init, which says: a world of one, so not MPI.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

lightning: Any = import_module("lightning.pytorch")
connector: Any = import_module("lightning.pytorch.trainer.connectors.accelerator_connector")
connector.MPIEnvironment.detect = staticmethod(lambda: False)
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}


def answer() -> dict[str, Any]:
    """Processes exist already, and each knows its place."""
    processes = int(os.environ["WORLD_SIZE"])
    devices = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", processes // devices))
    trainer = lightning.Trainer(accelerator="cpu", strategy="ddp", devices=devices, num_nodes=nodes, **QUIET)
    trainer.strategy.set_world_ranks()
    cluster = trainer.strategy.cluster_environment
    return {
        "rank": cluster.global_rank(),
        "world_size": cluster.world_size(),
        "local_rank": cluster.local_rank(),
        "node_rank": cluster.node_rank(),
        "master_addr": cluster.main_address,
        "master_port": cluster.main_port,
        "starts_processes": not cluster.creates_processes_externally,
    }
