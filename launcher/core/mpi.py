"""MPI families and other starters of ranks: the variables that each of them sets, reads and keeps.

To add a family: a row in ``mpi.txt``; a file in `launcher.sources` (none if it is only names), and a
block in ``sources/table.txt`` and in ``sources/signs.txt``; its rank and size in `launcher.inprocess.marker`,
which imports nothing; a golden case. For ``--engine mpirun``: its ``--version`` output in
`launcher.machine.mpi`, its options in ``engines/dialects.txt``, its command in a rehearsal in
`launcher.rehearse.mpirun`. If its ranks need other settings: `launcher.fabrics.settings`, and
`launcher.frameworks.horovod` for Horovod's library.
"""

from __future__ import annotations

from launcher.core.blocks import Block, read_blocks
from launcher.core.frozen import frozen


@frozen
class Family:
    """Names of a family's variables; see ``mpi.txt`` for each field."""

    name: str
    rank: tuple[str, ...]
    size: str
    local_rank: str = ""
    local_size: str = ""
    prefixes: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    of_a_node: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    def numbers(self) -> tuple[str, ...]:
        """Return the variables with rank, world size, local rank and local size; some names may be empty."""
        return self.rank[0], self.size, self.local_rank, self.local_size


def _read(row: Block) -> Family:
    size, local_rank, local_size = (row.fields.get(f, "") for f in ("size", "local_rank", "local_size"))
    lists = (row.words(name) for name in ("prefixes", "state", "of_a_node", "settings"))
    return Family(row.fields["name"], row.words("rank"), size, local_rank, local_size, *lists)


FAMILIES = {row.name: _read(row) for row in read_blocks("core/mpi.txt")}
OPEN_MPI, HYDRA = FAMILIES["OPEN_MPI"], FAMILIES["HYDRA"]
MVAPICH, PALS, JSRUN, FLUX = (FAMILIES[name] for name in ("MVAPICH", "PALS", "JSRUN", "FLUX"))
RANK_ON_NODE = "OMPI_COMM_WORLD_NODE_RANK"
"""The rank on the node among the processes of all jobs, despite its name."""
TABLE = tuple(FAMILIES.values())

NUMBERS = tuple(name for row in TABLE for name in (*row.rank, *row.numbers()[1:]) if name)
"""Variables with a process's ranks and sizes."""
PREFIXES = tuple(prefix for family in TABLE for prefix in family.prefixes)
STATE = tuple(name for family in TABLE for name in family.state)
OF_A_NODE = tuple(name for family in TABLE for name in family.of_a_node)
SETTINGS = tuple(name for family in TABLE for name in family.settings)
STARTED_BY_MPI = (
    *(*OPEN_MPI.rank, HYDRA.local_rank),
    *(OPEN_MPI.local_size, HYDRA.local_size),  # set together with the above unless some were unset
)
"""One of these is set in every process that an mpirun or mpiexec started."""
STARTED = (
    *STARTED_BY_MPI,
    *(name for family in TABLE for name in family.rank if family is not OPEN_MPI),
    *("HOROVOD_RANK", "SLURM_STEP_ID"),
)
"""One of these is set in every process whose starter passes on the environment of its own caller."""


def expand(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return names of variables, where ``HYDRA.rank`` stands for those of a family's field."""
    found: list[str] = []
    for word in words:
        family, dot, field = word.partition(".")
        names = getattr(FAMILIES[family], field) if dot else word
        found += [names] if isinstance(names, str) else names
    return tuple(found)
