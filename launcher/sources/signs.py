"""Signs of several nodes or processes: variables that show them but do not say which one this is.

One table. A sign counts if no source identifies this node or process (`launcher.identity.allocation`): then
the launcher stops, because a job of N nodes would otherwise run as N jobs of one. Slots are not nodes, and
the elements of a job array are separate jobs: neither is a sign.

Source: each platform's documentation of its variables; see docs/extending.md for adding a source.
"""

from __future__ import annotations

from launcher.core.environ import Malformed, Reader, is_loopback, parse_int
from launcher.core.frozen import frozen
from launcher.core.model import Fact, Trust
from launcher.core.mpi import FLUX, HYDRA, JSRUN, MVAPICH, NUMBERS, OPEN_MPI, PALS, RANK_ON_NODE

FLAGS = "pass --nnodes N --node-rank R --master-addr HOST, or --nnodes 1 for a single node"
TASK = "pass the platform's other variables into the container too, or "
NODE_FILE = "PBS_NODEFILE"
NODE_INDEX = "PBS_NODENUM"
LSF_HOSTS = (("LSB_MCPU_HOSTS", 2), ("LSB_HOSTS", 1))
"""Host lists, and the number of words in each entry; the first word is the host."""
LSF_SLOTS = "LSB_DJOB_NUMPROC"
PARALLELISM = "DET_KUBERNETES_JOB_PARALLELISM"
SLOT_IDS = "DET_SLOT_IDS"
TF_CONFIG = "TF_CONFIG"
HOST_FILES = (
    ("PE_HOSTFILE", "NHOSTS"),
    ("COBALT_NODEFILE", "COBALT_JOBSIZE"),
    ("OAR_NODEFILE", ""),
    ("BATCH_HOSTS_FILE", "BATCH_TASK_COUNT"),
)
"""Variables that name a file with a host at the start of each line, each with the variable for the number of
hosts: Grid Engine, Cobalt, OAR, Google's Batch."""
GROVE_PODS = "GROVE_PCSG_TEMPLATE_NUM_PODS"
RSH_AGENT = "OMPI_MCA_plm_rsh_agent"
KUBEXEC = "/kubexec.sh"
"""End of the path of the agent with which mpirun reaches the workers of an older MPIJob."""
RANK_0_HOST = "TORCHX_RANK0_HOST"
PBS_FIX = (
    "a batch script runs once: mpiexec -n N --ppn 1 launcher run -- COMMAND, or pbsdsh -- sh -c "
    f"'launcher run --nnodes N --node-rank ${NODE_INDEX} --master-addr HOST -- COMMAND'; --nnodes 1 for this "
    "node alone"
)
LSF_FIX = (
    'a batch script runs once: blaunch -z "HOST1 HOST2" launcher run -- COMMAND, jsrun or mpirun ... '
    "launcher run -- COMMAND; --nnodes 1 for this node alone"
)
SCRIPT_FIX = (
    "a batch script runs once: mpirun ... launcher run -- COMMAND; where each host runs a launcher: pass "
    "--nnodes N --node-rank R --master-addr HOST; --nnodes 1 for this node alone"
)
GOOGLE_FIX = (
    "tasks may share a machine, and none names task 0's: with one task on each, pass --nnodes "
    "$BATCH_TASK_COUNT --node-rank $BATCH_TASK_INDEX --master-addr HOST; --nnodes 1 if each task is a job"
)
MPI_FIX = (
    "mpirun starts the processes: mpirun ... launcher run -- COMMAND in the launcher pod; "
    "--nnodes 1 for this pod alone"
)


@frozen
class Signs:
    """Variables of one platform, the plainest first; only the first one that is a sign is reported.

    Attributes:
        fix: What the user can add or do.
        counts: Numbers of nodes or processes: a sign if above one, or not a number.
        indices: Numbers counted from zero: a sign if above zero, or not a number.
        marks: Variables that only a job of several nodes has.
        lists: Hosts, separated by commas or blanks: a sign if there are several different ones.
        rank: A variable that says more than these, to another source or in another row. If it is set, these
            are no sign.
    """

    fix: str
    counts: tuple[str, ...] = ()
    indices: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    rank: str = ""


