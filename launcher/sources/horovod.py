"""A worker of horovodrun over gloo. Over MPI, horovodrun uses mpirun, which gives the ranks (see `open_mpi`).

The "cross" numbers count the processes with the same local rank. They are the node's index and the number of
nodes only for local rank 0, because every node has one. The rendezvous server is horovodrun's and need not
run on the node of rank 0.

Source: horovod/runner/gloo_run.py; recorded with Horovod 0.28.1.
"""

from __future__ import annotations

from launcher.core.model import Fact, Trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.environ import Reader

RANK = "HOROVOD_RANK"
SIZE = "HOROVOD_SIZE"
LOCAL_RANK = "HOROVOD_LOCAL_RANK"
LOCAL_SIZE = "HOROVOD_LOCAL_SIZE"
CROSS_RANK = "HOROVOD_CROSS_RANK"
CROSS_SIZE = "HOROVOD_CROSS_SIZE"
ELASTIC = "HOROVOD_ELASTIC"


def read(reader: Reader) -> None:
    """Claim rank and sizes as stated, and the node if this is the first process on it."""
    if reader.text(ELASTIC) == "1":
        reader.sign(
            ELASTIC, "ranks of an elastic job come later, and change: horovodrun -np N without --min-np"
        )
        return
    reader.claim_int(Fact.RANK, RANK)
    size = reader.claim_int(Fact.WORLD_SIZE, SIZE, 1)
    local_rank = reader.claim_int(Fact.LOCAL_RANK, LOCAL_RANK)
    local_size = reader.claim_int(Fact.LOCAL_SIZE, LOCAL_SIZE, 1)
    if local_rank == 0:
        reader.claim_int(Fact.NODE_RANK, CROSS_RANK, trust=Trust.DERIVED)
        reader.claim_int(Fact.NODE_COUNT, CROSS_SIZE, 1, Trust.DERIVED)
    if size != local_size:
        reader.note(
            "horovodrun does not tell processes where rank 0 runs: "
            "set MASTER_ADDR, or pass --master-addr HOST"
        )
