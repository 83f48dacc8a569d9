"""Platforms by their variables: a job of one node runs, one of several is planned right or refused by name.

Written from the platforms' documentation and source code (docs/environments.md), not from the launcher.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from launcher.core.errors import LauncherError
from launcher.core.model import Scope
from launcher.options.reading import read_options
from launcher.planning.notes import name_unknown
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay

ALONE = "alone"
STOP = "no-identity"
NO_MASTER = "missing-variable --master-addr HOST"
NO_RANK = "missing-variable --node-rank R --master-addr HOST"


def look(environ: Mapping[str, str], flags: Mapping[str, str] | None = None, **machine: Any) -> str:
    """Return what a launcher makes of a start: its place, ``alone``, or what is wrong and what to pass."""
    host = replay({"gpus": 0, **machine, "environ": dict(environ)})
    try:
        plan = plan_job(host.environ, host, read_options(flags or {}, host.environ), ("true",))
    except LauncherError as error:
        fixes = " ".join(problem.fix for problem in error.problems)
        named = [flag for flag in ("--nnodes N", "--node-rank R", "--master-addr HOST") if flag in fixes]
        code = error.problems[0].code
        return code if code != "missing-variable" else " ".join((code, *named))
    shape = plan.topology
    if shape.node_count == 1 and shape.world_size == shape.local_size:
        return ALONE
    at = f"of {shape.world_size} at {shape.master_addr}"
    if plan.allocation.scope is Scope.NODE:
        return f"node {shape.node_rank} of {shape.node_count} at {shape.master_addr}"
    return f"rank {shape.rank} {at}"


def spec(pools: Mapping[str, int], own: str, index: int) -> dict[str, str]:
    """Return Vertex AI's variable for a replica."""
    cluster = {pool: [f"cmle-{pool}-{i}:2222" for i in range(count)] for pool, count in pools.items()}
    return {"CLUSTER_SPEC": json.dumps({"cluster": cluster, "task": {"type": own, "index": index}})}


def volcano(**tasks: int) -> dict[str, str]:
    """Return what the svc plugin tells every pod."""
    found = {}
    for task, count in tasks.items():
        found[f"VC_{task.upper()}_HOSTS"] = ",".join(f"j-{task}-{i}.j" for i in range(count))
        found[f"VC_{task.upper()}_NUM"] = str(count)
    return found


def torch(rank: int, world: int, master: str) -> dict[str, str]:
    """Return PyTorch's four names."""
    numbers = {"RANK": str(rank), "WORLD_SIZE": str(world)}
    return {**numbers, "MASTER_ADDR": master, "MASTER_PORT": "23456"}


STEP_OF_ONE = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_NODES": "1",
}
"""``srun -n1`` on one node."""


def pbs(*slots: str) -> dict[str, Any]:
    """Return a machine whose PBS_NODEFILE can be read."""
    return {"files": {"/var/spool/pbs/aux/1": "\n".join(slots) + "\n"}}


