"""A process that this launcher started: it already has everything.

The outer launcher gave it the whole contract and corrected the public variables of the starters, so no outer
source is asked. But the process may have started its own mpirun or srun. That starter is nearer, and the
contract that its ranks inherit is the outer process's and not theirs.
"""

from __future__ import annotations

from launcher.core.mpi import TABLE
from launcher.sources import torch_elastic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.environ import Reader

MARKER = "LAUNCHER_LAUNCHED"


SAME = (("ROLE_RANK", "RANK"), ("ROLE_WORLD_SIZE", "WORLD_SIZE"), ("MASTER_ADDRESS", "MASTER_ADDR"))
"""Pairs of variables that the contract sets to the same value. A platform sets only the second of a pair."""


def read(reader: Reader) -> None:
    """Claim the contract of `launcher.frameworks.torch`, unless another starter has started us since."""
    if not has_contract(reader):
        reader.note(f"{MARKER} without the variables of such a process: left over from another run, not used")
    elif is_left_over(reader):
        reader.note(
            f"{MARKER} belongs to an outer process that the launcher started, not to this one: not used"
        )
    else:
        torch_elastic.read_worker(reader)
        reader.in_order = False  # the outer launcher may have numbered the nodes as mpirun does
        reader.note(
            f"{MARKER} is set: this is a process of another launcher run "
            f"(or a shell into which its variables were exported: unset {MARKER})"
        )


def has_contract(reader: Reader) -> bool:
    """Whether all variables of a launched process are there; a marker without them is from another run."""
    return all(reader.has(one) and reader.text(one) == reader.text(other) for one, other in SAME)


def is_left_over(reader: Reader) -> bool:
    """Whether a starter inside a launched process states another rank, world size or local size."""
    if not reader.has(MARKER) or not has_contract(reader):
        return False
    from launcher.guest import marker

    local_size = reader.text("LOCAL_WORLD_SIZE")
    here = [reader.text(family.local_size) for family in TABLE if local_size and family.local_size]
    if _is_other_task(reader) or any(size not in (None, local_size) for size in here):
        return True
    names = (MARKER, *marker.CONTRACT, *(name for pair in marker.NEARER for name in pair))
    return marker.is_left_over({name: reader.text(name) or "" for name in names})


def _is_other_task(reader: Reader) -> bool:
    """Whether TF_CONFIG has another rank or world size than the contract."""
    if not reader.has("TF_CONFIG"):
        return False
    from launcher.sources import tensorflow

    task = tensorflow.find_rank(reader.text("TF_CONFIG") or "")
    return task is not None and task != (reader.text("RANK"), reader.text("WORLD_SIZE"))
