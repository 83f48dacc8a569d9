"""The starters' own traces: what a process must not inherit, and what it must inherit true.

Where mpirun started one launcher per node, its traces hurt the processes that we fork: a child that
talks on PMI_FD or calls MPI_Init with its parent's PMIX_* makes mpirun abort the job, and a frozen
OMPI_COMM_WORLD_LOCAL_RANK=0 in every process trips DeepSpeed ("LOCAL_RANK (1) !=
OMPI_COMM_WORLD_LOCAL_RANK (0)"). But MAE, BEiT and data2vec (``--dist_on_itp``) need the public OMPI
names, and timm, open_clip and Lightning prefer SLURM_PROCID to RANK. So: private state is dropped
from forks, and a public name that is there says the truth about the process that reads it.
"""

from __future__ import annotations

from launcher.core.model import Place, Setting, Topology

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PRIVATE_PREFIXES = (
    "PMIX_",
    "PMI_",
    "PRTE_",
    "OMPI_MCA_",
    "HYDI_",
    "HYDRA_BSTRAP_",
    "JSM_NAMESPACE_",
    "PALS_",
    "MV2_COMM_WORLD_",
)
PRIVATE = (
    "OMPI_UNIVERSE_SIZE",  # makes Open MPI 4 refuse a user's own mpirun
    "OMPI_APP_CTX_NUM_PROCS",
    "OMPI_FILE_LOCATION",
    "OMPI_FIRST_RANKS",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "FLUX_JOB_SIZE",
    "FLUX_TASK_RANK",
    "FLUX_TASK_LOCAL_ID",
)
RANK_ON_NODE = "OMPI_COMM_WORLD_NODE_RANK"
"""The rank on the node over all jobs, whatever its name says; our forks are the only ones there."""
ELASTIC_PREFIX = "TORCHELASTIC_"
AGENT_PREFIX = "PET_"
WORKERS = (
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
)
"""What torchrun gives its workers; others of its names are settings for its agent."""
CONTRACT = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "NODE_RANK", "MASTER_ADDRESS"),
)
"""Names that describe one process, and are wrong in whatever starts processes."""
COUNTED = (
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    *("OMPI_COMM_WORLD_LOCAL_SIZE", RANK_ON_NODE, "OMPI_WORLD_SIZE", "OMPI_WORLD_LOCAL_SIZE"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"),
    "SLURM_NTASKS_PER_NODE",
)
"""Public names that count what was started: launchers, where there is one per node."""


def plan_unset(names: Iterable[str]) -> list[str]:
    """Return what a forked process must not inherit: MPI's private state and torchrun's leftovers.

    TORCHELASTIC_USE_AGENT_STORE=True would make every process wait for a store that nobody starts;
    PET_* would be read again by a torchrun that the user's script starts.
    """
    prefixes = (*PRIVATE_PREFIXES, ELASTIC_PREFIX, AGENT_PREFIX)
    return [name for name in names if name in PRIVATE or name.startswith(prefixes)]


def plan_agent_unset(names: Iterable[str], *, torch: bool, rewritten: bool) -> list[str]:
    """Return what a launcher must not inherit that starts the processes of a node.

    Args:
        names: The names in the environment.
        torch: It is, or holds, torchrun's agent: what configures that stays.
        rewritten: Its processes start through us, which makes the public names true in each of them.
    """
    private = [name for name in names if name in PRIVATE or name.startswith(PRIVATE_PREFIXES)]
    elastic = [n for n in names if n.startswith(ELASTIC_PREFIX) and (not torch or n in WORKERS)]
    lies = CONTRACT if rewritten else (*CONTRACT, *COUNTED)
    return [*private, *elastic, *(name for name in names if name in lies)]


def plan_process(topology: Topology, place: Place, environ: Mapping[str, str], forks: bool) -> list[Setting]:
    """Return the public names that are there and say something else than the truth.

    At PROCESS scope that is nothing, unless mpirun runs inside of Slurm, whose names are the daemon's.
    """
    truth = {
        "OMPI_COMM_WORLD_RANK": place.rank,
        "OMPI_COMM_WORLD_SIZE": topology.world_size,
        "OMPI_COMM_WORLD_LOCAL_RANK": place.local_rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": topology.local_size,
        RANK_ON_NODE: place.local_rank if forks else None,
        "OMPI_WORLD_SIZE": topology.world_size,
        "OMPI_WORLD_LOCAL_SIZE": topology.local_size,
        "SLURM_PROCID": place.rank,
        "SLURM_LOCALID": place.local_rank,
        "SLURM_NODEID": topology.node_rank,
        "SLURM_NTASKS": topology.world_size,
        "SLURM_NPROCS": topology.world_size,
        "SLURM_STEP_NUM_TASKS": topology.world_size,
        "SLURM_NTASKS_PER_NODE": topology.local_size,
        "SLURM_NNODES": topology.node_count,
        "SLURM_STEP_NUM_NODES": topology.node_count,
    }
    return [
        Setting(name, str(value), "rewritten to the truth about this process")
        for name, value in truth.items()
        if value is not None and environ.get(name, str(value)) != str(value)
    ]
