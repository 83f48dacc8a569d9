"""Every platform as a function: a job's shape in, the environment of each start out.

Written from the platforms' documentation and from recordings, not from the launcher: no name here is
imported from `launcher.sources`. A `Platform` says what its variables make knowable; the property
tests hold the launcher to it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXPLORE = bool(os.environ.get("LAUNCHER_TEST_EXPLORE"))
"""Set it to look for new counterexamples; without it each run tries the same ones."""
ALWAYS = frozenset(
    (
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_ADDRESS", "MASTER_PORT"),
        *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    )
)
SIZE = frozenset(("LOCAL_WORLD_SIZE",))
NODE = frozenset(("NODE_RANK", "GROUP_RANK"))
WHOLE = SIZE | NODE
MASTER_PORT = "29400"
MOST_PROCESSES = 96


def deterministic(examples: int) -> settings:
    """Return settings under which a test tries the same examples on every machine."""
    return settings(
        max_examples=examples * 10 if EXPLORE else examples,
        derandomize=not EXPLORE,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


@dataclass(frozen=True)
class Node:
    """One node: the platform's index of it, its names, how many processes the platform starts there."""

    index: int
    hostname: str
    address: str
    size: int


@dataclass(frozen=True)
class Job:
    """What the platform is asked to start.

    Attributes:
        nodes: In the platform's own order.
        cyclic: Ranks are dealt to the nodes like cards, instead of node by node.
        gpus: GPUs that a process on any node sees; None if a recording does not say.
        seed: For choices that a platform makes freely (order of a list, ports).
    """

    nodes: tuple[Node, ...]
    cyclic: bool = False
    gpus: int | None = 0
    seed: int = 0

    @property
    def world(self) -> int:
        """Number of processes that the platform starts."""
        return sum(node.size for node in self.nodes)

    @property
    def even(self) -> bool:
        """Whether all nodes get the same number of processes."""
        return len({node.size for node in self.nodes}) == 1

    def ranks(self) -> list[list[int]]:
        """Return, for each node, the ranks that run there, in local order."""
        places: list[list[int]] = [[] for _ in self.nodes]
        if self.cyclic:
            free = [node.size for node in self.nodes]
            order = [
                node.index for turn in range(max(free)) for node in self.nodes if turn < free[node.index]
            ]
        else:
            order = [node.index for node in self.nodes for _ in range(node.size)]
        for rank, index in enumerate(order):
            places[index].append(rank)
        return places


@dataclass(frozen=True)
class Start:
    """One start of the launcher by a platform: where, and everything it can see there."""

    node: Node
    rank: int
    local_rank: int
    environ: Mapping[str, str]
    ancestors: tuple[tuple[str, ...], ...] = ()

    def recording(self, gpus: int | None) -> dict[str, object]:
        """Return the snapshot of this start."""
        return {
            "hostname": self.node.hostname,
            "addresses": {"lo": ["127.0.0.1"], "eth0": [self.node.address]},
            "environ": dict(self.environ),
            "gpus": gpus,
            "files": {"/sys/fs/cgroup/cpuset.cpus.effective": "0-15"},
            "affinity": "0-15",
            "ancestors": [list(line) for line in self.ancestors],
        }


@dataclass(frozen=True)
class Platform:
    """A platform and what can be known under it.

    Attributes:
        start: The job's starts.
        per_node: The launcher is started once per node and starts one process per GPU.
        publishes: Optional names that must always be set, beyond `ALWAYS`.
        publishes_even: Those that must be set where all nodes get the same number, node by node.
        may_stop: Where nodes are uneven a named error is an answer, too: who rank 0's node is cannot
            always be known. A wrong answer never is one. With one launcher on each of more than two nodes
            with several GPUs, the error asks for the number of nodes: the job could be an uneven one.
        even: All nodes get the same number of processes.
        blocks: Ranks are always placed node by node.
        most: Nodes at most.
    """

    start: Callable[[Job], list[Start]]
    per_node: bool = False
    publishes: frozenset[str] = WHOLE
    publishes_even: frozenset[str] = frozenset()
    may_stop: bool = False
    even: bool = False
    blocks: bool = False
    most: int = 64


def _each(job: Job, environ: Callable[[Node, int, int], Mapping[str, str]], domains: int = 1) -> list[Start]:
    return [
        Start(node, rank, local, environ(node, rank, local))
        for node, ranks in zip(job.nodes, job.ranks(), strict=True)
        for local, rank in zip(dealt(len(ranks), domains), ranks, strict=True)
    ]


def dealt(size: int, domains: int) -> list[int]:
    """Return the local ranks of a node in the order of ranks, which fill one NUMA node after the other."""
    return [local for domain in range(domains) for local in range(domain, size, domains)]


