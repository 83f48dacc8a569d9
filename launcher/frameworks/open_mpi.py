"""Open MPI's public names, for libraries that read them whether mpirun started the job or not.

MAE, BEiT, data2vec and their descendants take rank, size and local rank only from these if they get
``--dist_on_itp``. Other jobs do not get them, because a program that finds them may take itself for a rank of
mpirun. If mpirun has set them, they stay, and `starters` keeps them true.

Source: github.com/facebookresearch/mae util/misc.py, init_distributed_mode.
"""

from __future__ import annotations

from launcher.core.model import Place, Setting
from launcher.core.mpi import OPEN_MPI

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.frameworks.case import Case

ON_ITP = "--dist_on_itp"


def plan_common(case: Case) -> list[Setting]:
    """Return nothing: the names belong together, and two of them differ between processes."""
    return []


def plan_process(case: Case, place: Place) -> list[Setting]:
    """Return the names for a script whose command line requests them."""
    return plan_names(case, place, f"{ON_ITP} reads it") if ON_ITP in case.argv else []


def plan_names(case: Case, place: Place, why: str) -> list[Setting]:
    """Return the names that are not set yet, with the true values for one process.

    Args:
        case: The job.
        place: The rank and local rank of the process.
        why: The program that reads them, for the plan.
    """
    values = {
        OPEN_MPI.rank[0]: place.rank,
        OPEN_MPI.size: case.topology.world_size,
        OPEN_MPI.local_rank: place.local_rank,
    }
    return [Setting(name, str(value), why) for name, value in values.items() if name not in case.environ]
