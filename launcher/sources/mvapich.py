"""A process of MVAPICH2's mpirun_rsh: four numbers, and neither its node nor any host.

Versions 3 and newer start by Hydra (see `hydra`).

Source: MVAPICH2 user guide, "Environment variables" (MV2_COMM_WORLD_*).
"""

from __future__ import annotations

from launcher.core.model import Fact

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.environ import Reader

RANK = "MV2_COMM_WORLD_RANK"
SIZE = "MV2_COMM_WORLD_SIZE"
LOCAL_RANK = "MV2_COMM_WORLD_LOCAL_RANK"
LOCAL_SIZE = "MV2_COMM_WORLD_LOCAL_SIZE"


def read(reader: Reader) -> None:
    """Rank and sizes as stated."""
    reader.claim_int(Fact.RANK, RANK)
    reader.claim_int(Fact.WORLD_SIZE, SIZE, 1)
    reader.claim_int(Fact.LOCAL_RANK, LOCAL_RANK)
    reader.claim_int(Fact.LOCAL_SIZE, LOCAL_SIZE, 1)