def bracketed(address: str) -> str:
    """Return an address as it stands before a port."""
    return f"[{address}]" if ":" in address else address


def _mpi_names(job: Job, node: Node, rank: int, local: int) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(job.world),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(node.size),
        "OMPI_COMM_WORLD_NODE_RANK": str(local),  # what Open MPI means by it
        "OMPI_UNIVERSE_SIZE": str(job.world + 8),
        "PMIX_RANK": str(rank),
        "PMIX_HOSTNAME": node.hostname,
    }


def _uri(job_id: int, daemon: int, address: str) -> str:
    if ":" in address:
        return f"{job_id}.{daemon};tcp6://[{address}]:49373"
    return f"{job_id}.{daemon};tcp://{address},172.17.0.1:49373"


def open_mpi_4(job: Job, idle_head: str | None = None) -> list[Start]:
    """mpirun of Open MPI 4 on node 0, or on a head without ranks whose address is given."""
    first = 0 if idle_head is None else 1
    daemons = len(job.nodes) + first
    head = job.nodes[0].address if idle_head is None else "10.255.0.1"
    job_id = 3_544_449_024 + job.seed

    def environ(node: Node, rank: int, local: int) -> dict[str, str]:
        return {
            **_mpi_names(job, node, rank, local),
            "OMPI_MCA_orte_hnp_uri": _uri(job_id, 0, head),
            "OMPI_MCA_orte_local_daemon_uri": _uri(job_id, node.index + first, node.address),
            "OMPI_MCA_orte_num_nodes": str(len(job.nodes)),  # those with ranks
            **({} if node.index + first == 0 else {"OMPI_MCA_orte_node_regex": f"n[1:0-99]@0({daemons})"}),
            "OMPI_MCA_ess_base_vpid": str(rank),
            "PMIX_NAMESPACE": str(job_id + 1),
            "PMIX_SERVER_URI2": f"{job_id}.{node.index + first};tcp4://127.0.0.1:45005",
        }

    return _each(job, environ)


def open_mpi_5(job: Job, idle_head: str | None = None) -> list[Start]:
    """mpirun of Open MPI 5: nothing of OMPI_MCA_orte_*, the head's name in the namespace."""
    first = 0 if idle_head is None else 1
    head = job.nodes[0].hostname if idle_head is None else idle_head
    space = f"prterun-{head}-{26578 + job.seed}"

    def environ(node: Node, rank: int, local: int) -> dict[str, str]:
        return {
            **_mpi_names(job, node, rank, local),
            "OMPI_VERSION": "5.0.11",
            "PRTE_LAUNCHED": "1",
            "PMIX_NAMESPACE": f"{space}@1",
            "PMIX_SERVER_URI2": f"{space}@0.{node.index + first};tcp4://127.0.0.1:57951",
            "PMIX_SERVER_URI21": f"{space}@0.{node.index + first};tcp4://127.0.0.1:57951",
        }

    by_numa = job.even and not job.cyclic and job.seed % 3 == 1  # --map-by numa, in machines with two
    return _each(job, environ, 2 if by_numa else 1)


