"""Inside of a process that this launcher started: everything is there already.

The outer launcher gave the whole contract and made the starters' public names true, so nothing outside
is asked. But the process may have started an mpirun or srun of its own: then that one is nearer, and
the contract that its ranks inherited is the outer process's, not theirs.
"""

from __future__ import annotations

from launcher.sources import torch_elastic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.environ import Reader

MARKER = "LAUNCHER_LAUNCHED"


SAME = (("ROLE_RANK", "RANK"), ("ROLE_WORLD_SIZE", "WORLD_SIZE"), ("MASTER_ADDRESS", "MASTER_ADDR"))
"""Names that the contract has twice. A platform sets the second ones alone."""


def read(reader: Reader) -> None:
    """The contract, as `launcher.frameworks.torch` writes it, unless another starter has started us since."""
    if not has_contract(reader):
        reader.note(f"{MARKER} without the variables of such a process: left over from another run, not used")
    elif is_left_over(reader):
        reader.note(f"{MARKER} comes from the process around this one, which started it: not used")
    else:
        torch_elastic.read_worker(reader)
        reader.in_order = False  # the outer launcher may have numbered the nodes as mpirun does
        reader.note(
            f"{MARKER} is set: this is a process of another launcher run "
            f"(or a shell into which its variables were exported: unset {MARKER})"
        )


def has_contract(reader: Reader) -> bool:
    """Whether the variables of a process of this launcher are whole; a mark alone is another run's."""
    return all(reader.has(one) and reader.text(one) == reader.text(other) for one, other in SAME)


def is_left_over(reader: Reader) -> bool:
    """Whether a starter inside of a launched process speaks of another rank or world."""
    if not reader.has(MARKER) or not has_contract(reader):
        return False
    from launcher.guest import marker

    if _is_other_task(reader):
        return True
    names = (MARKER, *marker.CONTRACT, *(name for pair in marker.NEARER for name in pair))
    return marker.is_left_over({name: reader.text(name) or "" for name in names})


def _is_other_task(reader: Reader) -> bool:
    """Whether TF_CONFIG speaks of another rank or world than the contract does."""
    if not reader.has("TF_CONFIG"):
        return False
    from launcher.sources import tensorflow

    task = tensorflow.find_rank(reader.text("TF_CONFIG") or "")
    return task is not None and task != (reader.text("RANK"), reader.text("WORLD_SIZE"))
