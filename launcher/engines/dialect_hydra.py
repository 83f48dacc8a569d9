"""The words of MPICH (and of MVAPICH) and of Intel MPI for a job: both start by Hydra."""

from __future__ import annotations

from launcher.engines.mpirun_job import Choice, MpirunJob, has_own_fabric, read_asked, ucx_variables
from launcher.machine.mpi import MVAPICH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EXECUTABLES = ("launcher-exec", "bootstrap-exec")
EVERYWHERE = ("-wdir", "/")
"""A folder that every node has."""


def plan_mpich(job: MpirunJob) -> Iterator[Choice]:
    """Yield what is ours to decide with MPICH, in the order of the line."""
    yield from _plan_hydra_start(job, "launcher", ("HYDRA_LAUNCHER", "HYDRA_LAUNCHER_EXEC"))
    yield Choice((), (("HYDRA_LAUNCHER_EXTRA_ARGS", " ".join(job.ssh[1:])),), EXECUTABLES)
    if job.interface:
        yield _hydra_interface(job.interface, "HYDRA_IFACE")
    yield Choice(("-bind-to", "none"), names=("bind-to", "binding"), yields_to=("HYDRA_BINDING",))
    # A node that lacks the head's folder ends the job with no reason; a rank's launcher goes there, and says.
    yield Choice(EVERYWHERE, names=("wdir", "wd"))
    if job.mpi.family == MVAPICH:
        yield _set_for_ranks("MV2_ENABLE_AFFINITY", "0")
    yield from _plan_hydra_ranks(job)


def plan_intel(job: MpirunJob) -> Iterator[Choice]:
    """Yield what is ours to decide with Intel MPI, in the order of the line."""
    variables = ("I_MPI_HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP_EXEC")
    yield from _plan_hydra_start(job, "bootstrap", variables)
    yield Choice((), (("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", " ".join(job.ssh[1:])),), EXECUTABLES)
    if job.interface:
        yield _hydra_interface(job.interface, "I_MPI_HYDRA_IFACE")
    # By default it starts 16 daemons itself, and they the others, through ssh and without our keys.
    width, variable = str(len(job.hosts)), "I_MPI_HYDRA_BRANCH_COUNT"
    yield Choice(("-branch-count", width), ((variable, width),), ("branch-count",))
    # -bind-to is taken and ignored; and the variable alone would not reach ranks on other nodes.
    yield _set_for_ranks("I_MPI_PIN", "0")
    yield from _plan_hydra_ranks(job)


def _plan_hydra_start(job: MpirunJob, starter: str, variables: Sequence[str]) -> Iterator[Choice]:
    words = (f"-{starter}", "ssh", f"-{starter}-exec", job.ssh[0])
    values = zip(variables, ("ssh", job.ssh[0]), strict=True)
    yield Choice(words, tuple(values), ("launcher", "bootstrap", *EXECUTABLES))


def _hydra_interface(interface: str, variable: str) -> Choice:
    return Choice(("-iface", interface), ((variable, interface),), ("iface",), (variable,))


def _plan_hydra_ranks(job: MpirunJob) -> Iterator[Choice]:
    """Where ranks run, and what they get: a list, or else they would get all that mpirun has."""
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