def _idle_head(start: Callable[[Job, str | None], list[Start]]) -> Callable[[Job], list[Start]]:
    """Return a start on an idle head: the user must name the master, nobody else can."""

    def started(job: Job) -> list[Start]:
        more = {
            "MASTER_ADDR": job.nodes[0].hostname,
            "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        }
        return [
            Start(item.node, item.rank, item.local_rank, {**item.environ, **more})
            for item in start(job, "head-pod")
        ]

    return started


def mpich(job: Job) -> list[Start]:
    """MPICH's mpiexec on node 0: the node and the head stand on the proxy's command line only."""
    head = job.nodes[0].hostname
    starts = _each(
        job,
        lambda node, rank, local: {
            **_hydra_names(job, node, rank, local),
            "PMI_HOSTNAME": node.hostname,
            "GFORTRAN_UNBUFFERED_PRECONNECTED": "y",
        },
    )
    return [
        Start(item.node, item.rank, item.local_rank, item.environ, (_mpich_proxy(head, item.node),))
        for item in starts
    ]


def _hydra_names(job: Job, node: Node, rank: int, local: int) -> dict[str, str]:
    return {
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(job.world),
        "PMI_FD": str(9 + local),
        "MPI_LOCALRANKID": str(local),
        "MPI_LOCALNRANKS": str(node.size),
    }


def _mpich_proxy(head: str, node: Node) -> tuple[str, ...]:
    words = f"--control-port {head}:36371 --rmk user --launcher ssh --retries 10 --usize -2"
    return ("/usr/bin/hydra_pmi_proxy", *words.split(), "--proxy-id", str(node.index))


def intel_mpi(job: Job) -> list[Start]:
    """Intel MPI on node 0: it names the node and nothing of the head, so the user names the master."""
    proxy = ("/opt/intel/mpi/bin/hydra_pmi_proxy", "--usize", "-1", "--auto-cleanup", "1")
    starts = _each(
        job,
        lambda node, rank, local: {
            **_hydra_names(job, node, rank, local),
            "HYDRA_BSTRAP_LOCALHOST": node.hostname,
            "HYDRA_BSTRAP_NODE_ID": str(node.index),
            "HYDRA_BSTRAP_PROXY_ID": str(node.index),
            "MASTER_ADDR": job.nodes[0].hostname,
        },
    )
    return [Start(s.node, s.rank, s.local_rank, s.environ, (proxy,)) for s in starts]


def repeated(values: Sequence[int]) -> str:
    """Return counts per node as Slurm writes them: ``3,1(x2)``."""
    groups: list[tuple[int, int]] = []
    for value in values:
        if groups and groups[-1][0] == value:
            groups[-1] = (value, groups[-1][1] + 1)
        else:
            groups.append((value, 1))
    return ",".join(f"{value}(x{times})" if times > 1 else str(value) for value, times in groups)


def nodelist(names: Sequence[str]) -> str:
    """Return names as Slurm writes them: neighbours that differ in one number share brackets."""
    runs: list[tuple[str, list[str]]] = []
    for name in names:
        stem = name.rstrip("0123456789")
        number = name[len(stem) :]
        if runs and number and len(number) < 18 and runs[-1][0] == stem and runs[-1][1] != [""]:
            runs[-1][1].append(number)
        else:
            runs.append((stem, [number if len(number) < 18 else ""] if stem + number == name else [""]))
    return ",".join(_spell(stem, numbers) for stem, numbers in runs)


def _spell(stem: str, numbers: Sequence[str]) -> str:
    if len(numbers) == 1:
        return stem + numbers[0]
    parts: list[list[str]] = []
    for number in numbers:
        last = parts[-1][-1] if parts else ""
        if last and len(last) == len(number) and int(last) + 1 == int(number):
            parts[-1].append(number)
        else:
            parts.append([number])
    spelled = [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in parts]
    return f"{stem}[{','.join(spelled)}]"


def slurm(job: Job) -> list[Start]:
    """srun, in block or cyclic distribution."""
    names = nodelist([node.hostname for node in job.nodes])
    counts = repeated([node.size for node in job.nodes])
    nodes, tasks = str(len(job.nodes)), str(job.world)

    def environ(node: Node, rank: int, local: int) -> dict[str, str]:
        return {
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": names,
            "SLURM_JOB_NUM_NODES": nodes,
            "SLURM_LAUNCH_NODE_IPADDR": "10.255.0.1",  # where srun was typed: no node of the job
            "SLURM_LOCALID": str(local),
            "SLURM_NNODES": nodes,
            "SLURM_NODEID": str(node.index),
            "SLURM_NPROCS": tasks,
            "SLURM_NTASKS": tasks,
            "SLURM_PROCID": str(rank),
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NODELIST": names,
            "SLURM_STEP_NUM_NODES": nodes,
            "SLURM_STEP_TASKS_PER_NODE": counts,
            "SLURM_TASKS_PER_NODE": counts,
        }

    return _each(job, environ)


def torchrun(job: Job) -> list[Start]:
    """Workers of torchrun, on nodes where Slurm started the agents: SLURM_* are the agents'."""
    master = job.nodes[0].hostname if job.seed % 2 else job.nodes[0].address

    def environ(node: Node, rank: int, local: int) -> dict[str, str]:
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(job.world),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(node.size),
            "GROUP_RANK": str(node.index),
            "GROUP_WORLD_SIZE": str(len(job.nodes)),
            "ROLE_NAME": "default",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": str(job.world),
            "MASTER_ADDR": master,
            "MASTER_PORT": MASTER_PORT,
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "NODE_RANK": "0",  # passed through from whoever started the agent: not the worker's
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": str(node.index),
            "SLURM_NTASKS": str(len(job.nodes)),
        }

    return _each(job, environ)


def azure_batch(job: Job) -> list[Start]:
    """A multi-instance task of Azure Batch; the host list need not begin with the master."""
    addresses = [node.address for node in job.nodes]
    turn = job.seed % len(addresses)
    shuffled = addresses[turn:] + addresses[:turn]
    master = {"AZ_BATCH_MASTER_NODE": f"{bracketed(addresses[0])}:6000"}

    def environ(node: Node, rank: int, local: int) -> dict[str, str]:
        cores = (word for address in shuffled for word in (address, "1"))
        return {
            "AZ_BATCH_HOST_LIST": ",".join(shuffled),
            "AZ_BATCH_NODE_LIST": ";".join(shuffled),
            "AZ_BATCH_IS_CURRENT_NODE_MASTER": "true" if node.index == 0 else "false",
            "CCP_NODES": " ".join([str(len(shuffled)), *cores]),
            **(master if len(addresses) > 1 else {}),
        }

    return _each(job, environ)


