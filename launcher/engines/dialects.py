"""One job in the options of each mpirun: a hostfile, a command line, and variables.

There are three dialects: Open MPI (with Spectrum MPI; version 5 has other names for most of it), MPICH (with
MVAPICH) and Intel MPI. Everything here is pure. docs/mpi.md explains each option, and what happens without
it. Each was tried with Open MPI 4.1.4 and 5.0.11, MPICH 5.0.2 and Intel MPI 2021.18. The options of the first
dialect are in `launcher.engines.dialect_open_mpi`, those of the others in `launcher.engines.dialect_hydra`.

The user's own words come last and take precedence. None of the four handles a repeated option well: Open MPI
4 refuses some and takes the last of others, 5 refuses some and takes the first of others, MPICH refuses all.
So we leave out our options that the user's words decide.
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
"""Variables in which Open MPI, called by path, puts its own folders first: 4 on all nodes, 5 on its own."""


def render_hostfile(mpi: Mpi, hosts: Sequence[str], per_node: int) -> str:
    """Return a hostfile's text, with the hosts in order, so that rank r runs on ``hosts[r // per_node]``."""
    form = "{} slots={}\n" if mpi.dialect == OPEN_MPI else "{}:{}\n"
    return "".join(form.format(host, per_node) for host in hosts)


def plan_line(job: MpirunJob) -> tuple[str, ...]:
    """Return all words before the command: mpirun by its path, our options, the user's words.

    By its path, because ssh gives a bare environment: all four then find their daemons beside it.
    """
    return (job.mpi.path, *(word for choice in _plan(job) for word in choice.words), *job.extra)


def plan_variables(job: MpirunJob) -> tuple[tuple[str, str], ...]:
    """Return the variables for mpirun's environment, sorted.

    They say the same as the command line, to both generations of Open MPI, in case the line is changed by
    hand. They also override a platform's: inside an allocation Slurm sets HYDRA_LAUNCHER_EXTRA_ARGS and
    I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS to a word that ssh does not know.
    """
    return tuple(sorted(pair for choice in _plan(job) for pair in choice.variables))


def changed(mpi: Mpi) -> tuple[str, ...]:
    """Return the variables that mpirun changes for ranks, and that must be restored there.

    Open MPI that is called by path puts its folders first, where a python beside mpirun (all of /usr/bin, for
    Debian's) would hide the user's python.
    """
    return CHANGED if mpi.dialect == OPEN_MPI else ()


def _plan(job: MpirunJob) -> list[Choice]:
    """Return our choices that the user's words and variables leave open, in the order of the command line."""
    asked, user = read_asked(job.extra), frozenset(job.user)
    return [
        choice
        for choice in PLANNERS[job.mpi.dialect](job)
        if asked.isdisjoint(choice.names) and user.isdisjoint(choice.yields_to)
    ]
