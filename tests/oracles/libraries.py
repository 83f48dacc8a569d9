"""The libraries that are asked, and why one of them does not agree where it does not."""

from __future__ import annotations

from typing import NamedTuple


class Reason(NamedTuple):
    """Why a library says something else than the truth.

    Attributes:
        cases: Patterns of the cases in which it does.
        says: What is in the text of the difference.
        why: The library's part in it, and what follows for its users.
    """

    cases: tuple[str, ...]
    says: str
    why: str


class Library(NamedTuple):
    """One row.

    Attributes:
        title: Its name, and how the launcher is told of it where it has to be.
        package: Its distribution.
        version: The one that is asked.
        question: The module in ``questions/``.
        function: What of it is called.
        framework: The value of ``--framework``.
        words: What the script's command line says besides.
        cases: Patterns of the cases in which it can be asked.
        reasons: Where it does not agree.
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
        "the workers of a torchrun that PET_* configured inherit these, with the launcher as without it; "
        "a torchrun that a worker starts takes itself for one more agent.",
    ),
)
JAX_PORT = (
    Reason(
        ("torchrun_*", "kubeflow_trainer_v2_jax"),
        "master_port",
        "its processes meet beside the master's port: torchrun's agent has that one, and the Trainer names "
        "the coordinator's.",
    ),
)
JAX = (
    *JAX_PORT,
    Reason(
        ("*",),
        "Number of processes must be defined",
        "it finds out how many processes there are, and which one it is, from the variables of Slurm and of "
        "Open MPI 4 alone, and stops without them. `--framework jax` gives it these.",
    ),
)
IGNITE = (
    Reason(
        ("launcher_inside_launcher", "torchrun_2.15_inside_srun_and_mpirun"),
        "SLURM_JOB_NODELIST",
        "where SLURM_JOB_ID is it wants all of Slurm's variables, and these two recordings have only a few.",
    ),
)
HI_ML = (
    Reason(
        ("azure_batch*", "azureml_mpi*", "flags_beat_azure_batch"),
        "master_port 6000",
        "it puts host and port of AZ_BATCH_MASTER_NODE in the place of MASTER_ADDR and MASTER_PORT. That "
        "port belongs to Azure Batch. All processes do the same; under the launcher it need not be called.",
    ),
    Reason(
        ("azureml_itp_master_ip",),
        "node_rank",
        "it takes Open MPI's rank for the index of the node, which is true with one process per node.",
    ),
)
SAGEMAKER = (
    Reason(
        ("sagemaker_11_hosts",),
        "node_rank",
        "it numbers algo-1, algo-10, algo-11, algo-2, as text is sorted; the launcher 1, 2, 3. Node 0 is "
        "the same, and all nodes of a job count alike.",
    ),
    Reason(
        ("sagemaker_mpirun_2_hosts",),
        "node_rank",
        "it takes the head's SM_CURRENT_HOST, which mpirun gives to all ranks, for this node's; the toolkit "
        "itself never runs it there.",
    ),
)
LIBRARIES = (
    Library("PyTorch", "torch", "2.13.0", "torch_env", "init_process_group()"),
    Library(
        "torchrun, inside of a process",
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
