"""Table of the sources: one row per environment, from the inside out, with the variables that mark it.

The first row is nearest to the process. Within one level of trust the upper row wins (see
`launcher.core.model.Trust`). A row's markers are the variables without which the source cannot know
anything: only sources with a marker that is set are imported.
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.mpi import FLUX, HYDRA, JSRUN, MVAPICH, OPEN_MPI, PALS
from launcher.sources import rows, signs


@frozen
class Row:
    """A source: its name, its markers, and its function, in the module of its name if not given.

    A marker that ends in a star matches all names with that prefix. One that begins with a star matches all
    names with that suffix.
    """

    name: str
    markers: tuple[str, ...]
    read: str = ""


TABLE = (
    Row("launched", ("LAUNCHER_LAUNCHED",)),
    Row("torch_elastic", ("TORCHELASTIC_RUN_ID",)),
    Row("tensorflow", ("TF_CONFIG",)),
    Row("open_mpi", (*(name for _, name in OPEN_MPI.numbers()), "OMPI_MCA_orte_default_hostfile")),
    Row("hydra", (*HYDRA.rank, HYDRA.local_rank, HYDRA.local_size)),
    Row("mvapich", (*MVAPICH.rank, MVAPICH.local_rank), "rows.read"),
    Row("pals", PALS.rank, "rows.read"),
    Row("horovod", ("HOROVOD_RANK", "HOROVOD_ELASTIC")),
    Row("lsf", (*JSRUN.rank, "LSF_PM_TASKID")),
    Row("flux", (*FLUX.rank, FLUX.size), "rows.read"),
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
    Row("alibaba_pai", ("NPROC_PER_NODE", "GPU_NUM_PER_NODE"), "torch_env.read_nodes"),
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
    Row("node_names", rows.NODE_MARKERS, "rows.read_node"),
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
    Row("skypilot", ("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", "SKYPILOT_NUM_NODES"), "rows.read"),
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
            *("AZ_BATCHAI_MPI_MASTER_NODE", "AZ_BATCHAI_JOB_MASTER_NODE_IP", "AZ_BATCHAI_WORKER_HOSTS"),
            "AZ_BATCHAI_GPU_COUNT_FOUND",
        ),
    ),
    Row(
        "azure_ml",
        (
            *("AZUREML_NODE_COUNT", "AZUREML_CR_NODE_RANK", "AZUREML_CR_DISTRIBUTED_CONFIG"),
            *("AZUREML_CR_COMPUTE_CONTEXT", "AMLARC_NUM_WORKER", "MASTER_IP"),
        ),
    ),
    Row("indexed_job", ("JOB_COMPLETION_INDEX",)),
    Row("signs", signs.MARKERS),
)
MARKERS = {row.name: row.markers for row in TABLE}
