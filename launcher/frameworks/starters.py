"""Variables of the program that started us: those that a process must not inherit, and those made true.

If mpirun started one launcher per node, its variables harm the processes that we fork. A child that uses
PMI_FD or calls MPI_Init with its parent's PMIX_* makes mpirun abort the job. The same
OMPI_COMM_WORLD_LOCAL_RANK=0 in every process makes DeepSpeed fail ("LOCAL_RANK (1) !=
OMPI_COMM_WORLD_LOCAL_RANK (0)"). But MAE, BEiT and data2vec (``--dist_on_itp``) need the public OMPI names,
and timm, open_clip and Lightning prefer SLURM_PROCID to RANK. So we unset private state for forks, and
rewrite public names that are set, for the process that reads them.
"""

from __future__ import annotations

from launcher.core.mpi import OPEN_MPI, RANK_ON_NODE, STATE
from launcher.frameworks.torch import ELASTIC, FACTS
from launcher.options.given import PET_PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from launcher.core.model import Place, Setting
    from launcher.frameworks.case import Case

ELASTIC_PREFIX = "TORCHELASTIC_"
CONTRACT = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "NODE_RANK", "MASTER_ADDRESS"),
)
"""Names that describe one process, and are wrong in a program that starts processes."""
PUBLIC = FACTS["starters"]
"""Public names, and the facts that they state about the programs that were started."""
COUNTED = tuple(name for name, fact in PUBLIC.items() if not fact.startswith("node_"))
"""Those that count the started programs, which are launchers if there is one per node."""
OF_MPI = (OPEN_MPI.rank[0], OPEN_MPI.size, OPEN_MPI.local_rank)
OF_SLURM = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS_PER_NODE")
ON_ITP = "--dist_on_itp"
"""With it MAE, BEiT, data2vec and their descendants take rank, size and local rank only from `OF_MPI`.

Source: github.com/facebookresearch/mae util/misc.py, init_distributed_mode.
"""


def plan_unset(names: Iterable[str]) -> list[str]:
    """Return the names that a forked process must not inherit: MPI's private state and torchrun's leftovers.

    TORCHELASTIC_USE_AGENT_STORE=True would make every process wait for a store that never starts; a torchrun
    that the user's script starts would read PET_* again.
    """
    return [name for name in names if name.startswith((*STATE, ELASTIC_PREFIX, PET_PREFIX))]


def plan_agent_unset(names: Iterable[str], *, torch: bool, rewritten: bool) -> list[str]:
    """Return the names that a launcher that starts a node's processes must not inherit.

    Args:
        names: The names in the environment.
        torch: Whether it is, or contains, torchrun's agent: then the agent's settings stay.
        rewritten: Whether its processes start through us, which makes the public names true in each of them.
    """
    private = [name for name in names if name.startswith(STATE)]
    elastic = [n for n in names if n.startswith(ELASTIC_PREFIX) and (not torch or n in ELASTIC)]
    lies = CONTRACT if rewritten else (*CONTRACT, *COUNTED)
    return [*private, *elastic, *(name for name in names if name in lies)]


def plan_process(case: Case, place: Place) -> list[Setting]:
    """Return the public names that are set and wrong for this process, with their true values.

    At PROCESS scope there are none, unless mpirun runs inside Slurm, whose names describe mpirun's daemon.
    """
    return [
        setting
        for setting in case.state(PUBLIC, place, "corrected for this process")
        if case.environ.get(setting.name, setting.value) != setting.value
        and (case.forks or setting.name != RANK_ON_NODE)  # among all jobs; only our forks are there
    ]


def plan_missing(names: Iterable[str], case: Case, place: Place, why: str) -> list[Setting]:
    """Return the unset ones of these public names, with one process's true values.

    A program that finds them may take itself for a rank of mpirun or a task of Slurm, so they are only for
    libraries that read them, whatever started the job.
    """
    missing = {name: PUBLIC[name] for name in names if name not in case.environ}
    return case.state(missing, place, why)
