"""A worker of torchrun: the whole identity is stated, whatever started torchrun itself.

Source: torch/distributed/elastic/agent/server/local_elastic_agent.py; captured with torch 2.15. There
is no NODE_RANK among the variables; GROUP_RANK is it (one worker group per node).
"""

from __future__ import annotations

from launcher.environ import Reader
from launcher.model import Fact, Scope

RANK = "RANK"
FACTS = (
    (Fact.RANK, RANK, 0),
    (Fact.WORLD_SIZE, "WORLD_SIZE", 1),
    (Fact.LOCAL_RANK, "LOCAL_RANK", 0),
    (Fact.LOCAL_SIZE, "LOCAL_WORLD_SIZE", 1),
    (Fact.NODE_RANK, "GROUP_RANK", 0),
    (Fact.NODE_COUNT, "GROUP_WORLD_SIZE", 1),
    (Fact.MASTER_PORT, "MASTER_PORT", 1),
)


def read(reader: Reader) -> None:
    """TORCHELASTIC_RUN_ID with a RANK: a worker. Without one: left over, worth nothing."""
    if reader.has(RANK) and reader.has("LOCAL_RANK"):
        read_worker(reader)
    else:
        reader.note("TORCHELASTIC_RUN_ID without RANK and LOCAL_RANK: left over from another run, not used")


def read_worker(reader: Reader) -> None:
    """Claim the contract of one process and ask nobody outside."""
    for fact, name, minimum in FACTS:
        reader.claim_int(fact, name, minimum)
    reader.claim_host(Fact.MASTER_ADDR, "MASTER_ADDR")
    reader.starts = Scope.PROCESS
    reader.seals = True
