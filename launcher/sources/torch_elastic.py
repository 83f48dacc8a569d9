"""A worker of torchrun: its whole identity is stated, whatever started torchrun itself.

Source: torch/distributed/elastic/agent/server/local_elastic_agent.py; captured with torch 2.15. torchrun sets
no NODE_RANK; GROUP_RANK is the node rank (one worker group per node).
"""

from __future__ import annotations

from launcher.core.environ import Reader
from launcher.core.model import Fact, Scope
from launcher.core.mpi import OPEN_MPI
from launcher.guest.marker import AGENT_STORE, LAUNCHED, NO_STORE

FACTS = (
    *((Fact.RANK, "RANK"), (Fact.WORLD_SIZE, "WORLD_SIZE"), (Fact.LOCAL_RANK, "LOCAL_RANK")),
    *((Fact.LOCAL_SIZE, "LOCAL_WORLD_SIZE"), (Fact.NODE_RANK, "GROUP_RANK")),
    *((Fact.NODE_COUNT, "GROUP_WORLD_SIZE"), (Fact.MASTER_PORT, "MASTER_PORT")),
)


def read(reader: Reader) -> None:
    """Claim a worker if all of torchrun's variables are set; otherwise TORCHELASTIC_RUN_ID is left over."""
    if reader.text(AGENT_STORE) == NO_STORE and reader.has(LAUNCHED):
        return  # a process of this launcher or a child of one: see `launcher.sources.launched`
    missing = [name for _, name in FACTS if not reader.has(name)]
    if missing:
        names = ", ".join(missing)
        reader.note(f"TORCHELASTIC_RUN_ID without {names}: left over from another run, not used")
    elif reader.text(OPEN_MPI.local_size) in (None, "1"):
        read_worker(reader)  # mpirun can start torchrun once per node, but not several times


def read_worker(reader: Reader) -> None:
    """Claim the contract of one process, and ask no outer source."""
    reader.claim_numbers(FACTS)
    reader.claim_host(Fact.MASTER_ADDR, "MASTER_ADDR")
    reader.starts = Scope.PROCESS
    reader.seals = True