@frozen
class Names:
    """Names of the variables for the nodes of a platform that starts one launcher on each (`node_names`).

    Attributes:
        count: Number of nodes.
        index: Index of this node, from 0.
        master: Host of the first node.
        domain: If set, the first node's host is ``<master>-0.<domain>``.
        gpus: GPUs per node.
        processes: Whether users set these names too, and WORLD_SIZE beside them counts processes.
    """

    count: str
    index: str
    master: str = ""
    domain: str = ""
    gpus: str = ""
    processes: bool = False


NODES = (
    Names("LWS_GROUP_SIZE", "LWS_WORKER_INDEX", "LWS_LEADER_ADDRESS"),
    Names("BEAKER_REPLICA_COUNT", "BEAKER_REPLICA_RANK", "BEAKER_LEADER_REPLICA_HOSTNAME"),
    Names("DSTACK_NODES_NUM", "DSTACK_NODE_RANK", "DSTACK_MASTER_NODE_IP", gpus="DSTACK_GPUS_PER_NODE"),
    Names(
        "LEPTON_JOB_TOTAL_WORKERS",
        "LEPTON_JOB_WORKER_INDEX",
        "LEPTON_JOB_WORKER_PREFIX",
        "LEPTON_SUBDOMAIN",
        "LEPTON_RESOURCE_ACCELERATOR_NUM",
    ),
    Names("MF_PARALLEL_NUM_NODES", "MF_PARALLEL_NODE_INDEX", "MF_PARALLEL_MAIN_IP"),
    Names("BATCH_TASK_INSTANCE_NUM", "BATCH_TASK_INSTANCE_INDEX"),
    # RunPod, and users' own scripts; `torch_env` reads MASTER_ADDR
    Names("NUM_NODES", "NODE_RANK", gpus="NUM_TRAINERS", processes=True),
    Names("NNODES", "NODE_RANK", processes=True),
)
NODE_MARKERS = tuple(name for row in NODES for name in (row.count, row.master) if name)


