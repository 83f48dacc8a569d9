"""Options of MPICH (and MVAPICH) and of Intel MPI for a job: both start ranks by Hydra."""

from __future__ import annotations

from launcher.engines.mpirun_job import Choice, MpirunJob, has_own_fabric, read_asked, ucx_variables
from launcher.machine.mpi import MVAPICH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EXECUTABLES = ("launcher-exec", "bootstrap-exec")
EVERYWHERE = ("-wdir", "/")
"""A working directory that every node has."""


def plan_mpich(job: MpirunJob) -> Iterator[Choice]:
    """Yield our choices for MPICH, in the order of the command line."""
    yield from _plan_hydra_start(job, "launcher", ("HYDRA_LAUNCHER", "HYDRA_LAUNCHER_EXEC"))
    yield Choice((), (("HYDRA_LAUNCHER_EXTRA_ARGS", " ".join(job.rsh[1:])),), EXECUTABLES)
    if job.interface:
        yield _hydra_interface(job.interface, "HYDRA_IFACE")
    yield Choice(("-bind-to", "none"), names=("bind-to", "binding"), yields_to=("HYDRA_BINDING",))
    # A node without the head's folder ends the job without a reason. The rank's launcher changes to the
    # folder, and reports an error.
    yield Choice(EVERYWHERE, names=("wdir", "wd"))
    if job.mpi.family == MVAPICH:
        yield _set_for_ranks("MV2_ENABLE_AFFINITY", "0")
    yield from _plan_hydra_ranks(job)


def plan_intel(job: MpirunJob) -> Iterator[Choice]:
    """Yield our choices for Intel MPI, in the order of the command line."""
    variables = ("I_MPI_HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP_EXEC")
    yield from _plan_hydra_start(job, "bootstrap", variables)
    yield Choice((), (("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", " ".join(job.rsh[1:])),), EXECUTABLES)
    if job.interface:
        yield _hydra_interface(job.interface, "I_MPI_HYDRA_IFACE")
    # By default it starts 16 daemons itself, and these start the others, by an ssh of their own.
    width, variable = str(len(job.hosts)), "I_MPI_HYDRA_BRANCH_COUNT"
    yield Choice(("-branch-count", width), ((variable, width),), ("branch-count",))
    # -bind-to is accepted and ignored, and the variable alone would not reach ranks on other nodes.
    yield _set_for_ranks("I_MPI_PIN", "0")
    yield from _plan_hydra_ranks(job)


def _plan_hydra_start(job: MpirunJob, starter: str, variables: Sequence[str]) -> Iterator[Choice]:
    words = (f"-{starter}", "ssh", f"-{starter}-exec", job.rsh[0])
    values = zip(variables, ("ssh", job.rsh[0]), strict=True)
    yield Choice(words, tuple(values), ("launcher", "bootstrap", *EXECUTABLES))


def _hydra_interface(interface: str, variable: str) -> Choice:
    return Choice(("-iface", interface), ((variable, interface),), ("iface",), (variable,))


def _plan_hydra_ranks(job: MpirunJob) -> Iterator[Choice]:
    """Yield where ranks run, and their variables: without a list they would get all of mpirun's variables."""
    yield Choice(("-f", job.hostfile), names=("f", "hostfile", "machinefile", "machine", "hosts", "host"))
    yield Choice(("-ppn", str(job.per_node)), names=("ppn", "perhost", "rr", "grr"))
    if job.infiniband and not has_own_fabric(job):
        for pair in ucx_variables(job):
            yield _set_for_ranks(*pair)
    asked = read_asked(job.extra)
    names = [name for name in job.forward if f"x {name}" not in asked]
    words = ("-genvlist", ",".join(names)) if names else ("-genvnone",)
    yield Choice(words, names=("genvlist", "genvnone", "genvall"))
    yield Choice(("-n", str(job.rank_count)), names=("n", "np"))


def _set_for_ranks(name: str, value: str) -> Choice:
    return Choice(("-genv", name, value), ((name, value),), (f"x {name}",), (name,))
