"""A node of a PyTorch job on Alibaba's PAI (DLC), Baidu's AIHC or Tencent's TI-ONE: one launcher per node.

RANK and WORLD_SIZE count nodes: the master is 0, worker i is i + 1. NPROC_PER_NODE (TI-ONE: GPU_NUM_PER_NODE)
beside them identifies these platforms. On other platforms users set these names too, so without RANK they
mean nothing.

Source: alibabacloud.com PAI "Built-in environment variables" of DLC; cloud.baidu.com AIHC "Environment
variables"; tencentcloud.com TI-ONE, distributed training (document 1141/69605).
"""

from __future__ import annotations

from launcher.core.model import Fact, Scope, Trust
from launcher.sources.torch_env import ALIBABA_PAI, RANK, TENCENT, WORLD_SIZE, counts_nodes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.environ import Reader


def read(reader: Reader) -> None:
    """Claim the node rank, the number of nodes, and the processes of each node."""
    if counts_nodes(reader) in (ALIBABA_PAI, TENCENT):
        reader.starts = Scope.NODE
        reader.claim_int(Fact.NODE_RANK, RANK)
        reader.claim_int(Fact.NODE_COUNT, WORLD_SIZE, 1)
        reader.claim_int(Fact.PROCESSES_PER_NODE, ALIBABA_PAI, 1)
        reader.claim_int(Fact.PROCESSES_PER_NODE, TENCENT, 0, Trust.DERIVED)
