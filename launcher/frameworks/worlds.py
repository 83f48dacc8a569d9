"""Refuses jobs whose N processes would be N jobs of one, because nothing gives their framework a world.

If a framework ignores PyTorch's variables and gets no world, every process makes a world of its own, and N
copies of a training run end with success. The table lists the frameworks to which not every starter gives a
world. What only may be such a job is seen while it runs: its processes never meet (`launcher.observers`).

Source: mpi4py, "mpi4py.rc" (MPI_Init of a process that no mpirun has started); what Horovod and
TensorFlow read is in their files.
"""

from __future__ import annotations

from launcher.core.errors import make_error
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
LACKS = {
    MPI4PY: "is not mpirun: each is rank 0 of 1 in MPI.COMM_WORLD",
    HOROVOD: "does not configure Horovod: each is rank 0 of 1 for Horovod",
    TENSORFLOW: "sets no TF_CONFIG: each is the only worker of its job",
}
"""What the starter of the processes does not do, and what each of them then is."""
BY_MPIRUN = "launcher run --engine mpirun -- ..., or mpirun (srun --mpi=pmix) around launcher run"
AROUND_MPI = "let mpirun or srun --mpi=pmix start the launchers; or start one per node, with --engine mpirun"
"""The fix for mpi4py if the platform has started each process."""
BY_US = "launcher run -- python train.py: the launcher starts them, and gives each its place in the job"


def check_worlds(case: Case) -> None:
    """Refuse a job whose processes would be jobs of their own, judged by its script's imports.

    A framework that the user names tells how the processes connect.

    Raises:
        UsageError: The script imports such a module unconditionally, so it is certain.
    """
    named = case.options.get("framework")
    is_named = named is not None and (named.is_typed or named.origin.startswith(PREFIX))
    # An MPI launcher gives each of these frameworks a world
    by_mpi = not case.forks and any(name.startswith(STARTED_BY_MPI) for name in case.environ)
    by_mpi = by_mpi or case.is_by_mpi or case.agent == "horovodrun"
    if case.topology.world_size == 1 or is_named or by_mpi:
        return
    # with torchrun as our engine, each process starts through us
    through_us = not case.agent or (case.agent == "torchrun" and not case.is_wrapped)
    for package in (MPI4PY,) if through_us else LACKS:
        if _is_lone(package, case):
            count = f"{case.topology.world_size} " if case.topology.world_size else ""
            who = case.agent or ("the launcher" if case.forks else case.allocation.source)
            fix = BY_US if package != MPI4PY else BY_MPIRUN if case.forks else AROUND_MPI
            known = {"script": case.script.path, "package": package, "lacks": LACKS[package]}
            raise make_error("lone-processes", count=count, program=who, fix=fix, **known)


def _is_lone(package: str, case: Case) -> bool:
    """Whether the script surely uses a package that nothing gives a world, and joins no other."""
    script = case.script
    if package == TENSORFLOW and (case.environ.get("TF_CONFIG") or not names_workers(script)):
        return False
    if package == HOROVOD:
        joins = any(word in script.text for word in JOINED)
    else:
        joins = any(script.imports(other) for other in OTHER_WORLDS if other != package)
    # Without the package in the job's Python, a script that runs does not need it
    is_used = script.needs(package) and not joins
    return is_used and case.host.find_version(case.python, case.environ, package) != ""