TABLE = (
    Signs(PBS_FIX, ("PBS_NUM_NODES", "PBS_TASKNUM"), ("PBS_VNODENUM",)),
    Signs(TASK + FLAGS, (JSRUN.size, JSRUN.local_size), (JSRUN.local_rank,), rank=JSRUN.rank[0]),
    Signs(TASK + FLAGS, (PALS.local_size,), ("PALS_NODEID", PALS.local_rank), rank=PALS.rank[0]),
    Signs(f"flux run launcher run -- COMMAND, or {TASK}{FLAGS}", ("FLUX_JOB_NNODES",), rank=FLUX.rank[0]),
    Signs(TASK + FLAGS, (HYDRA.size,), rank=HYDRA.rank[0]),
    Signs(TASK + FLAGS, (HYDRA.local_size,), ("HYDRA_BSTRAP_NODE_ID",), rank=HYDRA.rank[1]),
    Signs(TASK + FLAGS, (MVAPICH.size, MVAPICH.local_size), rank=MVAPICH.rank[0]),
    Signs(
        TASK + FLAGS,
        ("OMPI_MCA_orte_num_nodes", "OMPI_MCA_num_procs", OPEN_MPI.local_size),
        rank=OPEN_MPI.rank[0],
    ),
    Signs(TASK + FLAGS, ("MPIRUN_NPROCS",), ("MPIRUN_RANK", "ALPS_APP_PE")),
    Signs(
        TASK + FLAGS,
        ("PMI_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        (
            *("PMIX_RANK", "PMI_LOCAL_RANK", RANK_ON_NODE, "GROUP_RANK", "ROLE_RANK"),
            *(FLUX.local_rank, "AZ_BATCHAI_TASK_INDEX"),
        ),
        ("DMLC_TRACKER_URI", "DMLC_PS_ROOT_URI", "DET_CHIEF_IP"),
    ),
    Signs(
        TASK + FLAGS,
        ("HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_SIZE"),
        ("HOROVOD_LOCAL_RANK", "HOROVOD_CROSS_RANK"),
        rank="HOROVOD_RANK",
    ),
    Signs(
        MPI_FIX,
        marks=(
            "K_MPI_JOB_ROLE",
            "PRTE_MCA_prte_default_hostfile",
            "I_MPI_HYDRA_HOST_FILE",
            "HYDRA_HOST_FILE",
        ),
    ),
    Signs(FLAGS, ("DMLC_NUM_WORKER",), ("DMLC_TASK_ID",)),
    Signs(FLAGS, ("JAX_NUM_PROCESSES",), ("JAX_PROCESS_ID",)),
    Signs(FLAGS, ("DLTS_NUM_WORKER",)),
    Signs(FLAGS, marks=("MLP_WORKER_1_HOST",)),
    *(Signs(TASK + FLAGS, (row.count,), (row.index,)) for row in NODES if not row.processes),
    Signs(TASK + FLAGS, lists=("DSTACK_NODES_IPS",), rank="DSTACK_NODES_NUM"),
    Signs(FLAGS, marks=("LWS_LEADER_ADDRESS",), rank="LWS_GROUP_SIZE"),
    Signs(FLAGS, ("NGC_ARRAY_SIZE",), ("NGC_ARRAY_INDEX",)),
    Signs(GOOGLE_FIX, ("BATCH_TASK_COUNT",), ("BATCH_TASK_INDEX",)),
    Signs(FLAGS, (GROVE_PODS,)),
    Signs(
        FLAGS, marks=("GROVE_PCLQ_POD_INDEX", "GROVE_HEADLESS_SERVICE", "GROVE_PCSG_NAME"), rank=GROVE_PODS
    ),
    Signs(FLAGS, marks=("NOMAD_ALLOC_INDEX",)),
    Signs(FLAGS, ("PADDLE_NNODES", "PADDLE_TRAINERS_NUM"), ("PADDLE_TRAINER_ID",)),
    Signs(FLAGS, ("RANK_SIZE", "MS_WORKER_NUM"), ("RANK_ID", "MS_NODE_ID")),
    Signs(FLAGS, indices=("TPU_WORKER_ID",), lists=("TPU_WORKER_HOSTNAMES",)),
    Signs(FLAGS, ("_CONDOR_NPROCS",), ("_CONDOR_PROCNO",)),
    Signs(SCRIPT_FIX, ("NHOSTS", "COBALT_JOBSIZE", "PJM_NODE"), lists=("LOADL_PROCESSOR_LIST",)),
    Signs(MPI_FIX, lists=("MPI_HOST",)),
    Signs(FLAGS, ("MEGASCALE_NUM_SLICES", "ARNOLD_WORKER_NUM"), ("MEGASCALE_SLICE_ID", "ARNOLD_ID")),
    Signs(FLAGS, lists=("NODE_LIST", "NODE_IP_LIST")),
    Signs(FLAGS, ("NNODES", "NUM_NODES", "NODE_NUM", "HOST_NUM", "NUM_HOSTS", "NUM_PROCESSES")),
)
COUNT_ENDS = ("_NUM_NODES", "_NNODES", "_NODE_COUNT", "_NUM_HOSTS", "_NUM_MACHINES", "_WORLD_SIZE")
INDEX_ENDS = ("_NODE_RANK", "_NODE_INDEX", "_MACHINE_RANK", "_WORLD_RANK", "_GLOBAL_RANK")
"""Suffixes of variables that count or index nodes, on any platform; also names without a prefix."""
OTHERS = ("LAUNCHER_", "MA_", "PET_", "SLURM_", "AZUREML_", "SM_HP_")
"""Prefixes of variables with these suffixes that are read elsewhere, or that users pass to their scripts."""
NODE_COUNTS = (PARALLELISM, "INITIAL_CLUSTER_SIZE", "NODE_COUNT")
"""Numbers of nodes on platforms that start one container on each: Determined, OCI Data Science."""
NAMES = (
    *(NODE_FILE, NODE_INDEX, *(name for name, _ in LSF_HOSTS), LSF_SLOTS, SLOT_IDS),
    *NODE_COUNTS,
    *(name for name, _ in HOST_FILES),
    *(RSH_AGENT, RANK_0_HOST),
    *(name for row in TABLE for name in (*row.counts, *row.indices, *row.marks, *row.lists)),
)
OF_PROCESSES = (
    *(*NUMBERS, "PMI_LOCAL_SIZE", "PMI_LOCAL_RANK", "PMIX_RANK", RANK_ON_NODE, "OMPI_MCA_num_procs"),
    *("LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE", "ROLE_RANK", "MPIRUN_NPROCS", "MPIRUN_RANK", "ALPS_APP_PE"),
    *("HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE", "HOROVOD_LOCAL_RANK", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
    *("RANK_SIZE", "RANK_ID", "MS_WORKER_NUM", "PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ID", "NUM_PROCESSES"),
)
"""Numbers of processes, which may all be on one node."""
OF_PROCESSES_ENDS = ("_WORLD_SIZE", "_WORLD_RANK", "_GLOBAL_RANK")
WITHOUT_PREFIX = ("NUM_MACHINES", "NODE_INDEX", "MACHINE_RANK", "WORLD_RANK", "GLOBAL_RANK")
"""Names that are such a suffix, and that no other source reads."""
MARKERS = (*NAMES, *(f"*{end}" for end in (*COUNT_ENDS, *INDEX_ENDS)), *WITHOUT_PREFIX)


def read(reader: Reader) -> None:
    """Report a sign for each platform whose variables show several nodes; claim the counts of nodes too."""
    if reader.has(TF_CONFIG) and _names_several(reader):
        return  # TF_CONFIG says more, also about a task without a rank
    for row in TABLE:
        name = "" if row.rank and reader.has(row.rank) else _find(reader, row)
        if name:
            reader.sign(name, row.fix, of_nodes=name not in OF_PROCESSES)
    _read_any(reader)
    _read_pbs(reader)
    _read_lsf(reader)
    _read_files(reader)
    if not reader.has(OPEN_MPI.rank[0]) and (reader.text(RSH_AGENT) or "").endswith(KUBEXEC):
        reader.sign(RSH_AGENT, MPI_FIX)
    if _is_elsewhere(reader, reader.text(RANK_0_HOST) or ""):
        reader.sign(RANK_0_HOST, FLAGS)
    for name in NODE_COUNTS:
        count = reader.claim_int(Fact.NODE_COUNT, name, 1)
        if count is not None and count > 1:
            reader.sign(name, FLAGS)
    if reader.has(SLOT_IDS) and not reader.has(PARALLELISM):
        reader.sign(SLOT_IDS, f"Determined does not tell a container about the others: {FLAGS}")


def _read_any(reader: Reader) -> None:
    """Report a node count or a node index of an unknown platform."""
    for ends, limit in ((COUNT_ENDS, 1), (INDEX_ENDS, 0)):
        whole = [n for n in WITHOUT_PREFIX if f"_{n}" in ends and reader.has(n)]
        unknown = (n for n in (*whole, *reader.unread(ends)) if n not in NAMES and not n.startswith(OTHERS))
        name = next((n for n in unknown if "NUMA_" not in n and _is_number_above(reader, n, limit)), "")
        if name:
            reader.sign(name, FLAGS, of_nodes=not f"_{name}".endswith(OF_PROCESSES_ENDS))


def _is_number_above(reader: Reader, name: str, limit: int) -> bool:
    """Whether a variable, which may mean anything, is a number above a limit."""
    return (reader.text(name) or "").strip().isdecimal() and is_above(reader, name, limit)


def _names_several(reader: Reader) -> bool:
    from launcher.sources.tensorflow import names_several

    return names_several(reader.text(TF_CONFIG) or "")


def _is_elsewhere(reader: Reader, host: str) -> bool:
    """Whether a host is given and is not this one; TorchX gives the first replica ``localhost``."""
    own = reader.host.hostname().partition(".")[0]
    return bool(host) and not is_loopback(host) and host.partition(".")[0] != own


def _find(reader: Reader, row: Signs) -> str:
    """Return the first variable of a platform that is a sign; empty if there is none."""
    found = [name for name in row.counts if is_above(reader, name, 1)]
    found += [name for name in row.indices if is_above(reader, name, 0)]
    found += [name for name in row.marks if reader.has(name)]
    found += [name for name in row.lists if len(_split_hosts(reader.text(name) or "")) > 1]
    return next(iter(found), "")


def _split_hosts(text: str) -> set[str]:
    return set(text.replace(",", " ").split())


def is_above(reader: Reader, name: str, limit: int) -> bool:
    """Whether a variable is a number above a limit, or not a number; an unset one is 0."""
    try:
        return parse_int(reader.text(name) or "0") > limit
    except Malformed:
        return True


def _read_pbs(reader: Reader) -> None:
    # One line per slot: hosts repeat. Only the first host has the file, and pbsdsh passes on no variables
    path, index = reader.text(NODE_FILE), reader.text(NODE_INDEX)
    number = reader.integer(NODE_INDEX) if (index or "").isdecimal() else None
    if number is not None and reader.node_count != 1:
        reader.set_least(number, NODE_INDEX)
    if path is None:
        if index is not None:
            reader.sign(NODE_INDEX, PBS_FIX)
        return
    lines = (reader.host.read_text(path) or "").split()
    hosts = set(lines)
    reader.most_nodes = len(hosts) if reader.host.is_called(*hosts) else None
    if len(hosts) > 1 or (index or "0") != "0":
        reader.sign(NODE_FILE, PBS_FIX)
    elif not hosts and not _fills_one_node(reader):
        fix = f"cannot read this file, which lists the hosts: {PBS_FIX}"
        reader.sign(NODE_FILE, fix, of_nodes=False)


def _read_files(reader: Reader) -> None:
    """Report a batch system's file of several hosts, or an unreadable one without a number of hosts."""
    for name, count in HOST_FILES:
        path = reader.text(name)
        if path is None:
            continue
        lines = (reader.host.read_text(path) or "").splitlines()
        hosts = {line.split()[0] for line in lines if line.strip()}
        if len(hosts) > 1:
            reader.sign(name, SCRIPT_FIX)
        elif not hosts and not (count and reader.has(count)):
            fix = f"cannot read this file, which lists the hosts: {SCRIPT_FIX}"
            reader.sign(name, fix, of_nodes=False)


def _fills_one_node(reader: Reader) -> bool:
    # Torque's numbers describe the first part of a request (nodes=1:ppn=8+3:ppn=2); PBS_NP counts all slots
    slots = reader.text("PBS_NP")
    return reader.text("PBS_NUM_NODES") == "1" and slots is not None and slots == reader.text("PBS_NUM_PPN")


def _read_lsf(reader: Reader) -> None:
    known = False
    for name, step in LSF_HOSTS:
        hosts = set((reader.text(name) or "").split()[::step])
        known = known or bool(hosts)
        reader.most_nodes = len(hosts) if reader.host.is_called(*hosts) else reader.most_nodes
        if len(hosts) > 1:
            listed = tuple(dict.fromkeys((reader.text(name) or "").split()[::step]))
            if not reader.read_before.intersection(dict(LSF_HOSTS)):  # else `lsf` knows where ranks are
                reader.claim(Fact.HOSTS, listed, name, Trust.INDIRECT)
            # jsrun's list begins with the launch node, which has no ranks
            reader.sign(name, LSF_FIX, of_nodes=not reader.has(JSRUN.rank[0]))
            return
    if not known and is_above(reader, LSF_SLOTS, 1):
        fix = f"pass {LSF_HOSTS[0][0]} too, these may be slots of one host; {LSF_FIX}"
        reader.sign(LSF_SLOTS, fix, of_nodes=False)
