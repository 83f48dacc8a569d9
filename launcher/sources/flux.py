"""A task of Flux (``flux run``, ``flux submit``): one launcher per task, with any number of tasks per node.

Flux gives a task its rank and the sizes, but neither its node nor any host; only Flux's commands know these
(``flux hostlist local``). The initial program of a batch job has none of these variables.

Source: flux-core, "Environment" of flux-run(1) and src/shell/task.c.
"""

from __future__ import annotations

from launcher.core.model import Fact, Trust
from launcher.core.mpi import FLUX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.environ import Reader

(RANK,), TASKS, LOCAL_RANK = FLUX.rank, FLUX.size, FLUX.local_rank
NODES = "FLUX_JOB_NNODES"
MASTER = (
    "Flux does not tell its tasks any host: "
    'pass --master-addr "$(flux hostlist -n 0 local)", or set MASTER_ADDR'
)


def read(reader: Reader) -> None:
    """Claim what Flux states, and the number of tasks on this node if only one number is possible."""
    reader.claim_int(Fact.RANK, RANK)
    tasks = reader.claim_int(Fact.WORLD_SIZE, TASKS, 1)
    reader.claim_int(Fact.LOCAL_RANK, LOCAL_RANK)
    nodes = reader.claim_int(Fact.NODE_COUNT, NODES, 1)
    if tasks is None or nodes is None:
        return
    if nodes in (1, tasks):  # every node in the count has a task
        reader.claim(Fact.LOCAL_SIZE, tasks // nodes, f"{TASKS}={tasks}, {NODES}={nodes}", Trust.DERIVED)
    if nodes > 1:
        reader.note(MASTER)
