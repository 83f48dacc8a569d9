"""A node of a job on Volcengine's machine learning platform: one launcher per node.

None of its variables is one of PyTorch's.

Source: volcengine.com documentation 6459/75329, "Environment variables of a custom task".
"""

from __future__ import annotations

from launcher.core.environ import Reader
from launcher.core.model import Fact, Scope, Trust
from launcher.sources.signs import FLAGS
from launcher.sources.table import MARKERS

NODE_COUNT, ROLE, INDEX, HOSTS, MASTER_ADDR = MARKERS["volcengine"]
"""The index counts within the role."""


def read(reader: Reader) -> None:
    """Claim the number of workers, which of them this one is, and the first one as master."""
    if (reader.text(ROLE) or "worker").lower() != "worker":
        reader.sign(ROLE, f"only workers have ranks: start the launcher there, or {FLAGS}")
        return
    reader.starts = Scope.NODE
    count = reader.claim_int(Fact.NODE_COUNT, NODE_COUNT)
    hosts = reader.hosts(HOSTS)
    several = (count or len(hosts)) > 1
    if several:
        reader.claim_host(Fact.MASTER_ADDR, MASTER_ADDR)
        reader.claim_int(Fact.MASTER_PORT, "MLP_WORKER_0_PORT")
    reader.claim_hosts(hosts, HOSTS, master=Trust.DERIVED if several else None)
    reader.claim_int(Fact.NODE_RANK, INDEX)
    if count is None and not hosts:
        name = next((name for name in (INDEX, ROLE, MASTER_ADDR) if reader.has(name)), NODE_COUNT)
        reader.sign(name, f"pass {NODE_COUNT} into the container too, or {FLAGS}")
    reader.claim_int(Fact.PROCESSES_PER_NODE, "MLP_WORKER_GPU", trust=Trust.DERIVED)
