"""What a shell from which a job is submitted, or the head of its nodes, can hand to every process of it.

srun, flux run, Hydra's mpiexec and PALS's forward the whole environment, mpirun what ``-x`` names, and
an image's variables are everywhere. The values are the head's: of its node, 0, or of a job of one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from tests.unit.platforms_model import Node

Names = Mapping[str, str]
BATCH_SCRIPT = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "{names}",
    "SLURM_NODELIST": "{names}",
    "SLURM_JOB_NUM_NODES": "{nodes}",
    "SLURM_NNODES": "{nodes}",
    "SLURM_NTASKS": "{nodes}",
    "SLURM_NPROCS": "{nodes}",
    "SLURM_TASKS_PER_NODE": "1(x{nodes})",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURMD_NODENAME": "{name}",
}
ONE_NODE = {
    **BATCH_SCRIPT,
    "SLURM_JOB_NODELIST": "{name}",
    "SLURM_NODELIST": "{name}",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_NNODES": "1",
    "SLURM_NTASKS": "1",
    "SLURM_NPROCS": "1",
    "SLURM_TASKS_PER_NODE": "1",
}
SETS: tuple[Names, ...] = (
    # PyTorch's names, torchrun's, and this launcher's
    {"NODE_RANK": "0"},
    {"NODE_RANK": "1"},
    {"RANK": "0"},
    {"RANK": "0", "WORLD_SIZE": "1"},
    {"RANK": "0", "WORLD_SIZE": "{nodes}", "MASTER_ADDR": "{head}"},
    {"RANK": "0", "WORLD_SIZE": "{nodes}", "NODE_RANK": "0", "LOCAL_RANK": "0"},
    {"LOCAL_RANK": "0"},
    {"LOCAL_RANK": "1"},
    {"WORLD_SIZE": "1"},
    {"WORLD_SIZE": "{nodes}"},
    {"LOCAL_WORLD_SIZE": "1"},
    {"LOCAL_WORLD_SIZE": "8"},
    {"GROUP_RANK": "0"},
    {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"},
    {"MASTER_ADDR": "{head}"},
    {"MASTER_ADDR": "localhost"},
    {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
    {"TORCHELASTIC_RUN_ID": "none"},
    {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "GROUP_RANK": "0"},
    {"LAUNCHER_LAUNCHED": "1.0"},
    {"LAUNCHER_LAUNCHED": "1.0", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
    {"LAUNCHER_NODE_RANK": "0"},
    {"LAUNCHER_NNODES": "1"},
    {"LAUNCHER_NNODES": "{nodes}"},
    {"LAUNCHER_NNODES": "{nodes}", "LAUNCHER_NODE_RANK": "0", "LAUNCHER_MASTER_ADDR": "{head}"},
    {"LAUNCHER_NNODES": "1", "LAUNCHER_NODE_RANK": "0"},
    {"LAUNCHER_MASTER_ADDR": "{head}"},
    {"LAUNCHER_MASTER_ADDR": "localhost"},
    # Kubernetes: Kubeflow's, an Indexed Job's, Volcano's, an MPIJob's launcher
    {"PET_NODE_RANK": "0"},
    {"PET_NNODES": "1"},
    {"PET_NNODES": "{nodes}"},
    {"PET_NNODES": "{nodes}", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "{head}"},
    {"PET_MASTER_ADDR": "{head}", "PET_MASTER_PORT": "29500"},
    {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "RANK": "0", "WORLD_SIZE": "{nodes}"},
    {"JOB_COMPLETION_INDEX": "0"},
    {"VC_TASK_INDEX": "0", "VK_TASK_INDEX": "0"},
    {"VC_TASK_INDEX": "0", "VC_WORKER_HOSTS": "{hosts}", "VC_WORKER_NUM": "{nodes}"},
    {"K_MPI_JOB_ROLE": "launcher", "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"},
    {"JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "{nodes}", "JAX_COORDINATOR_ADDRESS": "{head}:1234"},
    # Clouds
    {"SKYPILOT_NODE_RANK": "0"},
    {"SKYPILOT_NUM_NODES": "1"},
    {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "{nodes}", "SKYPILOT_NODE_IPS": "{lines}"},
    {"AZUREML_CR_NODE_RANK": "0"},
    {"AZUREML_NODE_COUNT": "1"},
    {"AZUREML_NODE_COUNT": "{nodes}", "AZUREML_CR_NODE_RANK": "0"},
    {"AMLARC_NUM_WORKER": "1"},
    {"AMLARC_NUM_WORKER": "{nodes}", "VC_TASK_INDEX": "0"},
    {"AZ_BATCH_IS_CURRENT_NODE_MASTER": "true"},
    {"AZ_BATCH_IS_CURRENT_NODE_MASTER": "true", "AZ_BATCH_HOST_LIST": "{hosts}"},
    {
        "AZ_BATCH_IS_CURRENT_NODE_MASTER": "true",
        "AZ_BATCH_HOST_LIST": "{hosts}",
        "AZ_BATCH_MASTER_NODE": "{head}:6000",
    },
    {"AZ_BATCH_HOST_LIST": "{head}", "AZ_BATCH_IS_CURRENT_NODE_MASTER": "true"},
    {"AZ_BATCHAI_TASK_INDEX": "0"},
    {"AZ_BATCHAI_TASK_INDEX": "0", "AZ_BATCHAI_WORKER_HOSTS": "{tasks}"},
    {"SM_CURRENT_HOST": "algo-1", "SM_HOSTS": "{algos}"},
    {"SM_CURRENT_HOST": "algo-1", "SM_HOSTS": '["algo-1"]'},
    {"AWS_BATCH_JOB_NODE_INDEX": "0", "AWS_BATCH_JOB_NUM_NODES": "{nodes}"},
    {"AWS_BATCH_JOB_NODE_INDEX": "0", "AWS_BATCH_JOB_NUM_NODES": "1"},
    {"MLP_ROLE_INDEX": "0", "MLP_WORKER_NUM": "{nodes}"},
    {"CLUSTER_SPEC": "{vertex}"},
    # Schedulers
    BATCH_SCRIPT,
    ONE_NODE,
    {"SLURM_NODEID": "0", "SLURM_NNODES": "{nodes}"},
    {"PBS_JOBID": "7.pbs", "PBS_NODEFILE": "/var/spool/pbs/aux/7.pbs", "PBS_NODENUM": "0"},
    {"LSB_JOBID": "7", "LSB_HOSTS": "{spaced}", "LSB_DJOB_NUMPROC": "{nodes}"},
)


def _vertex(nodes: Sequence[Node]) -> str:
    pools = {"workerpool0": [f"{nodes[0].hostname}:2222"]}
    if len(nodes) > 1:
        pools["workerpool1"] = [f"{node.hostname}:2222" for node in nodes[1:]]
    return json.dumps({"cluster": pools, "task": {"type": "workerpool0", "index": 0}, "environment": "cloud"})


VALUES: dict[str, Callable[[Sequence[Node]], str]] = {
    "{nodes}": lambda nodes: str(len(nodes)),
    "{head}": lambda nodes: nodes[0].address,
    "{name}": lambda nodes: nodes[0].hostname,
    "{names}": lambda nodes: ",".join(node.hostname for node in nodes),
    "{spaced}": lambda nodes: " ".join(node.hostname for node in nodes),
    "{hosts}": lambda nodes: ",".join(node.address for node in nodes),
    "{lines}": lambda nodes: "\n".join(node.address for node in nodes),
    "{tasks}": lambda nodes: ",".join(f"{node.address}:2222" for node in nodes),
    "{algos}": lambda nodes: json.dumps([f"algo-{node.index + 1}" for node in nodes]),
    "{vertex}": _vertex,
}


def fill(names: Names, nodes: Sequence[Node]) -> dict[str, str]:
    """Return one of `SETS` as the head of these nodes has it."""
    filled = dict(names)
    for name, value in names.items():
        for word, make in VALUES.items():
            value = value.replace(word, make(nodes))
        filled[name] = value
    return filled


def tf_config(nodes: Sequence[Node]) -> dict[str, str]:
    """Return the TF_CONFIG of the first of a worker per node."""
    workers = [f"{node.address}:2222" for node in nodes]
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": 0}})}