def _machine_learning(job: Job) -> dict[str, str]:
    master = job.nodes[0].address
    several = {"AZ_BATCH_MASTER_NODE": f"{bracketed(master)}:6000"} if len(job.nodes) > 1 else {}
    return {
        "AZUREML_NODE_COUNT": str(len(job.nodes)),
        "AZUREML_RUN_ID": "run_1700000000_0a1b2c3d",
        "AZ_BATCHAI_MPI_MASTER_NODE": master if len(job.nodes) > 1 else "localhost",
        "AZ_BATCHAI_JOB_MASTER_NODE_IP": master,
        **several,
    }


def azureml_pytorch(job: Job) -> list[Start]:
    """Azure ML's PyTorch distribution: RANK and WORLD_SIZE count whatever it was told to start."""

    def environ(node: Node, rank: int, local: int) -> dict[str, str]:
        return {
            **_machine_learning(job),
            "AZUREML_CR_NODE_RANK": str(node.index),
            "AZ_BATCHAI_TASK_INDEX": str(rank),
            "MASTER_ADDR": job.nodes[0].address,
            "MASTER_PORT": "6105",
            "NODE_RANK": str(node.index),
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(job.world),
        }

    if job.seed % 2:  # without the names of the newer runtime

        def older(node: Node, rank: int, local: int) -> dict[str, str]:
            return {n: v for n, v in environ(node, rank, local).items() if "_CR_" not in n}

        return _each(job, older)
    return _each(job, environ)


def azureml_mpi(job: Job) -> list[Start]:
    """Azure ML's MPI distribution: its own mpirun (Open MPI 4) on the first node."""
    return [
        Start(item.node, item.rank, item.local_rank, {**_machine_learning(job), **item.environ})
        for item in open_mpi_4(job)
    ]


def common_runtime(job: Job) -> list[Start]:
    """Azure ML's common runtime: ``rank`` names the variable that holds the node rank."""
    hosts = [node.hostname for node in job.nodes]
    config = json.dumps({"rank": "VK_TASK_INDEX", "host_list": hosts, "remote_grpc": {}})
    context = json.dumps({"cluster_name": "c", "gpu_count": 0, "vm_size": None})
    return _each(
        job,
        lambda node, rank, local: {
            "AZUREML_CR_NODE_RANK": str(node.index),
            "AZUREML_NODE_COUNT": str(len(hosts)),
            "AZUREML_CR_DISTRIBUTED_CONFIG": config,
            "AZUREML_CR_COMPUTE_CONTEXT": context,
            "VK_TASK_INDEX": str(node.index),
            "VC_TASK_INDEX": str(node.index),
            "VC_WORKER_HOSTS": ",".join(hosts),
            "AMLARC_NUM_WORKER": str(len(hosts)),
            "AMLARC_NUM_PS": "0",
        },
    )


def _pods(job: Job, each: int) -> dict[str, str]:
    return {"PET_NNODES": str(len(job.nodes)), "PET_NPROC_PER_NODE": str(each)}


def kubeflow_v1(job: Job) -> list[Start]:
    """PyTorchJob: RANK is the pod's index, WORLD_SIZE counts processes."""
    each = job.gpus or 1
    master = job.nodes[0].hostname
    return _each(
        job,
        lambda node, rank, local: {
            **_pods(job, each),
            "MASTER_PORT": "23456",
            "PET_MASTER_PORT": "23456",
            "MASTER_ADDR": master,
            "PET_MASTER_ADDR": master,
            "WORLD_SIZE": str(len(job.nodes) * each),
            "RANK": str(node.index),
            "PET_NODE_RANK": str(node.index),
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        },
    )


def kubeflow_trainer(job: Job) -> list[Start]:
    """The Trainer (v2): PET_* only."""
    each = {} if job.seed % 2 else {"PET_NPROC_PER_NODE": "auto" if job.gpus else "1"}
    return _each(
        job,
        lambda node, rank, local: {
            "PET_NNODES": str(len(job.nodes)),
            "PET_NODE_RANK": str(node.index),
            "PET_MASTER_ADDR": job.nodes[0].hostname,
            "PET_MASTER_PORT": "29500",
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
            **each,
        },
    )


