"""A process that this launcher or torchrun started. It already has everything.

The outer one gave it the whole contract (the launcher also corrected the public variables of the starters),
so no outer source counts. But the process may have started its own mpirun or srun. That starter is nearer,
and the contract that its ranks inherit is the outer process's and not theirs.

Source: torch/distributed/elastic/agent/server/local_elastic_agent.py; captured with torch 2.15. torchrun sets
no NODE_RANK; GROUP_RANK is the node rank (one worker group per node).
"""

from __future__ import annotations

from launcher.core.model import Fact, Scope
from launcher.core.mpi import OPEN_MPI, TABLE
from launcher.sources.reader import Reader
from launcher.sources.signs import is_above

MARKER = "LAUNCHER_LAUNCHED"
SAME = (("ROLE_RANK", "RANK"), ("ROLE_WORLD_SIZE", "WORLD_SIZE"), ("MASTER_ADDRESS", "MASTER_ADDR"))
"""Pairs of variables that the contract sets to the same value. A platform sets only the second of a pair."""
NAMES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_PORT"),
)
"""torchrun's variables, in the order of the facts of a process."""


def read(reader: Reader) -> None:
    """Claim the contract of `launcher.frameworks.torch`, unless another starter has started us since."""
    if not has_contract(reader):
        note = "without the variables of such a process: left over from another run, not used"
    elif is_left_over(reader):
        note = "belongs to an outer process that the launcher started, not to this one: not used"
    else:
        _claim_worker(reader)
        reader.in_order = False  # the outer launcher may have numbered the nodes as mpirun does
        shell = f"a shell into which its variables were exported: unset {MARKER}"
        note = f"is set: this is a process of another launcher run (or {shell})"
    reader.note(f"{MARKER} {note}")


def read_torchrun(reader: Reader) -> None:
    """Claim a worker if all of torchrun's variables are set; otherwise TORCHELASTIC_RUN_ID is left over."""
    from launcher.inprocess.marker import AGENT_STORE, NO_STORE

    if reader.text(AGENT_STORE) == NO_STORE and reader.has(MARKER):
        return  # a process of this launcher or a child of one
    names = ", ".join(name for name in NAMES if not reader.has(name))
    if is_above(reader, "LOCAL_WORLD_SIZE", 1) and not (reader.has("RANK") and reader.has("WORLD_SIZE")):
        _claim_worker(reader)  # one of several on this node: an outer rank is not its own
    elif names:
        reader.note(f"TORCHELASTIC_RUN_ID without {names}: left over from another run, not used")
    elif reader.is_named or _is_among_ranks(reader) or is_worker(reader):
        _claim_worker(reader)


def _is_among_ranks(reader: Reader) -> bool:
    """Whether mpirun numbers as many processes as torchrun, but more than one per node; report it then.

    It has started several on a node, and one of them has started torchrun (or a worker has started mpirun).
    That is the same for all processes of the job, while numbers on a node with one rank do not show it.
    """
    world, nodes = reader.text("WORLD_SIZE"), reader.text("GROUP_WORLD_SIZE")
    is_among = reader.text(OPEN_MPI.size) == world and nodes not in ("1", world)
    if is_among:
        reader.refuse("torchrun-among-ranks", OPEN_MPI.size, nodes=reader.origin("GROUP_WORLD_SIZE"))
    return is_among


def is_worker(reader: Reader) -> bool:
    """Whether all of torchrun's variables are set, and mpirun has not started several processes here.

    mpirun can start torchrun once per node, but not several times.
    """
    return all(map(reader.has, ("TORCHELASTIC_RUN_ID", *NAMES))) and reader.text(OPEN_MPI.local_size) in (
        None,
        "1",
    )


def _claim_worker(reader: Reader) -> None:
    """Claim the contract of one process; outer sources do not count."""
    reader.claim_process(NAMES)
    reader.claim_host(Fact.MASTER_ADDR, "MASTER_ADDR")
    reader.starts = Scope.PROCESS
    reader.seals = True


def has_contract(reader: Reader) -> bool:
    """Whether all variables of a launched process are there; a marker without them is from another run."""
    return all(reader.has(one) and reader.text(one) == reader.text(other) for one, other in SAME)


def is_left_over(reader: Reader) -> bool:
    """Whether a starter inside a launched process states another rank, world size or local size."""
    if not reader.has(MARKER) or not has_contract(reader):
        return False
    from launcher.inprocess import marker

    is_other = False
    if reader.has("TF_CONFIG"):
        from launcher.sources.tensorflow import find_task

        task, contract = (
            find_task(reader.text("TF_CONFIG") or ""),
            (reader.text("RANK"), reader.text("WORLD_SIZE")),
        )
        is_other = (
            task is not None and task.rank is not None and contract != (str(task.rank), str(len(task.hosts)))
        )
    local_size = reader.text("LOCAL_WORLD_SIZE")
    here = [reader.text(family.local_size) for family in TABLE if local_size]
    if is_other or any(size not in (None, local_size) for size in here):
        return True
    names = (MARKER, *marker.CONTRACT, *(name for pair in marker.NEARER for name in pair))
    return marker.is_left_over({name: reader.text(name) or "" for name in names})
