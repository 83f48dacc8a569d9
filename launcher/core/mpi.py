"""MPI families and other starters of ranks: the variables that each of them sets, reads and keeps.

To add a family: a row here and in `TABLE`; a file in `launcher.sources` (none if it is only names), and a
block in ``sources/table.txt`` and in ``sources/signs.txt``; its rank and size in `launcher.guest.marker`,
which imports nothing; a golden case. For ``--engine mpirun``: its ``--version`` output in
`launcher.machine.mpi`, its options in ``engines/dialects.txt``, its command in a rehearsal in
`launcher.rehearse.mpirun`. If its ranks need other settings: `launcher.fabrics.sockets`, and
`launcher.frameworks.horovod` for Horovod's library.

Source: orte/mca/schizo/ompi (Open MPI 3, 4), openpmix src/mca/pmdl/ompi (5); MPICH src/pm/hydra; Intel MPI's
reference; MVAPICH2's user guide; HPE's palsd(8); IBM Spectrum LSF "jsrun"; flux-run(1).
"""

from __future__ import annotations

from launcher.core.frozen import frozen


@frozen
class Family:
    """Names of a family's variables; a name that ends in an underscore, and MPI_LOCAL, is a prefix.

    Attributes:
        name: Common name of the family.
        rank: Rank of a process; some ways of starting use the second name.
        size: World size.
        local_rank: Rank on the node.
        local_size: Number of ranks on the node.
        prefixes: Prefixes of all variables that it sets or reads.
        state: Variables that tie a process to its starter: no other process may inherit them.
        of_a_node: Variables that hold on one node only and are not passed to ranks of other nodes.
        settings: Variables by which users configure it.
    """

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


OPEN_MPI = Family(
    "Open MPI",
    ("OMPI_COMM_WORLD_RANK",),
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    ("OMPI_", "OPAL_", "ORTE_", "PMIX_", "PRTE_"),
    (
        *("PMIX_", "PRTE_", "OMPI_MCA_"),
        "OMPI_UNIVERSE_SIZE",  # makes Open MPI 4 refuse a user's own mpirun
        *("OMPI_APP_CTX_NUM_PROCS", "OMPI_FILE_LOCATION", "OMPI_FIRST_RANKS"),
    ),
    (
        *("PMIX_", "PRTE_", "OMPI_COMM_", "OMPI_MCA_ess", "OMPI_MCA_orte", "OMPI_MCA_pmix", "OMPI_MCA_plm"),
        *("OMPI_MCA_ras", "OMPI_MCA_initial_wdir", "OMPI_MCA_rmaps", "OMPI_MCA_schizo"),
    ),
    ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_"),
)
HYDRA = Family(
    "MPICH",
    ("PMI_RANK", "PMI_ID"),  # mpiexec -pmi-port sets the second and PMI_PORT instead, and no size at all
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    ("HYDI_", "HYDRA_", "I_MPI_", "MPICH_", "MPIEXEC_", "MPIR_", "MPI_LOCAL", "PMI_"),
    ("PMI_", "HYDI_", "HYDRA_BSTRAP_", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("HYDI_", "HYDRA_", "MPIEXEC_", "MPIR_", "MPI_LOCAL", "PMI_", "I_MPI_HYDRA_"),
    ("HYDRA_", "I_MPI_", "MPIEXEC_"),
)
"""Hydra starts the ranks of MPICH, Intel MPI and MVAPICH 3."""
MVAPICH = Family(
    "MVAPICH2",
    ("MV2_COMM_WORLD_RANK",),
    "MV2_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    ("MV2_",),
    ("MV2_COMM_WORLD_",),
    settings=("MV2_",),
)
PALS = Family(
    "PALS",
    ("PALS_RANKID",),
    "PMI_SIZE",
    "PALS_LOCAL_RANKID",
    "PALS_LOCAL_SIZE",
    ("PALS_",),
    ("PALS_",),
    ("PALS_",),
)
JSRUN = Family(
    "jsrun",
    ("JSM_NAMESPACE_RANK",),
    "JSM_NAMESPACE_SIZE",
    "JSM_NAMESPACE_LOCAL_RANK",
    "JSM_NAMESPACE_LOCAL_SIZE",
    ("JSM_NAMESPACE_",),
    ("JSM_NAMESPACE_",),
    ("JSM_",),
)
FLUX = Family(
    "Flux",
    ("FLUX_TASK_RANK",),
    "FLUX_JOB_SIZE",
    "FLUX_TASK_LOCAL_ID",
    prefixes=("FLUX_",),
    state=("FLUX_JOB_SIZE", "FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID"),
    of_a_node=("FLUX_",),
)
RANK_ON_NODE = "OMPI_COMM_WORLD_NODE_RANK"
"""The rank on the node among the processes of all jobs, despite its name."""
TABLE = (OPEN_MPI, HYDRA, MVAPICH, PALS, JSRUN, FLUX)

NUMBERS = tuple(
    name
    for family in TABLE
    for name in (*family.rank, family.size, family.local_rank, family.local_size)
    if name
)
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
    families = {name: value for name, value in globals().items() if isinstance(value, Family)}
    found: list[str] = []
    for word in words:
        family, dot, field = word.partition(".")
        names = getattr(families[family], field) if dot else word
        found += [names] if isinstance(names, str) else names
    return tuple(found)