def sagemaker(job: Job) -> list[Start]:
    """SageMaker names the nodes itself and sorts the list as text: algo-10 before algo-2."""
    nodes = [Node(node.index, f"algo-{node.index + 1}", node.address, node.size) for node in job.nodes]
    renamed = Job(tuple(nodes), job.cyclic, job.gpus, job.seed)
    hosts = json.dumps(sorted(node.hostname for node in nodes))
    return _each(
        renamed,
        lambda node, rank, local: {
            "SM_HOSTS": hosts,
            "SM_CURRENT_HOST": node.hostname,
            "SM_NUM_GPUS": str(job.gpus or 0),
        },
    )


def skypilot(job: Job) -> list[Start]:
    """SkyPilot: one address per line."""
    return _each(
        job,
        lambda node, rank, local: {
            "SKYPILOT_NODE_RANK": str(node.index),
            "SKYPILOT_NODE_IPS": "\n".join(other.address for other in job.nodes),
            "SKYPILOT_NUM_NODES": str(len(job.nodes)),
            "SKYPILOT_NUM_GPUS_PER_NODE": str(job.gpus or 0),
        },
    )


def leader_worker_set(job: Job) -> list[Start]:
    """LeaderWorkerSet: the leader is pod 0 of its group."""
    return _each(
        job,
        lambda node, rank, local: {
            "LWS_GROUP_SIZE": str(len(job.nodes)),
            "LWS_WORKER_INDEX": str(node.index),
            "LWS_LEADER_ADDRESS": job.nodes[0].hostname,
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        },
    )


def runpod(job: Job) -> list[Start]:
    """RunPod's Instant Clusters: the world in processes, the index of the node, no rank."""
    return _each(
        job,
        lambda node, rank, local: {
            "MASTER_ADDR": job.nodes[0].address,
            "MASTER_PORT": MASTER_PORT,
            "NODE_ADDR": node.address,
            "NODE_RANK": str(node.index),
            "NUM_NODES": str(len(job.nodes)),
            "NUM_TRAINERS": str(job.gpus or 0),
            "WORLD_SIZE": str(len(job.nodes) * (job.gpus or 1)),
        },
    )


def deepspeed(job: Job) -> list[Start]:
    """DeepSpeed's launcher: the contract less the local size, which has another name."""
    return _each(
        job,
        lambda node, rank, local: {
            "RANK": str(rank),
            "WORLD_SIZE": str(job.world),
            "LOCAL_RANK": str(local),
            "LOCAL_SIZE": str(node.size),
            "CROSS_RANK": str(node.index),
            "CROSS_SIZE": str(len(job.nodes)),
            "MASTER_ADDR": job.nodes[0].address,
            "MASTER_PORT": MASTER_PORT,
        },
    )


def flux(job: Job) -> list[Start]:
    """Flux tells sizes and ranks; the person who starts it names the master."""
    return _each(
        job,
        lambda node, rank, local: {
            "FLUX_JOB_ID": str(1000 + job.seed),
            "FLUX_JOB_SIZE": str(job.world),
            "FLUX_JOB_NNODES": str(len(job.nodes)),
            "FLUX_TASK_RANK": str(rank),
            "FLUX_TASK_LOCAL_ID": str(local),
            "PMI_RANK": str(rank),
            "PMI_SIZE": str(job.world),
            "MASTER_ADDR": job.nodes[0].address,
        },
    )


def tf_config(job: Job) -> list[Start]:
    """TF_CONFIG with a chief or without, parameter servers beside; tasks can share a node."""
    chief = job.seed % 2
    tasks: list[str] = [""] * job.world
    for node, ranks in zip(job.nodes, job.ranks(), strict=True):
        for local, rank in enumerate(ranks):
            tasks[rank] = f"{bracketed(node.address)}:{2222 + local}"
    cluster = {"worker": tasks[chief:], "ps": [f"{bracketed(job.nodes[0].address)}:9999"]}
    if chief:
        cluster["chief"] = tasks[:1]

    def environ(node: Node, rank: int, local: int) -> dict[str, str]:
        role, index = ("chief", 0) if rank < chief else ("worker", rank - chief)
        task = {"type": role, "index": index if job.seed % 3 else str(index)}
        return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})}

    return _each(job, environ)


def volcano(job: Job) -> list[Start]:
    """Volcano: one task, or a master and workers, which their names tell apart or the pytorch plugin."""
    kind = ("trainer", "named", "plugin")[job.seed % 3]
    first = 0 if kind == "trainer" or len(job.nodes) == 1 else 1
    names = [_name_pod(kind, first, index) for index in range(len(job.nodes))]
    renamed = Job(
        tuple(Node(node.index, names[node.index], node.address, 1) for node in job.nodes),
        gpus=job.gpus,
        seed=job.seed,
    )
    tasks: dict[str, list[str]] = {}
    for name in names:
        tasks.setdefault(name.split("-")[1].upper(), []).append(name)
    lists = {f"VC_{task}_HOSTS": ",".join(hosts) for task, hosts in tasks.items()}
    counts = {f"VC_{task}_NUM": str(len(hosts)) for task, hosts in tasks.items()}

    def environ(node: Node, rank: int, local: int) -> dict[str, str]:
        mine = node.hostname.partition(".")[0].rpartition("-")[2]
        plugin = {
            "RANK": str(node.index),
            "WORLD_SIZE": str(len(names)),
            "MASTER_ADDR": names[0],
            "MASTER_PORT": "23456",
        }
        return {**lists, **counts, "VC_TASK_INDEX": mine, **(plugin if kind == "plugin" else {})}

    return _each(renamed, environ)


