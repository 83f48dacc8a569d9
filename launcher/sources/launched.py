"""Inside of a process that this launcher started: everything is there already.

The outer launcher gave the whole contract and made the starters' public names true, so nothing outside
is asked. But the process may have started an mpirun or srun of its own: then that one is nearer, and
the contract that its ranks inherited is the outer process's, not theirs.
"""

from __future__ import annotations

from launcher.environ import Reader
from launcher.sources import torch_elastic

MARKER = "LAUNCHER_LAUNCHED"


def read(reader: Reader) -> None:
    """The contract, as `launcher.frameworks.torch` writes it, unless somebody started us since."""
    if is_left_over(reader):
        reader.note(f"{MARKER} comes from the process around this one, which started it: not used")
    else:
        torch_elastic.read_worker(reader)
        reader.note(
            f"{MARKER} is set: this is a process of another launcher run "
            f"(or a shell into which its variables were exported: unset {MARKER})"
        )


def is_left_over(reader: Reader) -> bool:
    """Whether a starter inside of a launched process speaks of another rank or world."""
    if not reader.has(MARKER):
        return False
    from launcher.hook import marker

    names = (MARKER, *marker.CONTRACT, *(name for pair in marker.NEARER for name in pair))
    return marker.is_left_over({name: reader.text(name) or "" for name in names})
