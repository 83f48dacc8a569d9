"""A process of MVAPICH2's mpirun_rsh: its ranks and sizes are stated, but neither its node nor any host.

Versions 3 and newer start through Hydra (see `hydra`).

Source: MVAPICH2 user guide, "Environment variables" (MV2_COMM_WORLD_*).
"""

from __future__ import annotations

from launcher.core.model import Fact
from launcher.core.mpi import MVAPICH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.environ import Reader


def read(reader: Reader) -> None:
    """Claim ranks and sizes as stated."""
    reader.claim_int(Fact.RANK, MVAPICH.rank[0])
    reader.claim_int(Fact.WORLD_SIZE, MVAPICH.size, 1)
    reader.claim_int(Fact.LOCAL_RANK, MVAPICH.local_rank)
    reader.claim_int(Fact.LOCAL_SIZE, MVAPICH.local_size, 1)
