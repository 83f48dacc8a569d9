"""A worker of torchrun: the whole identity is stated, whatever started torchrun itself.

Source: torch/distributed/elastic/agent/server/local_elastic_agent.py; captured with torch 2.15. There
is no NODE_RANK among the variables; GROUP_RANK is it (one worker group per node).
"""

from __future__ import annotations

from launcher.core.model import Fact, Scope
from launcher.core.mpi import OPEN_MPI
from launcher.guest.marker import AGENT_STORE, LAUNCHED, NO_STORE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.environ import Reader

FACTS = (
    (Fact.RANK, "RANK", 0),
    (Fact.WORLD_SIZE, "WORLD_SIZE", 1),
    (Fact.LOCAL_RANK, "LOCAL_RANK", 0),
    (Fact.LOCAL_SIZE, "LOCAL_WORLD_SIZE", 1),
    (Fact.NODE_RANK, "GROUP_RANK", 0),
    (Fact.NODE_COUNT, "GROUP_WORLD_SIZE", 1),
    (Fact.MASTER_PORT, "MASTER_PORT", 1),
)


def read(reader: Reader) -> None:
    """TORCHELASTIC_RUN_ID with all that torchrun sets: a worker. Else left over, worth nothing."""
    if reader.text(AGENT_STORE) == NO_STORE and reader.has(LAUNCHED):
        return  # a process of this launcher, or what one has started: `launcher.sources.launched` tells
    missing = [name for _, name, _ in FACTS if not reader.has(name)]
    if missing:
        names = ", ".join(missing)
        reader.note(f"TORCHELASTIC_RUN_ID without {names}: left over from another run, not used")
    elif reader.text(OPEN_MPI.local_size) in (None, "1"):
        read_worker(reader)  # mpirun can be around torchrun once per node, but not several times


def read_worker(reader: Reader) -> None:
    """Claim the contract of one process and ask nothing outside."""
    for fact, name, minimum in FACTS:
        reader.claim_int(fact, name, minimum)
    reader.claim_host(Fact.MASTER_ADDR, "MASTER_ADDR")
    reader.starts = Scope.PROCESS
    reader.seals = True
