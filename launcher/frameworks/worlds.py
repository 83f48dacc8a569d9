"""Detects jobs whose N processes would be N jobs of one, because nothing gives their framework a world.

If a framework ignores PyTorch's variables and gets no world, every process makes a world of its own, and N
copies of a training run end with success. The table lists what gives each framework a world. Further
requirements of Accelerate and Lightning are in their own files (``warn``).

Source: mpi4py, "mpi4py.rc" (MPI_Init of a process that no mpirun has started); what Horovod and
TensorFlow read is in their files.
"""

from __future__ import annotations

from launcher.command.line import is_python
from launcher.core.errors import Problem, UsageError
from launcher.core.frozen import frozen
from launcher.core.mpi import NUMBERS
from launcher.frameworks.script import STRATEGY, TENSORFLOW, Script, names_workers
from launcher.machine.pythons import own_python
from launcher.options.flags import PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.frameworks.case import Case
    from launcher.machine.host import Host

LAUNCHER, MPI = "the launcher", "mpirun"
HOROVOD = "horovod"
STARTED_BY_MPI = (*NUMBERS, "PMIX_")
"""Prefixes of variables that show that an MPI launcher started a process."""
OTHER_WORLDS = ("torch", "jax", "tensorflow", "horovod")
"""Beside one of these packages, MPI may be used for something other than the world of the job."""
JOINED = ("init_process_group", "jax.distributed", STRATEGY)
"""Texts in a script that show that it joins another world.

For Horovod they replace the packages above, because Horovod is always used with one of them.
"""


@frozen
class Row:
    """A framework.

    Attributes:
        package: The package that scripts import.
        given_by: The starters that give its processes a world.
        lack: What any other starter does not do.
        alone: What each of its processes is then.
        fix: How to start the job correctly.
        fix_around: How, if the platform has started each process; empty if the fix is the same.
    """

    package: str
    given_by: tuple[str, ...]
    lack: str
    alone: str
    fix: str
    fix_around: str = ""


TABLE = (
    Row(
        "mpi4py",
        (MPI,),
        "is not mpirun",
        "each is rank 0 of 1 in MPI.COMM_WORLD",
        "launcher run --engine mpirun -- ..., or mpirun (srun --mpi=pmix) around launcher run",
        "let mpirun or srun --mpi=pmix start the launchers; or start one per node, with --engine mpirun",
    ),
    Row(
        HOROVOD,
        (LAUNCHER, MPI),
        "does not configure Horovod",
        "each is rank 0 of 1 for Horovod",
        "launcher run -- python train.py: the launcher starts them, and serves Horovod's rendezvous",
    ),
    Row(
        TENSORFLOW,
        (LAUNCHER, MPI),
        "sets no TF_CONFIG",
        "each is the only worker of its job",
        "launcher run -- python train.py: the launcher starts them, and names each in TF_CONFIG",
    ),
)


def check_worlds(case: Case, host: Host) -> tuple[str, ...]:
    """Return notes if every process may become a job of its own, judged by its script's imports.

    There are none if the user names a framework, because that tells how the processes connect.

    Raises:
        UsageError: The script imports such a module unconditionally, so it is certain.
    """
    named, script = case.options.get("framework"), case.script
    is_named = named is not None and (named.is_typed or named.origin.startswith(PREFIX))
    if case.topology.world_size == 1 or is_named:
        return ()
    rows = [row for row in TABLE if _uses(row, case, script) and _is_worldless(row, case)]
    return tuple(_judge(row, case, script) for row in rows if _is_installed(row, case, host))


def _uses(row: Row, case: Case, script: Script) -> bool:
    if row.package == TENSORFLOW:
        return names_workers(script) and not case.environ.get("TF_CONFIG")
    return script.imports(row.package)


def _is_worldless(row: Row, case: Case) -> bool:
    """Whether nothing gives the processes of a script that uses this framework a world."""
    by_mpi = (
        case.is_by_mpi
        or case.agent == "horovodrun"
        or (not case.forks and any(name.startswith(STARTED_BY_MPI) for name in case.environ))
    )
    # with torchrun as our engine, each process starts through us
    through_us = not case.agent or (case.agent == "torchrun" and not case.is_wrapped)
    return not by_mpi and not (through_us and LAUNCHER in row.given_by)


def _is_installed(row: Row, case: Case, host: Host) -> bool:
    """Whether the job's Python may have the package: without it, a script that runs does not need it."""
    python = case.command[0] if case.argv and is_python(case.command[0]) else own_python(case.environ)
    return host.find_version(python, case.environ, row.package) != ""


def _may_join_another(row: Row, script: Script) -> bool:
    """Whether the processes may form one job by another package."""
    if row.package == HOROVOD and script.imports(HOROVOD):
        return any(word in script.text for word in JOINED)
    return any(script.imports(other) for other in OTHER_WORLDS if other != row.package)


def _judge(row: Row, case: Case, script: Script) -> str:
    count = case.topology.world_size
    who = case.agent or ("the launcher" if case.forks else case.allocation.source)
    processes = f"its {count} processes are" if count else "its processes are"
    what = f"{script.path} imports {row.package}, and {processes} started by {who}, which {row.lack}"
    fix = row.fix if case.forks else row.fix_around or row.fix
    if not script.needs(row.package) or _may_join_another(row, script):
        return f"{what}: where it is used, {row.alone}; {fix}"
    fix = f"{fix}; or name the framework, if it is not {row.package}: --framework torch"
    raise UsageError(Problem("lone-processes", f"{what}: {row.alone}", "command line and script", fix))
