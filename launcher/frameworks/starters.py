"""Variables of the program that started us: those that a process must not inherit, and those made true.

If mpirun started one launcher per node, its variables harm the processes that we fork. A child that uses
PMI_FD or calls MPI_Init with its parent's PMIX_* makes mpirun abort the job. The same
OMPI_COMM_WORLD_LOCAL_RANK=0 in every process makes DeepSpeed fail ("LOCAL_RANK (1) !=
OMPI_COMM_WORLD_LOCAL_RANK (0)"). But MAE, BEiT and data2vec (``--dist_on_itp``) need the public OMPI names,
and timm, open_clip and Lightning prefer SLURM_PROCID to RANK. So we unset private state for forks, and
rewrite public names that are set, for the process that reads them.
"""

from __future__ import annotations

from launcher.core.model import Place, Setting, Topology
from launcher.core.mpi import OPEN_MPI, RANK_ON_NODE, STATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OPEN_MPI_5_SIZES = ("OMPI_WORLD_SIZE", "OMPI_WORLD_LOCAL_SIZE")
ELASTIC_PREFIX = "TORCHELASTIC_"
AGENT_PREFIX = "PET_"
WORKERS = (
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
)
"""Variables that torchrun gives its workers; its other TORCHELASTIC_* names are settings for its agent."""
CONTRACT = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "NODE_RANK", "MASTER_ADDRESS"),
)
"""Names that describe one process, and are wrong in a program that starts processes."""
COUNTED = (
    *(*OPEN_MPI.rank, OPEN_MPI.size, OPEN_MPI.local_rank, OPEN_MPI.local_size, RANK_ON_NODE),
    *OPEN_MPI_5_SIZES,
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"),
    "SLURM_NTASKS_PER_NODE",
)
"""Public names that count the started programs, which are launchers if there is one per node."""


def plan_unset(names: Iterable[str]) -> list[str]:
    """Return the names that a forked process must not inherit: MPI's private state and torchrun's leftovers.

    TORCHELASTIC_USE_AGENT_STORE=True would make every process wait for a store that never starts; a torchrun
    that the user's script starts would read PET_* again.
    """
    return [name for name in names if name.startswith((*STATE, ELASTIC_PREFIX, AGENT_PREFIX))]


def plan_agent_unset(names: Iterable[str], *, torch: bool, rewritten: bool) -> list[str]:
    """Return the names that a launcher that starts a node's processes must not inherit.

    Args:
        names: The names in the environment.
        torch: Whether it is, or contains, torchrun's agent: then the agent's settings stay.
        rewritten: Whether its processes start through us, which makes the public names true in each of them.
    """
    private = [name for name in names if name.startswith(STATE)]
    elastic = [n for n in names if n.startswith(ELASTIC_PREFIX) and (not torch or n in WORKERS)]
    lies = CONTRACT if rewritten else (*CONTRACT, *COUNTED)
    return [*private, *elastic, *(name for name in names if name in lies)]


def plan_process(topology: Topology, place: Place, environ: Mapping[str, str], forks: bool) -> list[Setting]:
    """Return the public names that are set and wrong for this process, with their true values.

    At PROCESS scope there are none, unless mpirun runs inside Slurm, whose names describe mpirun's daemon.
    """
    truth = {
        OPEN_MPI.rank[0]: place.rank,
        OPEN_MPI.size: topology.world_size,
        OPEN_MPI.local_rank: place.local_rank,
        OPEN_MPI.local_size: topology.local_size,
        RANK_ON_NODE: place.local_rank if forks else None,  # among all jobs; only our forks are there
        **dict(zip(OPEN_MPI_5_SIZES, (topology.world_size, topology.local_size), strict=True)),
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
        Setting(name, str(value), "corrected for this process")
        for name, value in truth.items()
        if value is not None and environ.get(name, str(value)) != str(value)
    ]
