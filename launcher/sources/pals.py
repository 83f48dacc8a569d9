"""A process of HPE Cray's PALS: mpiexec on PBS systems, or Slurm's plugin that sets the same variables.

PMI states the world size. No variable names a host.

Source: HPE pals.h (2023); slurm src/plugins/mpi/cray_shasta; openpmix/prrte src/mca/ess/pals.
"""

from __future__ import annotations

from launcher.core.model import Fact
from launcher.core.mpi import PALS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.environ import Reader

(RANK,), SIZE, LOCAL_RANK = PALS.rank, PALS.size, PALS.local_rank
NODE_RANK = "PALS_NODEID"
LOCAL_SIZES = (PALS.local_size, "PMI_LOCAL_SIZE")
NODE_FILE = "PBS_NODEFILE"


def read(reader: Reader) -> None:
    """Claim rank, node and sizes, all as stated."""
    reader.claim_int(Fact.RANK, RANK)
    size = reader.claim_int(Fact.WORLD_SIZE, SIZE, 1)
    reader.confirm("PMI_LOCAL_RANK", reader.claim_int(Fact.LOCAL_RANK, LOCAL_RANK), LOCAL_RANK)
    reader.claim_int(Fact.NODE_RANK, NODE_RANK)
    sizes = [reader.claim_int(Fact.LOCAL_SIZE, name, 1) for name in LOCAL_SIZES]
    local_size = next((size for size in sizes if size is not None), None)
    if size != local_size:
        reader.note(
            "PALS does not tell processes where rank 0 runs: "
            f"export MASTER_ADDR=$(head -n 1 ${NODE_FILE}) before mpiexec"
        )
