"""Detects jobs whose N processes would be N jobs of one, because nothing gives their framework a world.

If a framework ignores PyTorch's variables and gets no world, every process makes a world of its own, and N
copies of a training run end with success. The table lists the frameworks to which not every starter gives a
world. Further requirements of Accelerate and JAX are in their own files (``warn``).

Source: mpi4py, "mpi4py.rc" (MPI_Init of a process that no mpirun has started); what Horovod and
TensorFlow read is in their files.
"""

from __future__ import annotations

from launcher.core.errors import Problem, UsageError
from launcher.core.frozen import frozen
from launcher.core.mpi import NUMBERS
from launcher.frameworks.script import STRATEGY, TENSORFLOW, names_workers
from launcher.options.flags import PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.frameworks.case import Case

MPI4PY, HOROVOD = "mpi4py", "horovod"
STARTED_BY_MPI = (*NUMBERS, "PMIX_")
"""Prefixes of variables that show that an MPI launcher started a process."""
OTHER_WORLDS = ("torch", "jax", "tensorflow", "horovod")
"""Beside one of these packages, MPI may be used for something other than the world of the job."""
JOINED = ("init_process_group", "jax.distributed", STRATEGY)
"""Texts in a script that show that it joins another world.

For Horovod they replace the packages above, because Horovod is always used with one of them.
"""


@frozen
class World:
    """What a framework's processes are where nothing gives them a world.

    Attributes:
        lack: What their starter does not do.
        alone: What each of the processes is.
        fix: How to start the job correctly.
    """

    lack: str
    alone: str
    fix: str


OURS = "launcher run -- python train.py: the launcher starts them, and"
AROUND_MPI = "let mpirun or srun --mpi=pmix start the launchers; or start one per node, with --engine mpirun"
"""The fix for mpi4py if the platform has started each process."""
TABLE = {
    MPI4PY: World(
        "is not mpirun",
        "each is rank 0 of 1 in MPI.COMM_WORLD",
        "launcher run --engine mpirun -- ..., or mpirun (srun --mpi=pmix) around launcher run",
    ),
    HOROVOD: World(
        "does not configure Horovod",
        "each is rank 0 of 1 for Horovod",
        f"{OURS} serves Horovod's rendezvous",
    ),
    TENSORFLOW: World(
        "sets no TF_CONFIG",
        "each is the only worker of its job",
        f"{OURS} names each in TF_CONFIG",
    ),
}


def check_worlds(case: Case) -> tuple[str, ...]:
    """Return notes if every process may become a job of its own, judged by its script's imports.

    There are none if the user names a framework, because that tells how the processes connect.

    Raises:
        UsageError: The script imports such a module unconditionally, so it is certain.
    """
    named = case.options.get("framework")
    is_named = named is not None and (named.is_typed or named.origin.startswith(PREFIX))
    if case.topology.world_size == 1 or is_named or _are_by_mpi(case):
        return ()
    # with torchrun as our engine, each process starts through us
    through_us = not case.agent or (case.agent == "torchrun" and not case.is_wrapped)
    alone = [package for package in TABLE if _uses(package, case) and not (through_us and package != MPI4PY)]
    # Without the package in the job's Python, a script that runs does not need it
    return tuple(
        _judge(package, case)
        for package in alone
        if case.host.find_version(case.python, case.environ, package) != ""
    )


def _are_by_mpi(case: Case) -> bool:
    """Whether an MPI launcher starts the processes, which gives each of these frameworks a world."""
    by_us = case.is_by_mpi or case.agent == "horovodrun"
    return by_us or (not case.forks and any(name.startswith(STARTED_BY_MPI) for name in case.environ))


def _uses(package: str, case: Case) -> bool:
    if package == TENSORFLOW:
        return names_workers(case.script) and not case.environ.get("TF_CONFIG")
    return case.script.imports(package)


def _may_join_another(package: str, case: Case) -> bool:
    """Whether the processes may form one job by another package."""
    if package == HOROVOD:
        return any(word in case.script.text for word in JOINED)
    return any(case.script.imports(other) for other in OTHER_WORLDS if other != package)


def _judge(package: str, case: Case) -> str:
    world, count = TABLE[package], case.topology.world_size
    who = case.agent or ("the launcher" if case.forks else case.allocation.source)
    processes = f"its {count} processes are" if count else "its processes are"
    what = f"{case.script.path} imports {package}, and {processes} started by {who}, which {world.lack}"
    fix = AROUND_MPI if package == MPI4PY and not case.forks else world.fix
    if not case.script.needs(package) or _may_join_another(package, case):
        return f"{what}: where it is used, {world.alone}; {fix}"
    fix = f"{fix}; or name the framework, if it is not {package}: --framework torch"
    raise UsageError(Problem("lone-processes", f"{what}: {world.alone}", "command line and script", fix))
