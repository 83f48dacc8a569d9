"""A node of a job on Volcengine's machine learning platform: one launcher per node.

None of its variables is one of PyTorch's.

Source: volcengine.com documentation 6459/75329, "Environment variables of a custom task".
"""

from __future__ import annotations

from launcher.core.model import Fact, Scope, Trust
from launcher.sources.signs import FLAGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.environ import Reader

ROLE = "MLP_ROLE"
INDEX = "MLP_ROLE_INDEX"  # within the role
NODE_COUNT = "MLP_WORKER_NUM"
HOSTS = "MLP_WORKER_ALL_HOSTS"
GPUS = "MLP_WORKER_GPU"
MASTER_ADDR = "MLP_WORKER_0_HOST"
MASTER_PORT = "MLP_WORKER_0_PORT"


def read(reader: Reader) -> None:
    """Claim the number of workers, which of them this one is, and the first one as master."""
    if (reader.text(ROLE) or "worker").lower() != "worker":
        reader.sign(ROLE, f"only workers have ranks: start the launcher there, or {FLAGS}")
        return
    reader.starts = Scope.NODE
    count = reader.claim_int(Fact.NODE_COUNT, NODE_COUNT, 1)
    hosts = reader.hosts(HOSTS)
    reader.claim_hosts(hosts, HOSTS)
    reader.claim_int(Fact.NODE_RANK, INDEX)
    if count is None and not hosts:
        name = next((name for name in (INDEX, ROLE, MASTER_ADDR) if reader.has(name)), NODE_COUNT)
        reader.sign(name, f"pass {NODE_COUNT} into the container too, or {FLAGS}")
    if (count or len(hosts)) > 1:
        reader.claim_host(Fact.MASTER_ADDR, MASTER_ADDR)
        reader.claim_int(Fact.MASTER_PORT, MASTER_PORT, 1)
        if hosts:
            reader.claim(Fact.MASTER_ADDR, hosts[0], HOSTS, Trust.DERIVED)
    reader.claim_int(Fact.PROCESSES_PER_NODE, GPUS, 0, Trust.DERIVED)