def _name_pod(kind: str, first: int, index: int) -> str:
    if kind == "trainer":
        return f"job-trainer-{index}.job"
    return "job-master-0.job" if index == 0 else f"job-worker-{index - first}.job"


def vertex_ai(job: Job) -> list[Start]:
    """Vertex AI: the index counts within a pool; reducers in pool 2 have no ranks."""
    pools = {"workerpool0": [f"{job.nodes[0].hostname}:2222"]}
    if len(job.nodes) > 1:
        pools["workerpool1"] = [f"{node.hostname}:2222" for node in job.nodes[1:]]
    if job.seed % 2 and len(job.nodes) > 1:
        pools["workerpool2"] = ["reducer-0:2222", "reducer-1:2222"]
    world = sum(map(len, pools.values())) if job.seed % 3 else len(job.nodes)

    def environ(node: Node, rank: int, local: int) -> dict[str, str]:
        task = {"type": f"workerpool{min(node.index, 1)}", "index": max(0, node.index - 1)}
        torch = {
            "RANK": str(node.index),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": job.nodes[0].hostname if node.index or job.seed % 2 else "localhost",
            "MASTER_PORT": "2222",
        }
        named = torch if len(job.nodes) > 1 and job.seed < 4 else {}
        return {"CLUSTER_SPEC": json.dumps({"cluster": pools, "task": task, "environment": "cloud"}), **named}

    return _each(job, environ)


def alibaba_pai(job: Job) -> list[Start]:
    """Alibaba PAI and Baidu AIHC (in Kubernetes): RANK and WORLD_SIZE count nodes."""
    pod = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"} if job.seed % 2 else {}
    return _each(
        job,
        lambda node, rank, local: {
            "RANK": str(node.index),
            "WORLD_SIZE": str(len(job.nodes)),
            "NPROC_PER_NODE": str(job.gpus or 1),
            "MASTER_ADDR": job.nodes[0].hostname,
            "MASTER_PORT": "23456",
            **pod,
        },
    )


def volcengine(job: Job) -> list[Start]:
    """Volcengine: names of its own only."""
    return _each(
        job,
        lambda node, rank, local: {
            "MLP_ROLE": "worker",
            "MLP_ROLE_INDEX": str(node.index),
            "MLP_WORKER_NUM": str(len(job.nodes)),
            "MLP_WORKER_GPU": str(job.gpus or 0),
            "MLP_WORKER_0_HOST": job.nodes[0].hostname,
            "MLP_WORKER_0_PORT": "2222",
            "MLP_WORKER_ALL_HOSTS": ",".join(other.hostname for other in job.nodes),
        },
    )


