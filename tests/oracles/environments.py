"""What every process of every recorded job gets from the launcher, and what its plan says that it is."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from launcher.core.errors import LauncherError
from launcher.core.model import Place, Plan
from launcher.planning.settings import render_environ
from tests.golden.jobs import COMMAND, case_names, plan_snapshot, read_case, snapshots

SOURCES = {
    "Open MPI 4": ("openmpi_4", "azure_batch_mpirun"),
    "Open MPI 5": ("openmpi_5", "bind_openmpi_5"),
    "MPICH": ("mpich",),
    "Intel MPI": ("intelmpi",),
    "Slurm": ("slurm",),
    "torchrun": ("torchrun", "launcher_inside", "mpirun_inside"),
    "Azure Batch": ("azure_batch", "batch_ai"),
    "Azure ML": ("azureml",),
    "Kubeflow": ("kubeflow",),
    "clouds": ("sagemaker", "skypilot"),
    "Flux": ("flux",),
    "by hand": ("",),
}
"""The columns of the table: how the names of their cases begin; the first that fits has the case."""
Facts = dict[str, Any]


class Process(NamedTuple):
    """One process of a job.

    Attributes:
        case: The name of the golden case.
        environ: All that it finds in its environment.
        facts: What the plan says of it; None where the plan does not know.
    """

    case: str
    environ: dict[str, str]
    facts: Facts


def source_of(case: str) -> str:
    """Return the column of a case."""
    return next(name for name, begins in SOURCES.items() if case.startswith(begins))


@lru_cache
def processes(framework: str, words: tuple[str, ...] = ()) -> tuple[Process, ...]:
    """Return every process that the launcher starts or becomes in any case, both scopes.

    Jobs whose ranks torchrun gives out at the start have none: its workers are in cases of their own.

    Args:
        framework: The value of ``--framework``.
        words: What the command line of the script has besides.
    """
    return tuple(process for name in case_names() for process in _processes(name, framework, words))


def _processes(name: str, framework: str, words: tuple[str, ...]) -> list[Process]:
    case = read_case(name)
    case["options"] = {**case.get("options", {}), "framework": framework}
    case["command"] = [*case.get("command", COMMAND), *words]
    found = []
    for start, snapshot in enumerate(snapshots(case)):
        try:
            plan, environ = plan_snapshot(case, start, snapshot)
        except LauncherError:
            continue
        if plan.allocation.spare is not None:
            continue  # it waits, and has no place in the job yet
        for process in plan.processes:
            facts = _facts(plan, Place(process.rank, process.local_rank))
            given = render_environ(plan, process, environ)
            found.append(Process(name, given, {**facts, "gpus": given.get("JAX_LOCAL_DEVICE_IDS")}))
    return found


def _facts(plan: Plan, place: Place) -> Facts:
    job = plan.topology
    return {
        "rank": place.rank,
        "world_size": job.world_size,
        "local_rank": place.local_rank,
        "local_size": job.local_size,
        "node_rank": job.node_rank,
        "node_count": job.node_count,
        "master_addr": job.master_addr,
        "master_port": job.master_port,
        "asks_mpi": False,
        "starts_processes": False,
        "overwrites": False,
        "own_job": True,
    }