PBS = {
    "PBS_ENVIRONMENT": "PBS_BATCH",
    "PBS_JOBID": "1.s",
    "PBS_NODENUM": "0",
    "PBS_TASKNUM": "1",
    "NCPUS": "8",
}
FILE = {**PBS, "PBS_NODEFILE": "/var/spool/pbs/aux/1"}
PALS = {"PALS_RANKID": "3", "PALS_NODEID": "1", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2"}
AWS = {"AWS_BATCH_JOB_NUM_NODES": "3", "AWS_BATCH_JOB_MAIN_NODE_INDEX": "1"}
ETH = {"addresses": {"lo": ["127.0.0.1"], "eth0": ["10.0.0.4"], "docker0": ["172.17.0.1"]}}
CHILD = {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.4"}
HVD = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.9.9.9", "HOROVOD_HOSTNAME": "a"}
MLP = {
    "MLP_ROLE": "worker",
    "MLP_WORKER_NUM": "2",
    "MLP_WORKER_0_HOST": "w-0",
    "MLP_WORKER_0_PORT": "2222",
    "MLP_WORKER_ALL_HOSTS": "w-0,w-1",
}
JAX = {
    "JAX_NUM_PROCESSES": "2",
    "JAX_COORDINATOR_ADDRESS": "j-node-0-0.j:29500",
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
}


TASK = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"} | {
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "node[0-1]",
}
GROUPS = {"SM_HOSTS": '["algo-1","algo-2","algo-3"]', "SM_IS_HETERO": "true"} | {
    "SM_CURRENT_INSTANCE_GROUP": "dnn",
    "SM_CURRENT_INSTANCE_GROUP_HOSTS": '["algo-2","algo-3"]',
    "SM_DISTRIBUTION_INSTANCE_GROUPS": '["dnn"]',
}
"""A host of the group that trains; the other group reads data."""
GROUPED = (
    '{"instance_groups": [{"instance_group_name": "data", "hosts": ["algo-1"]}, '
    '{"instance_group_name": "dnn", "hosts": ["algo-3", "algo-2"]}]}'
)
HET = {"SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2"} | {
    "SLURM_NTASKS": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_NNODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    "SLURM_JOB_NODELIST": "a0,b[0-1]",
    "SLURMD_NODENAME": "b1",
}
SCRIPT = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1", "SLURM_GTIDS": "0"} | {
    "SLURM_NTASKS": "8",
    "SLURM_NPROCS": "8",
    "SLURM_TASKS_PER_NODE": "8",
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
"""A batch script of one node, as Slurm 22.05 starts it."""
TF_LONE = {"TF_CONFIG": '{"cluster":{"worker":["localhost:1"]},"task":{"type":"worker","index":0}}'}
TF_TWO = {"TF_CONFIG": '{"cluster":{"worker":["a:1","b:1"]},"task":{"type":"worker","index":1}}'}
RANK_1 = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}
CROSS = {"LOCAL_RANK": "0", "LOCAL_SIZE": "2", "CROSS_RANK": "1", "CROSS_SIZE": "2"}
DEEPSPEED = {**torch(2, 4, "a"), **CROSS}
LWS = {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "s-0.s"}
RUNPOD = {"NUM_NODES": "2", "NODE_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a"}
ALGOS_FILE = "/opt/ml/input/config/resourceconfig.json"
ALGOS = '{"current_host": "algo-2", "hosts": ["algo-1", "algo-10", "algo-2"]}'
SIGNS = (
    *("OMPI_COMM_WORLD_LOCAL_SIZE=4", "MPI_LOCALNRANKS=4", "MV2_COMM_WORLD_LOCAL_SIZE=4", "ROLE_RANK=3"),
    *("ROLE_WORLD_SIZE=8", "LSF_PM_TASKID=2", "OMPI_MCA_num_procs=8", "HYDRA_BSTRAP_NODE_ID=1"),
    *("MPIRUN_RANK=1", "MPIRUN_NPROCS=4", "MPI_HOST=a,b", "MLP_WORKER_1_HOST=x", "PBS_TASKNUM=00000002"),
    *("OMPI_MCA_plm_rsh_agent=/etc/mpi/kubexec.sh", "NNODES=2", "NUM_NODES=2", "LWS_GROUP_SIZE=2"),
    *("LWS_WORKER_INDEX=1", "LWS_LEADER_ADDRESS=s-0.s", "NHOSTS=2", "PE_HOSTFILE=/none", "COBALT_JOBSIZE=2"),
    *("COBALT_NODEFILE=/none", "PADDLE_TRAINERS_NUM=2", "PADDLE_TRAINER_ID=1", "PADDLE_NNODES=2"),
    *("_CONDOR_NPROCS=2", "_CONDOR_PROCNO=1", "PJM_NODE=2", "ALPS_APP_PE=1", "TPU_WORKER_ID=1"),
    *("TPU_WORKER_HOSTNAMES=a,b", "RANK_ID=1", "RANK_SIZE=8", "MS_WORKER_NUM=8", "MS_NODE_ID=1"),
    *("BEAKER_REPLICA_COUNT=2", "BEAKER_REPLICA_RANK=1", "DSTACK_NODES_NUM=2", "DSTACK_NODE_RANK=1"),
    *("NGC_ARRAY_SIZE=2", "NGC_ARRAY_INDEX=1", "TORCHX_RANK0_HOST=a", "OAR_NODEFILE=/none"),
    *("LOADL_PROCESSOR_LIST=a a b b", "LEPTON_JOB_TOTAL_WORKERS=2", "MF_PARALLEL_NODE_INDEX=1", "HOST_NUM=2"),
    *("MEGASCALE_NUM_SLICES=2", "ARNOLD_WORKER_NUM=2", "NODE_LIST=a:8,b:8", "NUM_PROCESSES=2", "NUM_HOSTS=2"),
    # Google's and Tencent's batch services, Grove, Nomad; what `docker run -e` leaves of a platform
    *("BATCH_TASK_INDEX=1", "BATCH_TASK_COUNT=2", "BATCH_HOSTS_FILE=/none", "BATCH_TASK_INSTANCE_NUM=2"),
    *("BATCH_TASK_INSTANCE_INDEX=1", "GROVE_PCLQ_POD_INDEX=0", "GROVE_PCSG_TEMPLATE_NUM_PODS=2"),
    *("GROVE_HEADLESS_SERVICE=s.ns.svc", "GROVE_PCSG_NAME=s", "NOMAD_ALLOC_INDEX=0", "NOMAD_ALLOC_INDEX=1"),
    *("DSTACK_NODES_IPS=10.0.0.1\n10.0.0.2", "AZ_BATCH_IS_CURRENT_NODE_MASTER=true"),
    *("DSTACK_MASTER_NODE_IP=10.9.9.9", "BEAKER_LEADER_REPLICA_HOSTNAME=a", "MF_PARALLEL_MAIN_IP=10.9.9.9"),
    # No platform's of the table: how such names end is enough
    *("ACME_NUM_NODES=2", "ACME_NNODES= 2", "ACME_WORLD_SIZE=8", "ACME_NODE_RANK=1", "ACME_NODE_INDEX=1"),
    # The same without a prefix: scripts for accelerate and ssh
    *("NUM_MACHINES=2", "MACHINE_RANK=1", "ACME_MACHINE_RANK=1", "NODE_INDEX=1", "GLOBAL_RANK=1"),
    "WORLD_RANK=1",
)
"""Each alone shows other nodes or processes."""
NO_SIGNS = (
    *("OMPI_COMM_WORLD_LOCAL_SIZE=1", "MPI_LOCALNRANKS=1", "MPI_HOST=a", "PBS_TASKNUM=00000001", "NNODES=1"),
    *("OMPI_MCA_plm_rsh_agent=ssh", "LWS_GROUP_SIZE=1", "LWS_WORKER_INDEX=0", "NHOSTS=1", "COBALT_JOBSIZE=1"),
    *("PADDLE_TRAINER_ID=0", "_CONDOR_PROCNO=0", "PJM_NODE=1", "TPU_WORKER_HOSTNAMES=localhost"),
    *("BEAKER_REPLICA_COUNT=1", "NGC_ARRAY_SIZE=1", "TORCHX_RANK0_HOST=localhost", "RANK_ID=0"),
    *(
        "ACME_NUM_NODES=1",
        "ACME_NODE_RANK=0",
        "ACME_NODE_COUNT=many",
        "ACME_NUMA_NODE_COUNT=2",
        "NUM_MACHINES=1",
        "MACHINE_RANK=0",
        "NODE_INDEX=gpu3",
        "NODE_LIST=a:8",
        "NUM_PROCESSES=1",
    ),
    *("BATCH_TASK_INDEX=0", "BATCH_TASK_COUNT=1", "BATCH_TASK_INSTANCE_NUM=1", "DSTACK_NODES_IPS=10.0.0.1"),
    *("GROVE_PCSG_TEMPLATE_NUM_PODS=1", "NOMAD_ALLOC_ID=1b2c", "BATCH_JOB_UID=j-1"),
    *("AZUREML_PARAMETER_NUM_NODES=4", "SM_HP_NUM_NODES=4", "NUM_WORKERS=8", "LEPTON_JOB_TOTAL_WORKERS=1"),
    *("LOADL_PROCESSOR_LIST=a a a", "NSLOTS=8", "SGE_TASK_ID=3", "OAR_JOB_ID=3", "NUM_NODES=1"),
)
"""Jobs of one node, and elements of arrays."""