def aws_batch(job: Job) -> list[Start]:
    """AWS Batch: the main node is our node 0 and has any index; it is not told its address, which is IPv4."""
    turn = job.seed % len(job.nodes)
    index = {node.index: (node.index + turn) % len(job.nodes) for node in job.nodes}
    order = sorted(job.nodes, key=lambda node: (index[node.index] != turn, index[node.index]))
    nodes = tuple(
        Node(place, node.hostname, f"10.{place // 250}.1.{place % 250 + 4}", 1)
        for place, node in enumerate(order)
    )

    def environ(node: Node, rank: int, local: int) -> dict[str, str]:
        main = {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": nodes[0].address}
        return {
            "AWS_BATCH_JOB_NUM_NODES": str(len(nodes)),
            "AWS_BATCH_JOB_NODE_INDEX": str(index[order[node.index].index]),
            "AWS_BATCH_JOB_MAIN_NODE_INDEX": str(turn),
            **(main if node.index else {}),
        }

    return _each(Job(nodes, gpus=job.gpus, seed=job.seed), environ)


def indexed_job(job: Job) -> list[Start]:
    """An Indexed Job, whose number of pods is typed (or set in the template), and its master's address."""
    return _each(
        job,
        lambda node, rank, local: {
            "JOB_COMPLETION_INDEX": str(node.index),
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
            "LAUNCHER_NNODES": str(len(job.nodes)),
            "LAUNCHER_MASTER_ADDR": job.nodes[0].hostname,
        },
    )


def horovodrun(job: Job) -> list[Start]:
    """horovodrun over gloo: cross numbers are among processes of one local rank; the master is named."""

    def environ(node: Node, rank: int, local: int) -> dict[str, str]:
        peers = [other.index for other in job.nodes if other.size > local]
        return {
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": str(job.world),
            "HOROVOD_LOCAL_RANK": str(local),
            "HOROVOD_LOCAL_SIZE": str(node.size),
            "HOROVOD_CROSS_RANK": str(peers.index(node.index)),
            "HOROVOD_CROSS_SIZE": str(len(peers)),
            "HOROVOD_HOSTNAME": node.hostname,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.255.0.1",
            "HOROVOD_CONTROLLER": "gloo",
            "MASTER_ADDR": job.nodes[0].address,
        }

    return _each(job, environ)


def blaunch(job: Job) -> list[Start]:
    """A task of LSF's blaunch per host, of one slot or several; the other list has another order."""
    slots = 1 + job.seed % 3
    names = [node.hostname for node in job.nodes]
    return _each(
        job,
        lambda node, rank, local: {
            "LSF_PM_TASKID": str(node.index + 1),
            "LSB_HOSTS": " ".join(name for name in names for _ in range(slots)),
            "LSB_MCPU_HOSTS": " ".join(f"{name} {slots}" for name in sorted(names)),
            "LSB_DJOB_NUMPROC": str(slots * len(names)),
        },
    )


def jsrun(job: Job) -> list[Start]:
    """LSF's jsrun: the first host of the list is the launch node."""
    names = " ".join(f"{node.hostname} 42" for node in job.nodes)
    return _each(
        job,
        lambda node, rank, local: {
            "JSM_NAMESPACE_RANK": str(rank),
            "JSM_NAMESPACE_SIZE": str(job.world),
            "JSM_NAMESPACE_LOCAL_RANK": str(local),
            "JSM_NAMESPACE_LOCAL_SIZE": str(node.size),
            "LSB_MCPU_HOSTS": f"batch1 1 {names}",
            "LSB_DJOB_NUMPROC": str(1 + 42 * len(job.nodes)),
        },
    )


def pals(job: Job) -> list[Start]:
    """PALS on a PBS system; the script has named the master."""
    return _each(
        job,
        lambda node, rank, local: {
            "PALS_RANKID": str(rank),
            "PALS_NODEID": str(node.index),
            "PALS_LOCAL_RANKID": str(local),
            "PALS_LOCAL_SIZE": str(node.size),
            "PMI_RANK": str(rank),
            "PMI_SIZE": str(job.world),
            "PMI_LOCAL_RANK": str(local),
            "PMI_LOCAL_SIZE": str(node.size),
            "PBS_NODEFILE": "/var/spool/pbs/aux/1",
            "PBS_NODENUM": "0",  # the script's, forwarded
            "MASTER_ADDR": job.nodes[0].address,
        },
    )


def flags(job: Job) -> list[Start]:
    """A person on each node, with the LAUNCHER_* forms of the flags."""
    master = job.nodes[0].address
    return _each(
        job,
        lambda node, rank, local: {
            "LAUNCHER_NNODES": str(len(job.nodes)),
            "LAUNCHER_NODE_RANK": str(node.index),
            "LAUNCHER_MASTER_ADDR": bracketed(master) if job.seed % 2 else master,
            **({"LAUNCHER_NPROC_PER_NODE": str(job.gpus)} if job.gpus else {}),
            **({"LAUNCHER_MASTER_PORT": MASTER_PORT} if job.seed % 3 else {}),
        },
    )


PLATFORMS: dict[str, Platform] = {
    # Once per process. Nodes are named by the daemon's index (Open MPI), the proxy's (Hydra), the
    # step (Slurm), the worker group (torchrun) or the distinct hosts (TF_CONFIG).
    "open-mpi-4": Platform(open_mpi_4),
    # Version 4 says how many nodes have daemons and how many have ranks; version 5 does neither. Where the
    # two numbers differ or are unknown, it is not always provable which daemon is node 0.
    "open-mpi-5": Platform(open_mpi_5, publishes=SIZE, may_stop=True),
    "open-mpi-4-idle-head": Platform(_idle_head(open_mpi_4), publishes=SIZE, even=True, blocks=True),
    "open-mpi-5-idle-head": Platform(_idle_head(open_mpi_5), publishes=SIZE, even=True, blocks=True),
    "mpich": Platform(mpich),
    "intel-mpi": Platform(intel_mpi),
    "slurm": Platform(slurm),
    "flux": Platform(flux, publishes=frozenset(), even=True, blocks=True),
    # Without a variable of the node: horovodrun's first process on each knows it
    "horovodrun": Platform(horovodrun, publishes=SIZE, blocks=True),
    "jsrun": Platform(jsrun, publishes=SIZE),
    "pals": Platform(pals),
    "torchrun": Platform(torchrun, blocks=True),
    "azureml-pytorch": Platform(azureml_pytorch, even=True, blocks=True),
    "azureml-mpi": Platform(azureml_mpi, even=True, blocks=True),
    "tf-config": Platform(tf_config),
    "deepspeed": Platform(deepspeed, blocks=True),
    # Once per node: the launcher counts the processes itself, so everything is known.
    "azure-batch": Platform(azure_batch, per_node=True),
    "azureml-pytorch-per-node": Platform(azureml_pytorch, per_node=True),
    "azureml-mpi-per-node": Platform(azureml_mpi, per_node=True),
    "common-runtime": Platform(common_runtime, per_node=True),
    "kubeflow-v1": Platform(kubeflow_v1, per_node=True),
    "kubeflow-trainer": Platform(kubeflow_trainer, per_node=True),
    "sagemaker": Platform(sagemaker, per_node=True),
    "skypilot": Platform(skypilot, per_node=True),
    "volcano": Platform(volcano, per_node=True),
    "vertex-ai": Platform(vertex_ai, per_node=True),
    "alibaba-pai": Platform(alibaba_pai, per_node=True),
    "volcengine": Platform(volcengine, per_node=True),
    "aws-batch": Platform(aws_batch, per_node=True),
    "indexed-job": Platform(indexed_job, per_node=True),
    "blaunch": Platform(blaunch, per_node=True),
    "leader-worker-set": Platform(leader_worker_set, per_node=True),
    "runpod": Platform(runpod, per_node=True),
    "flags": Platform(flags, per_node=True),
    "open-mpi-4-per-node": Platform(open_mpi_4, per_node=True),
    "open-mpi-5-per-node": Platform(open_mpi_5, per_node=True, may_stop=True),
    "mpich-per-node": Platform(mpich, per_node=True, may_stop=True),
    "intel-mpi-per-node": Platform(intel_mpi, per_node=True, may_stop=True),
    "slurm-per-node": Platform(slurm, per_node=True),
    "flux-per-node": Platform(flux, per_node=True),
    "horovodrun-per-node": Platform(horovodrun, per_node=True),
    "pals-per-node": Platform(pals, per_node=True, may_stop=True),
}
PER_PROCESS = [name for name, platform in PLATFORMS.items() if not platform.per_node]
PER_NODE = [name for name, platform in PLATFORMS.items() if platform.per_node]


@dataclass(frozen=True)
class _Names:
    """Ways to name and to number the nodes of a cluster."""

    stems: tuple[str, ...] = ("node", "gpu-", "n0", "Worker_", "c1r2-", "x")
    domains: tuple[str, ...] = ("", "", ".cluster.local")
    digits: tuple[str, ...] = field(default=("{}", "{:02}", "{:04}", "{:010}"))


_NAMES = _Names()


@st.composite
def names(draw: st.DrawFn, count: int) -> tuple[list[str], list[str]]:
    """Draw the nodes' host names and addresses, in an order that says nothing."""
    stem, digits = draw(st.sampled_from(_NAMES.stems)), draw(st.sampled_from(_NAMES.digits))
    domain = draw(st.sampled_from(_NAMES.domains))
    first = draw(st.sampled_from((0, 1, 7, 98)))
    numbers = draw(st.permutations(range(first, first + count)))
    if draw(st.booleans()):
        addresses = [f"10.{n // 250}.0.{n % 250 + 4}" for n in numbers]
    else:
        addresses = [f"fd00:{n + 1:x}::{n + 1:x}" for n in numbers]  # some end like a port
    return [stem + digits.format(n) + domain for n in numbers], draw(st.permutations(addresses))


@st.composite
def jobs(draw: st.DrawFn, platform: Platform) -> Job:
    """Draw a job that the platform can start: 1 to 64 nodes."""
    count = draw(st.integers(1, 8) | st.integers(1, platform.most))
    hostnames, addresses = draw(names(count))
    most = max(1, min(8, MOST_PROCESSES // count))
    if platform.per_node:
        sizes, gpus, cyclic = [1] * count, draw(st.integers(0, most)), False
    else:
        alike = platform.even or draw(st.booleans())
        size = st.integers(1, most)
        sizes = [draw(size)] * count if alike else [draw(size) for _ in range(count)]
        # A platform that starts one per process starts as many as there are GPUs, or the node has none.
        gpus = draw(st.sampled_from((0, sizes[0]))) if len(set(sizes)) == 1 else 0
        cyclic = not platform.blocks and draw(st.booleans())
    nodes = [Node(i, hostnames[i], addresses[i], sizes[i]) for i in range(count)]
    return Job(tuple(nodes), cyclic, gpus, draw(st.integers(0, 5)))
