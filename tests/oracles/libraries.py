"""The libraries that the launcher is compared with, and the reason for each known difference."""

from __future__ import annotations

from typing import NamedTuple


class Reason(NamedTuple):
    """Why a library's answer differs from the truth.

    Attributes:
        cases: Patterns of the cases in which it differs.
        says: Text that the difference contains.
        why: What the library does, and what that means for its users.
    """

    cases: tuple[str, ...]
    says: str
    why: str


class Library(NamedTuple):
    """One row.

    Attributes:
        title: Its name, with the launcher's flag where one is needed.
        package: Its distribution on PyPI.
        version: The version that is tested.
        question: The module in ``questions/``.
        function: The function that is called.
        framework: The value of ``--framework``.
        words: Further arguments of the script's command line.
        cases: Patterns of the cases that the library can answer.
        reasons: The known differences.
    """

    title: str
    package: str
    version: str
    question: str
    function: str
    framework: str = "auto"
    words: tuple[str, ...] = ()
    cases: tuple[str, ...] = ("*",)
    reasons: tuple[Reason, ...] = ()


NESTED_TORCHRUN = (
    Reason(
        ("torchrun_2.15_inside_srun_and_mpirun",),
        "own_job",
        "PET_* configures the outer torchrun, and its workers inherit these variables, with or without the "
        "launcher. A torchrun started by a worker reads them and joins as one more agent.",
    ),
)
JAX_PORT = (
    Reason(
        ("torchrun_*", "kubeflow_trainer_v2_jax"),
        "master_port",
        "its coordinator listens on another port than MASTER_PORT: torchrun's agent holds MASTER_PORT, and "
        "Kubeflow's Trainer sets the coordinator's port itself.",
    ),
)
JAX = (
    *JAX_PORT,
    Reason(
        ("*",),
        "Number of processes must be defined",
        "it reads the number of processes and the rank from the variables of Slurm and Open MPI 4 only, and "
        "stops without them. `--framework jax` sets them.",
    ),
)
IGNITE = (
    Reason(
        ("launcher_inside_launcher", "torchrun_2.15_inside_srun_and_mpirun"),
        "SLURM_JOB_NODELIST",
        "if SLURM_JOB_ID is set it needs all of Slurm's variables; these two recordings contain only a few.",
    ),
)
HI_ML = (
    Reason(
        ("azure_batch*", "azureml_mpi*", "flags_beat_azure_batch"),
        "master_port 6000",
        "it overwrites MASTER_ADDR and MASTER_PORT with the host and port of AZ_BATCH_MASTER_NODE. That port "
        "belongs to Azure Batch. All processes agree, so the job runs. The launcher makes it unnecessary.",
    ),
    Reason(
        ("azureml_itp_master_ip",),
        "node_rank",
        "it uses Open MPI's rank as the node's index, which is right only with one process per node.",
    ),
)
SAGEMAKER = (
    Reason(
        ("sagemaker_11_hosts",),
        "node_rank",
        "it sorts the hosts as text (algo-1, algo-10, algo-11, algo-2); the launcher sorts by number. Node 0 "
        "is the same, and all nodes of a job agree.",
    ),
    Reason(
        ("sagemaker_mpirun_2_hosts",),
        "node_rank",
        "mpirun passes the head's SM_CURRENT_HOST to all ranks, and it reads that as the name of this node. "
        "The toolkit itself never runs it in this case.",
    ),
)
LIBRARIES = (
    Library("PyTorch", "torch", "2.13.0", "torch_env", "init_process_group()"),
    Library(
        "torchrun, inside a process",
        *("torch", "2.13.0", "torchrun", "config_from_args()"),
        reasons=NESTED_TORCHRUN,
    ),
    Library("DeepSpeed", "deepspeed", "0.19.8", "deepspeed", "init_distributed()"),
    Library("Lightning", "lightning", "2.6.6", "lightning", "Trainer()"),
    Library("Accelerate", "accelerate", "1.15.0", "accelerate", "PartialState()"),
    Library("Transformers", "transformers", "5.23.0", "transformers", "TrainingArguments()"),
    Library("Horovod", "horovod", "0.28.1", "horovod", "create_slot_env_vars()"),
    Library("JAX", "jax", "0.10.2", "jax", "initialize()", reasons=JAX),
    Library(
        "JAX, `--framework jax`", "jax", "0.10.2", "jax", "initialize()", framework="jax", reasons=JAX_PORT
    ),
    Library("timm", "timm", "1.0.31", "timm", "init_distributed_device()"),
    Library("OpenCLIP", "open_clip_torch", "3.3.0", "open_clip", "init_distributed_device()"),
    Library("fairseq", "fairseq", "0.12.2", "fairseq", "infer_init_method()"),
    Library("MMEngine", "mmengine", "0.10.7", "mmengine", "init_dist()"),
    Library("Colossal-AI", "colossalai", "0.5.0", "colossalai", "launch_from_*()"),
    Library("Composer", "mosaicml", "0.32.1", "composer", "initialize_dist()"),
    Library("Ignite", "pytorch-ignite", "0.5.5", "ignite", "create_from_backend()", reasons=IGNITE),
    Library("Dora", "dora_search", "0.1.13", "dora", "get_distrib_spec()"),
    Library("LAVIS (and DETR, DeiT, BLIP)", "salesforce-lavis", "1.0.2", "lavis", "init_distributed_mode()"),
    Library("MAE, BEiT, data2vec", "-", "-", "itp", "--dist_on_itp", words=("--dist_on_itp",)),
    Library(
        "hi-ml-azure",
        *("hi-ml-azure", "0.5.4", "hi_ml", "set_environment_variables_for_multi_node()"),
        reasons=HI_ML,
    ),
    Library(
        "SageMaker's toolkit",
        *("sagemaker_training", "5.1.4", "sagemaker", "TorchDistributedRunner"),
        cases=("sagemaker*",),
        reasons=SAGEMAKER,
    ),
)
