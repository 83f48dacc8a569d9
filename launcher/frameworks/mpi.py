"""MPI's traces, for processes that we fork where mpirun started one launcher per node.

Inherited as they are they would hurt: a child that talks on PMI_FD or calls MPI_Init with its
parent's PMIX_* makes mpirun abort the job, and a frozen OMPI_COMM_WORLD_LOCAL_RANK=0 in every process
trips DeepSpeed ("LOCAL_RANK (1) != OMPI_COMM_WORLD_LOCAL_RANK (0)"). But MAE, BEiT and data2vec
(``--dist_on_itp``) need the public OMPI names. So: private state dropped, public names rewritten.
"""

from __future__ import annotations

from collections.abc import Iterable

from launcher.model import Place, Setting, Topology

PRIVATE_PREFIXES = ("PMIX_", "PMI_", "PRTE_", "OMPI_MCA_", "HYDI_", "HYDRA_BSTRAP_")
PRIVATE = (
    "OMPI_UNIVERSE_SIZE",
    "OMPI_FILE_LOCATION",
    "OMPI_FIRST_RANKS",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
)
"""OMPI_UNIVERSE_SIZE makes Open MPI 4 refuse a user's own mpirun; the rest would be stale."""
STARTERS = ("OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID")
"""One of these is set in every process that an mpirun or mpiexec started."""
PUBLIC_PREFIX = "OMPI_COMM_WORLD_"
ELASTIC_PREFIX = "TORCHELASTIC_"
AGENT_PREFIX = "PET_"


def plan_unset(names: Iterable[str]) -> list[str]:
    """Return what a forked process must not inherit: MPI's private state and torchrun's leftovers.

    TORCHELASTIC_USE_AGENT_STORE=True would make every process wait for a store that nobody starts;
    PET_* would be read again by a torchrun that the user's script starts.
    """
    prefixes = (*PRIVATE_PREFIXES, ELASTIC_PREFIX, AGENT_PREFIX)
    return [name for name in names if name in PRIVATE or name.startswith(prefixes)]


def plan_process(topology: Topology, place: Place, names: Iterable[str]) -> list[Setting]:
    """Return the public OMPI names as they would be had mpirun started this process itself."""
    if not any(name.startswith(PUBLIC_PREFIX) for name in names):
        return []
    values = {
        "RANK": place.rank,
        "SIZE": topology.world_size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_SIZE": topology.local_size,
        "NODE_RANK": place.local_rank,  # rank on the node over all jobs, whatever the name says
    }
    return [
        Setting(PUBLIC_PREFIX + key, str(value), "rewritten per process") for key, value in values.items()
    ]
