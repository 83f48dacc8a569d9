"""One job, said to each mpirun in its own words: a hostfile, a line, and variables.

Three dialects: Open MPI (with Spectrum MPI; version 5 has other names for most of it), MPICH (with
MVAPICH) and Intel MPI. Everything here is pure. What each option is for, and what happens without it,
stands in docs/mpi.md; each was tried with Open MPI 4.1.4 and 5.0.11, MPICH 5.0.2 and Intel MPI 2021.18.
`launcher.engines.dialect_open_mpi` has the words of the first, `launcher.engines.dialect_hydra` the others'.

The user's own words come last and win. None of the four does well with an option that comes twice (Open
MPI 4 refuses some and takes the last of others, 5 refuses some and takes the first of others, MPICH
refuses all), so of ours those are left out that the user's words decide.
"""

from __future__ import annotations

from launcher.engines.dialect_hydra import plan_intel, plan_mpich
from launcher.engines.dialect_open_mpi import plan_open_mpi
from launcher.engines.mpirun_job import Choice, MpirunJob, read_asked
from launcher.machine.mpi import INTEL, MPICH, OPEN_MPI, Mpi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PLANNERS = {OPEN_MPI: plan_open_mpi, MPICH: plan_mpich, INTEL: plan_intel}
CHANGED = ("PATH", "LD_LIBRARY_PATH")
"""Where Open MPI that is named by path puts its own folders in front: 4 on all nodes, 5 on its own."""


def render_hostfile(mpi: Mpi, hosts: Sequence[str], per_node: int) -> str:
    """Return a hostfile's text; hosts in order, so that rank r runs on ``hosts[r // per_node]``."""
    form = "{} slots={}\n" if mpi.dialect == OPEN_MPI else "{}:{}\n"
    return "".join(form.format(host, per_node) for host in hosts)


def plan_line(job: MpirunJob) -> tuple[str, ...]:
    """Return all words before the command: mpirun by its path, our options, the user's.

    By its path, because ssh gives a bare environment: all four find their daemons beside it then.
    """
    return (job.mpi.path, *(word for choice in _plan(job) for word in choice.words), *job.extra)


def plan_variables(job: MpirunJob) -> tuple[tuple[str, str], ...]:
    """Return variables that mpirun is to be started with, sorted.

    They say what the line says, to both generations of Open MPI: for a line that is changed by hand.
    And they undo what a platform says: inside of an allocation Slurm sets HYDRA_LAUNCHER_EXTRA_ARGS and
    I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS to a word that ssh does not know.
    """
    return tuple(sorted(pair for choice in _plan(job) for pair in choice.variables))


def changed(mpi: Mpi) -> tuple[str, ...]:
    """Return the variables that reach ranks changed, and are to be put right there.

    Open MPI that is named by path puts its folders in front, where a python beside mpirun (all of
    /usr/bin, for Debian's) would hide the one that the user meant.
    """
    return CHANGED if mpi.dialect == OPEN_MPI else ()


def _plan(job: MpirunJob) -> list[Choice]:
    """Return what is ours to decide, in the order of the line."""
    asked, user = read_asked(job.extra), frozenset(job.user)
    return [
        choice
        for choice in PLANNERS[job.mpi.dialect](job)
        if asked.isdisjoint(choice.names) and user.isdisjoint(choice.yields_to)
    ]
