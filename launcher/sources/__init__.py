"""Table of the sources: one file per environment, which reads how this process was started.

The rows are ordered from the inside out: the first row is nearest to the process. Within one level of trust
the upper row wins (see `launcher.core.model.Trust`). A row's markers are the variables without which the
source cannot know anything. Only modules with a marker that is set are imported.

To add an environment: one file with ``read(reader)``, one row here, one golden case.
"""

from __future__ import annotations

import sys

from launcher.core.environ import Reader
from launcher.core.errors import EnvironmentUntrusted, Problem, UsageError
from launcher.core.frozen import frozen
from launcher.core.mpi import FLUX, HYDRA, JSRUN, MVAPICH, OPEN_MPI, PALS
from launcher.sources import signs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from launcher.core.model import Evidence
    from launcher.machine.host import Host

    Read = Callable[[Reader], None]


@frozen
class Row:
    """A source: its name, which is also its module in this package, and its markers.

    A marker that ends in a star matches all names with that prefix. One that begins with a star matches all
    names with that suffix.
    """

    name: str
    markers: tuple[str, ...]


TABLE = (
    Row("launched", ("LAUNCHER_LAUNCHED",)),
    Row("torch_elastic", ("TORCHELASTIC_RUN_ID",)),
    Row("tensorflow", ("TF_CONFIG",)),
    Row(
        "open_mpi",
        (
            *(*OPEN_MPI.rank, OPEN_MPI.size, OPEN_MPI.local_rank, OPEN_MPI.local_size),
            "OMPI_MCA_orte_default_hostfile",
        ),
    ),
    Row("hydra", (*HYDRA.rank, HYDRA.local_rank, HYDRA.local_size)),
    Row("mvapich", (*MVAPICH.rank, MVAPICH.local_rank)),
    Row("pals", PALS.rank),
    Row("horovod", ("HOROVOD_RANK", "HOROVOD_ELASTIC")),
    Row("lsf", (*JSRUN.rank, "LSF_PM_TASKID")),
    Row("flux", (*FLUX.rank, FLUX.size)),
    Row(
        "slurm",
        (
            *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS"),
            *("SLURM_NODEID", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_JOB_NODELIST"),
            *("SLURM_NODELIST", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS"),
            *("SLURM_NPROCS", "SLURM_LOCALID", "SLURM_GTIDS"),
            *("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"),
        ),
    ),
    Row("vertex_ai", ("CLUSTER_SPEC",)),
    Row("volcano", ("VC_TASK_INDEX", "VK_TASK_INDEX", "MA_NUM_HOSTS", "VC_*")),
    Row("alibaba_pai", ("NPROC_PER_NODE", "GPU_NUM_PER_NODE")),
    Row(
        "volcengine",
        ("MLP_WORKER_NUM", "MLP_ROLE", "MLP_ROLE_INDEX", "MLP_WORKER_ALL_HOSTS", "MLP_WORKER_0_HOST"),
    ),
    Row(
        "aws_batch",
        (
            *("AWS_BATCH_JOB_NUM_NODES", "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_MAIN_NODE_INDEX"),
            "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS",
        ),
    ),
    Row("node_names", signs.NODE_MARKERS),
    Row(
        "kubeflow",
        (
            *("PET_NNODES", "KUBERNETES_SERVICE_HOST", "RUNAI_NUM_OF_GPUS"),
            *("COORDINATOR_ADDRESS", "COORDINATOR_PORT", "PROCESS_ID", "JAX_COORDINATOR_ADDRESS"),
        ),
    ),
    Row(
        "torch_agent",
        (
            *("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT", "PET_STANDALONE"),
            "PET_NPROC_PER_NODE",
        ),
    ),
    Row("torch_env", ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")),
    Row(
        "sagemaker",
        ("SM_HOSTS", "SM_CURRENT_HOST", "SM_RESOURCE_CONFIG", "SM_TRAINING_ENV", "TRAINING_JOB_NAME"),
    ),
    Row("skypilot", ("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", "SKYPILOT_NUM_NODES")),
    Row(
        "azure_batch",
        (
            *("AZ_BATCH_HOST_LIST", "AZ_BATCH_NODE_LIST", "AZ_BATCH_MASTER_NODE", "CCP_NODES"),
            "AZ_BATCH_IS_CURRENT_NODE_MASTER",
        ),
    ),
    Row(
        "batch_ai",
        (
            "AZ_BATCHAI_MPI_MASTER_NODE",
            "AZ_BATCHAI_JOB_MASTER_NODE_IP",
            "AZ_BATCHAI_WORKER_HOSTS",
            "AZ_BATCHAI_GPU_COUNT_FOUND",
        ),
    ),
    Row(
        "azure_ml",
        (
            "AZUREML_NODE_COUNT",
            "AZUREML_CR_NODE_RANK",
            "AZUREML_CR_DISTRIBUTED_CONFIG",
            "AZUREML_CR_COMPUTE_CONTEXT",
            "AMLARC_NUM_WORKER",
            "MASTER_IP",
        ),
    ),
    Row("indexed_job", ("JOB_COMPLETION_INDEX",)),
    Row("signs", signs.MARKERS),
)
NAMES = tuple(row.name for row in TABLE)


@frozen
class Gathered:
    """The evidence of all sources, innermost first, and the names of the variables that they read.

    ``around``: sources outside of one that seals. They only show whether that one's world is the whole job.
    """

    evidence: tuple[Evidence, ...]
    reads: tuple[str, ...]
    around: tuple[Evidence, ...] = ()


def gather(
    environ: Mapping[str, str],
    host: Host,
    only: str | None = None,
    *,
    typed: bool = False,
    starts_job: bool = False,
    node_count: int | None = None,
) -> Gathered:
    """Ask every source that has a marker, from the inside out.

    Args:
        environ: The environment to read.
        host: The machine, for the few sources that must compare addresses with it.
        only: Name of the only source to ask, ``module:function`` of another package, or ``manual`` to ask
            none.
        typed: Whether the user typed ``only``: a variable of an image must not name code to import.
        starts_job: Whether we start the processes of all nodes.
        node_count: Number of nodes that the user asked for; None if not given.

    Raises:
        UsageError: ``only`` names no source, or one that cannot or must not be imported.
        EnvironmentUntrusted: ``only`` names a source without a marker in the environment.
    """
    evidence: list[Evidence] = []
    around: list[Evidence] = []
    reads: set[str] = set()
    for name, module in _chosen(environ, only, typed):
        reader = Reader(name, environ, host, starts_job=starts_job, node_count=node_count)
        reader.read_before |= reads
        module(reader)
        is_sealed = bool(evidence) and evidence[-1].seals
        (around if is_sealed else evidence).append(reader.evidence())
        reads |= reader.names
        if reader.seals and name == TABLE[0].name:
            break  # the launcher around this one has asked the others
    return Gathered(tuple(evidence), tuple(sorted(reads)), tuple(around))


def _chosen(environ: Mapping[str, str], only: str | None, typed: bool) -> Iterator[tuple[str, Read]]:
    """Yield the name and the read function of each source to ask; import each only when it is asked."""
    if only is None:
        for row in TABLE:
            if _is_marked(environ, row):
                yield row.name, _import(row.name)
    elif only in NAMES:
        _check_present(environ, TABLE[NAMES.index(only)])
        yield only, _import(only)
    elif only != "manual":
        yield only, _import_foreign(only, typed)


def _is_marked(environ: Mapping[str, str], row: Row) -> bool:
    """Whether a marker of a source is set. Only a marker with a star needs a scan of all variables."""
    if any(environ.get(marker) for marker in row.markers):
        return True
    starts = tuple(marker[:-1] for marker in row.markers if marker.endswith("*"))
    ends = tuple(marker[1:] for marker in row.markers if marker.startswith("*"))
    return bool(starts or ends) and any(
        environ[name] for name in environ if name.startswith(starts) or name.endswith(ends)
    )


def _check_present(environ: Mapping[str, str], row: Row) -> None:
    """Refuse a named source without a marker: each node of a job would consider itself a single machine."""
    if not _is_marked(environ, row):
        raise EnvironmentUntrusted(
            Problem(
                "source-absent",
                f"--source {row.name}, but none of {', '.join(row.markers)} is set: expected one of them",
                "command line and environment",
                f"start the command where {row.name} does, or omit --source (LAUNCHER_SOURCE)",
            )
        )


def _import(name: str) -> Read:
    """Return the read function of a source of ours. importlib imports warnings: 0.3 ms of every start."""
    path = f"{__name__}.{name}"
    __import__(path)
    read: Read = sys.modules[path].read
    return read


def _import_foreign(path: str, typed: bool) -> Read:
    """Return another package's read function, ``package.module:function``."""
    from importlib import import_module

    module, _, attribute = path.partition(":")
    try:
        if not typed:
            raise ValueError("code is named on the command line only")
        read: Read = getattr(import_module(module), attribute or "read")
        if not callable(read):
            raise AttributeError(f"{attribute!r} is not a function")
    except Exception as error:  # another package's module may raise anything while it is imported
        raise UsageError(
            Problem(
                "unknown-source",
                f"--source {path!r}: {error}",
                "command line",
                f"one of manual, {', '.join(NAMES)}, or module:function of your own",
            )
        ) from error
    return read