def gloo(rank: int, size: int, local: int, local_size: int, cross: int, cross_size: int) -> dict[str, str]:
    """Return what horovodrun tells a worker."""
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    values = (rank, size, local, local_size, cross, cross_size)
    return {**HVD, **{f"HOROVOD_{name}": str(value) for name, value in zip(names, values, strict=True)}}


ROWS: list[tuple[dict[str, str], str, dict[str, Any]]] = [
    # OpenPBS and Torque: lines of the file are slots, Torque's numbers those of a request's first part
    (FILE, ALONE, pbs("n1", "n1", "n1")),
    (FILE, STOP, pbs("n1", "n1", "n2", "n1")),
    (FILE, STOP, {}),
    ({**FILE, "PBS_NODENUM": "1"}, STOP, pbs("n1")),
    ({**PBS, "PBS_TASKNUM": "00000002"}, STOP, {}),
    ({**FILE, "PBS_NUM_NODES": "1", "PBS_NUM_PPN": "8", "PBS_NP": "8"}, ALONE, {}),
    ({**FILE, "PBS_NUM_NODES": "1", "PBS_NUM_PPN": "8", "PBS_NP": "14"}, STOP, {}),
    ({"PBS_NUM_NODES": "2"}, STOP, {}),
    ({"PBS_VNODENUM": "3"}, STOP, {}),
    ({**FILE, "PBS_ARRAY_INDEX": "3", "PBS_ARRAY_ID": "1[].s"}, ALONE, pbs("n1")),
    # PALS: the world is PMI's, no name for the master
    ({**PALS, "PMI_RANK": "3", "PMI_SIZE": "4", "MASTER_ADDR": "n0"}, "rank 3 of 4 at n0", {}),
    ({**PALS, "PMI_RANK": "3", "PMI_SIZE": "4"}, NO_MASTER, {}),
    ({**PALS, "PALS_SIZE": "4", "NODE_RANK": "1", "MASTER_ADDR": "n0"}, "missing-variable", {}),
    ({"PROCESS_ID": "1", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}, STOP, {}),
    ({"PROCESS_ID": "0"}, ALONE, {}),
    ({"PALS_NODEID": "1"}, STOP, {}),
    # LSF: slots are no hosts; the tasks of blaunch count from 1
    ({"LSB_DJOB_NUMPROC": "8", "LSB_HOSTS": "a " * 8, "LSB_MCPU_HOSTS": "a 8"}, ALONE, {}),
    ({"LSB_DJOB_NUMPROC": "8", "LSB_MCPU_HOSTS": "a 8", "LSB_JOBINDEX": "3"}, ALONE, {}),
    ({"LSB_DJOB_NUMPROC": "2", "LSB_HOSTS": "a b"}, STOP, {}),
    ({"LSB_MCPU_HOSTS": "a 3 b 1"}, STOP, {}),
    ({"LSB_DJOB_NUMPROC": "8"}, STOP, {}),
    ({"LSB_MCPU_HOSTS": "a 1 b 1", "LSF_PM_TASKID": "1"}, "no-identity", {}),  # its order is not the tasks'
    ({"LSB_HOSTS": "b a", "LSB_MCPU_HOSTS": "a 1 b 1", "LSF_PM_TASKID": "2"}, "node 1 of 2 at b", {}),
    ({"LSB_HOSTS": "a a b b", "LSF_PM_TASKID": "2"}, "node 1 of 2 at a", {"hostname": "b"}),
    ({"LSB_HOSTS": "a a b b", "LSF_PM_TASKID": "2"}, STOP, {"hostname": "a"}),
    ({"LSB_HOSTS": "a a b b", "LSF_PM_TASKID": "3"}, STOP, {"hostname": "b"}),
    (
        {
            "LSB_MCPU_HOSTS": "batch1 1 h1 42 h2 42",
            "JSM_NAMESPACE_RANK": "3",
            "JSM_NAMESPACE_SIZE": "4",
            "JSM_NAMESPACE_LOCAL_RANK": "1",
            "JSM_NAMESPACE_LOCAL_SIZE": "2",
        },
        "rank 3 of 4 at h1",
        {"hostname": "h2"},
    ),
    (
        {
            "LSB_MCPU_HOSTS": "batch1 1 h1 42 h2 42",
            "JSM_NAMESPACE_RANK": "0",
            "JSM_NAMESPACE_SIZE": "4",
            "JSM_NAMESPACE_LOCAL_RANK": "0",
            "JSM_NAMESPACE_LOCAL_SIZE": "2",
        },
        NO_MASTER,
        {"hostname": "h2"},
    ),
    ({"JSM_NAMESPACE_SIZE": "4"}, STOP, {}),
    # Vertex AI: pools 0 and 1 have ranks
    (spec({"workerpool0": 1}, "workerpool0", 0), ALONE, {}),
    (
        {"CLUSTER_SPEC": '{"cluster":{"chief":["localhost:1234"]},"task":{"type":"chief","index":0}}'},
        ALONE,
        {},
    ),
    (spec({"workerpool0": 1, "workerpool1": 2}, "workerpool0", 0), "node 0 of 3 at cmle-workerpool0-0", {}),
    (spec({"workerpool0": 1, "workerpool1": 2}, "workerpool1", 1), "node 2 of 3 at cmle-workerpool0-0", {}),
    (
        {**spec({"workerpool0": 1, "workerpool1": 2}, "workerpool1", 0), **torch(1, 3, "cmle-workerpool0-0")},
        "node 1 of 3 at cmle-workerpool0-0",
        {"gpus": 8},
    ),
    (
        {**spec({"workerpool0": 1, "workerpool1": 1}, "workerpool0", 0), **torch(0, 2, "localhost")},
        "node 0 of 2 at cmle-workerpool0-0",
        {},
    ),
    (
        {
            **spec({"workerpool0": 1, "workerpool1": 1, "workerpool2": 2}, "workerpool1", 0),
            **torch(1, 4, "m"),
        },
        "node 1 of 2 at m",
        {},
    ),
    (spec({"workerpool0": 1, "workerpool1": 1, "workerpool2": 2}, "workerpool2", 0), STOP, {}),
    (
        {**spec({"workerpool0": 1, "workerpool1": 1}, "workerpool1", 0), **torch(0, 2, "m")},
        "contradiction",
        {},
    ),
    ({"CLUSTER_SPEC": '{"clusterSpec": {"Master": ["a:1"], "Worker": ["b:1"]}}'}, STOP, {}),
    ({"CLUSTER_SPEC": "not JSON"}, STOP, {}),
    # Indexed Jobs know no number of pods; without a name of the master only its address can be typed
    ({"JOB_COMPLETION_INDEX": "0"}, STOP, {}),
    ({"JOB_COMPLETION_INDEX": "2", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, STOP, {}),
    ({"JOB_COMPLETION_INDEX": "2", "LAUNCHER_NNODES": "1"}, ALONE, {}),
    ({"JOB_COMPLETION_INDEX": "2", "LAUNCHER_NNODES": "4"}, NO_MASTER, {"hostname": "train-2"}),
    ({"JOB_COMPLETION_INDEX": "2", "LAUNCHER_NNODES": "2"}, "contradiction", {"hostname": "train-2"}),
    (
        {"JOB_COMPLETION_INDEX": "2", "LAUNCHER_NNODES": "4"},
        "node 2 of 4 at train-0.train.ns.svc.cluster.local",
        {
            "hostname": "train-2",
            "files": {"/etc/hosts": "10.1.0.7\ttrain-2.train.ns.svc.cluster.local\ttrain-2\n"},
        },
    ),
    # JobSet: every index exists once in each Job, as the pod's name tells
    (
        {"JOB_COMPLETION_INDEX": "1", "LAUNCHER_NNODES": "4", "LAUNCHER_MASTER_ADDR": "s-w-0-0.s"},
        "node 1 of 4 at s-w-0-0.s",
        {"hostname": "s-w-0-1"},
    ),
    (
        {"JOB_COMPLETION_INDEX": "1", "LAUNCHER_NNODES": "4", "LAUNCHER_MASTER_ADDR": "s-w-0-0.s"},
        STOP,
        {"hostname": "s-w-1-1"},
    ),
    (
        {"JOB_COMPLETION_INDEX": "1", "LAUNCHER_NNODES": "4", "RANK": "3", "MASTER_ADDR": "s-w-0-0.s"}
        | {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
        "node 3 of 4 at s-w-0-0.s",
        {"hostname": "s-w-1-1"},
    ),
    # Trainer v2: JAX has one process per pod, XGBoost two units in one pair, torchtune no master
    ({**JAX, "JAX_PROCESS_ID": "1", "JOB_COMPLETION_INDEX": "1"}, "rank 1 of 2 at j-node-0-0.j", {"gpus": 4}),
    ({**JAX, "JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "1", "JOB_COMPLETION_INDEX": "0"}, ALONE, {}),
    (
        {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1", "JAX_COORDINATOR_ADDRESS": "a:1"},
        "missing-variable",
        {},
    ),
    # A job of three pods has no six, so this is another platform's world
    (
        {**volcano(trainer=3), "VC_TASK_INDEX": "0", "RANK": "0", "WORLD_SIZE": "6"},
        "contradiction",
        {"hostname": "j-trainer-0"},
    ),
    # What is left of a starter's variables in a container: its process may be one of several
    ({"PMIX_NAMESPACE": "prterun-a-1@1", "PMIX_SERVER_URI2": "prterun-a-1@0.1;tcp4://127.0.0.1:1"}, STOP, {}),
    ({"OMPI_MCA_orte_local_daemon_uri": "1.0;tcp://10.0.0.4:1"}, STOP, {"gpus": 2}),
    ({"PMI_FD": "9"}, STOP, {}),
    ({"HYDRA_BSTRAP_PROXY_ID": "0"}, STOP, {}),
    ({"PALS_NODEID": "0"}, STOP, {}),
    ({"HOROVOD_HOSTNAME": "a"}, STOP, {}),
    ({"CROSS_RANK": "0", "CROSS_SIZE": "2", "LOCAL_SIZE": "1"}, STOP, {}),
    ({**STEP_OF_ONE, "PMIX_NAMESPACE": "slurm.pmix.7.0", "PMIX_RANK": "0"}, ALONE, {"gpus": 2}),
    ({"DMLC_NUM_WORKER": "8", "DMLC_TASK_ID": "1", "DMLC_TRACKER_URI": "j-node-0-0.j"}, STOP, {"gpus": 4}),
    ({"PET_NNODES": "2", "PET_NODE_RANK": "1", "JOB_COMPLETION_INDEX": "1"}, NO_MASTER, {}),
    (
        {"PET_NNODES": "1", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "2", "JOB_COMPLETION_INDEX": "0"},
        ALONE,
        {},
    ),
    # MPIJob: the launcher pod is no process of the job, whatever the MPI
    ({"K_MPI_JOB_ROLE": "launcher"}, STOP, {}),
    ({"K_MPI_JOB_ROLE": "worker"}, STOP, {}),
    ({"K_MPI_JOB_ROLE": "launcher", "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"}, STOP, {}),
    ({"PRTE_MCA_prte_default_hostfile": "/etc/mpi/hostfile"}, STOP, {}),
    ({"I_MPI_HYDRA_HOST_FILE": "/etc/mpi/hostfile"}, STOP, {}),
    ({"HYDRA_HOST_FILE": "/etc/mpi/hostfile"}, STOP, {}),
    # Volcano: an index within the task; one task has all pods, or the pod's name tells
    ({**volcano(worker=2), "VC_TASK_INDEX": "1"}, "node 1 of 2 at j-worker-0.j", {}),
    ({**volcano(trainer=2), "VK_TASK_INDEX": "0"}, "node 0 of 2 at j-trainer-0.j", {}),
    (volcano(trainer=2), "node 1 of 2 at j-trainer-0.j", {"hostname": "j-trainer-1"}),
    (volcano(trainer=2), STOP, {}),
    ({**volcano(worker=1), "VC_TASK_INDEX": "0"}, ALONE, {}),
    ({"VC_WORKER_NUM": "2"}, STOP, {}),
    ({"VC_TASK_INDEX": "0"}, STOP, {}),
    ({"VC_WORKER_NUM": "1"}, ALONE, {}),
    ({"VC_MASTER_NUM": "1", "WORLD_SIZE": "4"}, STOP, {}),
    ({"VC_MASTER_HOSTS": "j-master-0.j", "WORLD_SIZE": "4"}, STOP, {}),
    ({"VC_WORKER_NUM": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "j-master-0"}, STOP, {}),
    ({**volcano(master=1, worker=2), "VC_TASK_INDEX": "0"}, STOP, {}),
    (
        {**volcano(master=1, worker=2), "VC_TASK_INDEX": "0"},
        "node 0 of 3 at j-master-0.j",
        {"hostname": "j-master-0"},
    ),
    (
        {**volcano(master=1, worker=2), "VC_TASK_INDEX": "1"},
        "node 2 of 3 at j-master-0.j",
        {"hostname": "j-worker-1"},
    ),
    ({**volcano(worker=2), "VC_TASK_INDEX": "0"}, STOP, {"hostname": "j-master-0"}),
    ({**volcano(ps=1, worker=2), "VC_TASK_INDEX": "1"}, STOP, {"hostname": "j-worker-1"}),
    (
        {**volcano(master=1, worker=2), "VC_TASK_INDEX": "0", **torch(1, 3, "j-master-0.j")},
        "node 1 of 3 at j-master-0.j",
        {"gpus": 8},
    ),
    (
        {**volcano(master=1, worker=1, tensorboard=1), "VC_TASK_INDEX": "0", **torch(1, 3, "j-master-0.j")},
        "node 1 of 2 at j-master-0.j",
        {"gpus": 8},
    ),
    (
        {**volcano(master=1, worker=1, tensorboard=1), "VC_TASK_INDEX": "0", "WORLD_SIZE": "2"},
        STOP,
        {"hostname": "j-tensorboard-0"},
    ),
    ({"VC_TASK_INDEX": "0", **torch(1, 3, "m")}, "node 1 of 3 at m", {}),
    (
        {**volcano(master=1, worker=2), "VC_TASK_INDEX": "0", "MPI_HOST": "j-worker-0.j,j-worker-1.j"},
        STOP,
        {},
    ),
    # ModelArts
    (
        {**volcano(worker=2), "VC_TASK_INDEX": "1", "MA_NUM_HOSTS": "2", "MA_TASK_NAME": "worker"},
        "node 1 of 2 at j-worker-0.j",
        {},
    ),
    ({**volcano(worker=1), "VC_TASK_INDEX": "5", "MA_NUM_HOSTS": "1", "MA_TASK_NAME": "worker"}, ALONE, {}),
    ({**volcano(worker=2), "VC_TASK_INDEX": "0", "MA_TASK_NAME": "ps"}, STOP, {}),
    ({"MA_NUM_HOSTS": "2", "VC_TASK_INDEX": "1"}, NO_MASTER, {}),
    ({"MA_NUM_HOSTS": "2"}, STOP, {}),
    ({"MA_NUM_HOSTS": "1"}, ALONE, {}),
    # horovodrun: its rendezvous is no master; cross numbers are the node's for local rank 0 only
    ({**gloo(2, 3, 0, 1, 1, 2), "MASTER_ADDR": "a"}, "rank 2 of 3 at a", {"gpus": 4}),
    ({**gloo(1, 3, 1, 2, 0, 1), "MASTER_ADDR": "a"}, "rank 1 of 3 at a", {}),
    (gloo(2, 3, 0, 1, 1, 2), NO_MASTER, {}),
    (gloo(1, 2, 1, 2, 0, 1), ALONE, {}),
    ({**HVD, "HOROVOD_ELASTIC": "1"}, STOP, {}),
    ({"HOROVOD_SIZE": "2"}, STOP, {}),
    ({"HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "2"}, STOP, {}),
    # Determined and OCI tell how many at most
    ({"DET_SLOT_IDS": "[0,1]"}, STOP, {}),
    ({"DET_SLOT_IDS": "[0,1]", "DET_KUBERNETES_JOB_PARALLELISM": "2"}, STOP, {}),
    ({"DET_SLOT_IDS": "[0,1]", "DET_KUBERNETES_JOB_PARALLELISM": "1"}, ALONE, {}),
    ({"NODE_RANK": "1", "INITIAL_CLUSTER_SIZE": "2"}, NO_MASTER, {}),
    ({"NODE_RANK": "0", "INITIAL_CLUSTER_SIZE": "1"}, ALONE, {}),
    # AWS Batch: rank 0 where the address points
    ({**AWS, **CHILD, "AWS_BATCH_JOB_NODE_INDEX": "0"}, "node 1 of 3 at 10.0.0.4", {}),
    ({**AWS, "AWS_BATCH_JOB_NODE_INDEX": "1"}, "node 0 of 3 at 10.0.0.4", ETH),
    ({**AWS, **CHILD, "AWS_BATCH_JOB_NODE_INDEX": "2"}, "node 2 of 3 at 10.0.0.4", {}),
    ({**AWS, "AWS_BATCH_JOB_NODE_INDEX": "1"}, NO_MASTER, {}),
    ({"AWS_BATCH_JOB_NUM_NODES": "2"}, NO_RANK, {}),
    ({"AWS_BATCH_JOB_NODE_INDEX": "0", "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0"}, STOP, {}),
    (
        {
            "AWS_BATCH_JOB_NUM_NODES": "1",
            "AWS_BATCH_JOB_NODE_INDEX": "0",
            "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
        },
        ALONE,
        ETH,
    ),
    ({"AWS_BATCH_JOB_ARRAY_INDEX": "3", "AWS_BATCH_JOB_ARRAY_SIZE": "8"}, ALONE, {}),
    # Alibaba PAI and Baidu AIHC: RANK and WORLD_SIZE are of nodes, in Kubernetes or not
    ({**torch(1, 2, "dlc1-master-0"), "NPROC_PER_NODE": "8"}, "node 1 of 2 at dlc1-master-0", {"gpus": 8}),
    (
        {**torch(0, 1, "dlc1-master-0"), "NPROC_PER_NODE": "2"},
        ALONE,
        {"gpus": 2, "hostname": "dlc1-master-0"},
    ),
    ({**torch(1, 2, "m"), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "node 1 of 2 at m", {"gpus": 8}),
    ({"NPROC_PER_NODE": "8"}, ALONE, {}),
    # Volcengine
    ({**MLP, "MLP_ROLE_INDEX": "1", "MLP_WORKER_GPU": "8"}, "node 1 of 2 at w-0", {"gpus": 8}),
    ({**MLP, "MLP_ROLE": "ps", "MLP_ROLE_INDEX": "0"}, STOP, {}),
    ({**MLP, "MLP_WORKER_NUM": "1", "MLP_WORKER_ALL_HOSTS": "w-0", "MLP_ROLE_INDEX": "0"}, ALONE, {}),
    ({"MLP_WORKER_NUM": "2"}, NO_RANK, {}),
    ({"MLP_ROLE": "worker", "MLP_ROLE_INDEX": "0"}, STOP, {}),
    # Run:ai, whose POD_INDEX is the trial of a search
    ({**torch(1, 2, "m"), "RUNAI_NUM_OF_GPUS": "4"}, "node 1 of 2 at m", {"gpus": 4}),
    ({"RUNAI_NUM_OF_GPUS": "1", "POD_INDEX": "3", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ALONE, {"gpus": 1}),
    # Ray Train writes all names; pyxis and what docker run -e leaves of Slurm
    (
        {**torch(3, 4, "m"), "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1"},
        "rank 3 of 4 at m",
        {},
    ),
    # SageMaker's instance groups: only those of the distribution have ranks
    ({**GROUPS, "SM_CURRENT_HOST": "algo-1", "SM_CURRENT_INSTANCE_GROUP": "data"}, STOP, {}),
    ({**GROUPS, "SM_CURRENT_HOST": "algo-3"}, "node 1 of 2 at algo-2", {}),
    ({**GROUPS, "SM_CURRENT_HOST": "algo-2"}, "node 0 of 2 at algo-2", {}),
    (
        {
            **GROUPS,
            "SM_CURRENT_HOST": "algo-3",
            "SM_CURRENT_INSTANCE_GROUP": "",
            "SM_RESOURCE_CONFIG": GROUPED,
        },
        "node 1 of 2 at algo-2",
        {},
    ),
    (
        {**GROUPS, "SM_CURRENT_HOST": "algo-2", "SM_DISTRIBUTION_INSTANCE_GROUPS": '["dnn","data"]'}
        | {"SM_RESOURCE_CONFIG": GROUPED},
        "node 1 of 3 at algo-1",
        {},
    ),
    ({**GROUPS, "SM_CURRENT_HOST": "algo-2", "SM_DISTRIBUTION_INSTANCE_GROUPS": '["dnn","gpu"]'}, STOP, {}),
    ({**GROUPS, "SM_CURRENT_HOST": "algo-2", "SM_DISTRIBUTION_INSTANCE_GROUPS": "[]"}, STOP, {}),
    (
        {"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2", "SM_IS_HETERO": "false"}
        | {"SM_DISTRIBUTION_INSTANCE_GROUPS": "[]", "SM_CURRENT_INSTANCE_GROUP": "homogeneousCluster"},
        "node 1 of 2 at algo-1",
        {},
    ),
    # srun --het-group=0,1 starts one world; lists may be of one component, or in another order
    (HET, "rank 2 of 3 at a0", {"hostname": "b1"}),
    ({**HET, "SLURM_NPROCS": "2"}, "rank 2 of 3 at a0", {"hostname": "b1"}),
    ({**HET, "SLURM_STEP_NODELIST": "b[0-1]"}, "rank 2 of 3 at a0", {"hostname": "b1"}),
    ({**HET, "SLURM_JOB_NODELIST": "b[0-1],a0"}, NO_MASTER, {"hostname": "b1"}),
    ({**HET, "SLURM_JOB_NODELIST": "b[0-1]"}, NO_MASTER, {"hostname": "b1"}),
    ({**HET, "SLURM_JOB_NODELIST": "b[0-1]", "MASTER_ADDR": "a0"}, "rank 2 of 3 at a0", {}),
    (
        {**HET, "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURMD_NODENAME": "a0", "SLURM_NNODES": "3"},
        "rank 0 of 3 at a0",
        {"hostname": "a0"},
    ),
    # srun --het-group=1: a step of one component in such a job is a step like any other
    ({**TASK, "SLURM_HET_SIZE": "2", "SLURMD_NODENAME": "node0"}, "rank 0 of 2 at node0", {}),
    ({"SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2", "SLURM_JOB_NUM_NODES": "1"}, STOP, {}),
    ({"SLURM_NNODES": "2", "SLURM_NODEID": "0"}, STOP, {}),
    ({"SLURM_NNODES": "2", "SLURM_NODEID": "1"}, STOP, {}),
    ({"SLURM_JOB_NODELIST": "n[1-2]"}, STOP, {}),
    ({"SLURM_JOB_NODELIST": "n1"}, ALONE, {}),
    ({"SLURM_JOB_NUM_NODES": "2"}, STOP, {}),
    # Slurm: a script of one node has what was asked for, and never a number of another task
    (SCRIPT, ALONE, {}),
    ({**SCRIPT, "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}, STOP, {}),
    ({**SCRIPT, "SLURM_NNODES": "2", "SLURM_NODEID": "1"}, STOP, {}),
    ({**SCRIPT, "SLURM_NNODES": "2"}, STOP, {}),
    ({**SCRIPT, "SLURM_GTIDS": "0,1"}, STOP, {}),
    ({**SCRIPT, "SLURM_TASKS_PER_NODE": "4(x2)"}, STOP, {}),
    ({**SCRIPT, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_TASKS_PER_NODE": "1"}, ALONE, {}),
    ({"SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "2", "SLURM_PROCID": "1"}, STOP, {}),
    ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_JOB_NUM_NODES": "2"}, STOP, {}),
    ({"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, STOP, {}),
    ({"SLURM_STEP_TASKS_PER_NODE": "4"}, STOP, {}),
    ({"SLURM_TASKS_PER_NODE": "4(x2)"}, STOP, {}),
    ({"SLURM_TASKS_PER_NODE": "8"}, ALONE, {}),
    ({"SLURM_GTIDS": "4,5,6,7"}, STOP, {}),
    ({"SLURM_GTIDS": "0"}, ALONE, {}),
    # Half of mpirun's names in a task: nothing tells whose rank Slurm's is
    (TASK, "rank 0 of 2 at node0", {}),
    ({**TASK, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, STOP, {}),
    ({**TASK, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, STOP, {}),
    # A TF_CONFIG of one task is no answer
    (TF_LONE, ALONE, {}),
    ({**TF_LONE, "SLURM_PROCID": "4", "SLURM_NTASKS": "8"}, "contradiction", {}),
    ({**TF_LONE, "PBS_NODENUM": "1"}, "contradiction", {}),
    ({**TF_TWO, "PBS_NODENUM": "1"}, "rank 1 of 2 at a", {}),
    # Batch systems' files of hosts
    ({"PE_HOSTFILE": "/pe", "NHOSTS": "1"}, ALONE, {"files": {"/pe": "a 8 all.q@a UNDEFINED\n"}}),
    ({"PE_HOSTFILE": "/pe"}, STOP, {"files": {"/pe": "a 8 all.q@a UNDEFINED\nb 8 all.q@b UNDEFINED\n"}}),
    ({"PE_HOSTFILE": "/pe", "NHOSTS": "1"}, ALONE, {}),
    ({"COBALT_NODEFILE": "/c"}, STOP, {"files": {"/c": "a\nb\n"}}),
    ({"OAR_NODEFILE": "/o"}, ALONE, {"files": {"/o": "a\na\na\n"}}),
    ({"OAR_NODEFILE": "/o"}, STOP, {"files": {"/o": "a\na\nb\n"}}),
    ({"TORCHX_RANK0_HOST": "a.x"}, ALONE, {"hostname": "a"}),
    ({"LWS_LEADER_ADDRESS": "s-0.s", "LWS_GROUP_SIZE": "1", "LWS_WORKER_INDEX": "0"}, ALONE, {}),
    # All three of a platform's names
    (LWS, "node 1 of 2 at s-0.s", {}),
    ({**LWS, "LWS_GROUP_SIZE": "1"}, "contradiction", {}),
    ({**LWS, "LWS_LEADER_ADDRESS": ""}, NO_MASTER, {}),
    ({**LWS, **RANK_1, "MASTER_ADDR": "node0"}, "rank 1 of 2 at node0", {}),
    ({"BEAKER_REPLICA_COUNT": "2", "BEAKER_REPLICA_RANK": "1"}, NO_MASTER, {}),
    ({"BATCH_TASK_INSTANCE_NUM": "2", "BATCH_TASK_INSTANCE_INDEX": "1"}, NO_MASTER, {}),
    ({"BATCH_TASK_INSTANCE_NUM": "1", "BATCH_TASK_INSTANCE_INDEX": "0"}, ALONE, {}),
    ({"BATCH_TASK_INDEX": "0", "BATCH_TASK_COUNT": "2", "BATCH_HOSTS_FILE": "/etc/h"}, STOP, {}),
    ({"BATCH_TASK_COUNT": "1", "BATCH_HOSTS_FILE": "/none"}, ALONE, {}),
    ({"GROVE_PCLQ_POD_INDEX": "0", "GROVE_PCSG_TEMPLATE_NUM_PODS": "1"}, ALONE, {}),
    (
        {"DSTACK_NODES_NUM": "3", "DSTACK_NODE_RANK": "2", "DSTACK_MASTER_NODE_IP": "a"},
        "node 2 of 3 at a",
        {},
    ),
    (
        {"MF_PARALLEL_NUM_NODES": "2", "MF_PARALLEL_NODE_INDEX": "1", "MF_PARALLEL_MAIN_IP": "a"},
        "node 1 of 2 at a",
        {},
    ),
    # WORLD_SIZE beside a number of nodes
    (RUNPOD, "node 1 of 2 at a", {}),
    ({**RUNPOD, "WORLD_SIZE": "2"}, "node 1 of 2 at a", {}),
    ({**RUNPOD, "WORLD_SIZE": "3"}, "contradiction", {}),
    ({**RUNPOD, "RANK": "2", "LOCAL_RANK": "0"}, "rank 2 of 4 at a", {}),
    ({**RUNPOD, "NUM_TRAINERS": "2", "RANK": "0", "LOCAL_RANK": "0"}, "contradiction", {"gpus": 2}),
    ({"NUM_NODES": "1", "NODE_RANK": "0"}, ALONE, {}),
    # Tencent's TI-ONE, and a worker of DeepSpeed's launcher
    ({**torch(1, 2, "a"), "GPU_NUM_PER_NODE": "8", "NODE_LIST": "a:8,b:8"}, "node 1 of 2 at a", {"gpus": 8}),
    (DEEPSPEED, "rank 2 of 4 at a", {"gpus": 2}),
    ({**DEEPSPEED, "CROSS_RANK": "0"}, "contradiction", {"gpus": 2}),
    ({**DEEPSPEED, "CROSS_SIZE": ""}, "ambiguous-scope", {"gpus": 2}),
    # SageMaker without its toolkit, and by its other names
    ({"TRAINING_JOB_NAME": "j"}, "node 1 of 3 at algo-1", {"files": {ALGOS_FILE: ALGOS}}),
    ({"TRAINING_JOB_NAME": "j"}, STOP, {"files": {ALGOS_FILE: "{"}}),
    ({"TRAINING_JOB_NAME": "j"}, ALONE, {}),
    ({"SM_RESOURCE_CONFIG": ALGOS}, "node 1 of 3 at algo-1", {}),
    ({"SM_TRAINING_ENV": ALGOS}, "node 1 of 3 at algo-1", {}),
    ({"SM_RESOURCE_CONFIG": ALGOS.replace('t": "algo-2', 't": "algo-4')}, "malformed-variable", {}),
    ({"SM_RESOURCE_CONFIG": "[]"}, STOP, {}),
    ({"SM_RESOURCE_CONFIG": ALGOS, **RANK_1, "OMPI_COMM_WORLD_SIZE": "3"}, "rank 1 of 3 at algo-1", {}),
    *[(dict([sign.split("=", 1)]), STOP, {}) for sign in SIGNS],
    *[(dict([sign.split("=", 1)]), ALONE, {}) for sign in NO_SIGNS],
    # What is left of others
    ({"FLUX_JOB_NNODES": "2"}, STOP, {}),
    ({"PMI_SIZE": "2"}, STOP, {}),
    ({"OMPI_MCA_orte_num_nodes": "2"}, STOP, {}),
    ({"OMPI_COMM_WORLD_SIZE": "2"}, f"missing-variable --nnodes N {NO_RANK.partition(' ')[2]}", {}),
    ({"MV2_COMM_WORLD_SIZE": "2"}, STOP, {}),
    *[
        ({name: "1"}, ALONE, {})
        for name in ("FLUX_JOB_NNODES", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "DLTS_NUM_WORKER")
    ],
]


@pytest.mark.parametrize(("environ", "expected", "machine"), ROWS, ids=lambda value: "")
def test_each_platform_is_planned_right_or_refused(
    environ: dict[str, str], expected: str, machine: dict[str, Any]
) -> None:
    """Never a lone world where there are signs of several nodes, and no stop where there is one."""
    assert look(environ, **machine) == expected


SERVICES = (
    *("launcher-control", "launcher-metrics", "launcher-ssh", "launcher-master", "launcher-tf", "master"),
    *("launcher", "pet-master", "coordinator", "mlp-worker-0"),
)


@pytest.mark.parametrize("service", SERVICES)
def test_the_variables_of_a_kubernetes_service_are_nobodys_request(service: str) -> None:
    """Kubernetes sets them in every pod of a namespace that has a Service of this name."""
    stem = service.upper().replace("-", "_")
    names = {
        f"{stem}_SERVICE_HOST": "10.0.0.9",
        f"{stem}_SERVICE_PORT": "80",
        f"{stem}_PORT": "tcp://10.0.0.9:80",
        f"{stem}_PORT_80_TCP_ADDR": "10.0.0.9",
    }
    assert look(names, gpus=1) == ALONE
    pod = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-0", **names}
    assert look(pod, gpus=1) == "node 1 of 2 at job-0"
    assert name_unknown(names) == ()


def test_a_malformed_port_of_nobody_else_is_refused() -> None:
    """Only a Service explains such a value."""
    assert look({"MASTER_PORT": "tcp://10.0.0.9:80"}) == "malformed-variable"


@pytest.mark.parametrize("sign", SIGNS)
def test_a_launch_by_mpirun_or_srun_goes_on_inside_of_every_platform(sign: str) -> None:
    """A sign counts only where no source knows this process."""
    more = dict([sign.split("=", 1)])
    mpi = {**RANK_1, "MASTER_ADDR": "node0"}
    assert sign.startswith(("HYDRA", "MPI_LOCAL")) or look({**more, **mpi}) == "rank 1 of 2 at node0"
    task = {**TASK, "SLURM_PROCID": "1", "SLURM_NODEID": "1"}
    assert sign.startswith(("OMPI_COMM", "MPI_LOCAL")) or look({**more, **task}) == "rank 1 of 2 at node0"


@pytest.mark.parametrize(
    ("environ", "machine"),
    [(environ, machine) for environ, found, machine in ROWS if found == STOP],
    ids=lambda v: "",
)
def test_one_node_is_the_answer_to_every_sign(environ: dict[str, str], machine: dict[str, Any]) -> None:
    """Each refusal can be completed: ``--nnodes 1`` where the node is alone, three flags where it is not."""
    assert look(environ, {"nnodes": "1"}, **machine) == ALONE
    if "TF_CONFIG" in environ:
        return  # which says that there is no other node
    flags = {"nnodes": "8", "node_rank": "5", "master_addr": "n0"}
    assert look(environ, flags, **machine) == "node 5 of 8 at n0"
