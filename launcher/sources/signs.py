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
from launcher.core.mpi import FLUX, HYDRA, JSRUN, MVAPICH, OPEN_MPI, PALS, RANK_ON_NODE
from launcher.sources.rows import NODES

FLAGS = "pass --nnodes N --node-rank R --master-addr HOST, or --nnodes 1 for a single node"
TASK = f"pass the platform's other variables into the container too, or {FLAGS}"
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
        counts: Numbers of nodes: a sign if above one, or not a number.
        indices: Numbers counted from zero: a sign if above zero, or not a number.
        marks: Variables that only a job of several nodes has.
        lists: Hosts, separated by commas or blanks: a sign if there are several different ones.
        sizes: The same as ``counts`` for processes, which may all be on one node.
        ranks: The same as ``indices`` for processes.
        rank: A variable that says more than these, to another source or in another row. If it is set, these
            are no sign.
    """

    fix: str
    counts: tuple[str, ...] = ()
    indices: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    ranks: tuple[str, ...] = ()
    rank: str = ""

    def names(self) -> tuple[str, ...]:
        """Return all of the variables that can be a sign."""
        return (*self.counts, *self.sizes, *self.indices, *self.ranks, *self.marks, *self.lists)


TABLE = (
    Signs(PBS_FIX, ("PBS_NUM_NODES", "PBS_TASKNUM"), ("PBS_VNODENUM",)),
    Signs(TASK, sizes=(JSRUN.size, JSRUN.local_size), ranks=(JSRUN.local_rank,), rank=JSRUN.rank[0]),
    Signs(TASK, (), ("PALS_NODEID",), sizes=(PALS.local_size,), ranks=(PALS.local_rank,), rank=PALS.rank[0]),
    Signs(f"flux run launcher run -- COMMAND, or {TASK}", ("FLUX_JOB_NNODES",), rank=FLUX.rank[0]),
    Signs(TASK, sizes=(HYDRA.size,), rank=HYDRA.rank[0]),
    Signs(TASK, (), ("HYDRA_BSTRAP_NODE_ID",), sizes=(HYDRA.local_size,), rank=HYDRA.rank[1]),
    Signs(TASK, sizes=(MVAPICH.size, MVAPICH.local_size), rank=MVAPICH.rank[0]),
    Signs(
        TASK,
        ("OMPI_MCA_orte_num_nodes",),
        sizes=("OMPI_MCA_num_procs", OPEN_MPI.local_size),
        rank=OPEN_MPI.rank[0],
    ),
    Signs(TASK, sizes=("MPIRUN_NPROCS",), ranks=("MPIRUN_RANK", "ALPS_APP_PE")),
    Signs(
        TASK,
        ("GROUP_WORLD_SIZE",),
        ("GROUP_RANK", "AZ_BATCHAI_TASK_INDEX"),
        ("DMLC_TRACKER_URI", "DMLC_PS_ROOT_URI", "DET_CHIEF_IP"),
        sizes=("PMI_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        ranks=("PMIX_RANK", "PMI_LOCAL_RANK", RANK_ON_NODE, "ROLE_RANK", FLUX.local_rank),
    ),
    Signs(
        TASK,
        ("HOROVOD_CROSS_SIZE",),
        ("HOROVOD_CROSS_RANK",),
        sizes=("HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE"),
        ranks=("HOROVOD_LOCAL_RANK",),
        rank="HOROVOD_RANK",
    ),
    Signs(
        MPI_FIX,
        marks=(
            *("K_MPI_JOB_ROLE", "PRTE_MCA_prte_default_hostfile", "I_MPI_HYDRA_HOST_FILE"),
            "HYDRA_HOST_FILE",
        ),
    ),
    Signs(FLAGS, ("DMLC_NUM_WORKER",), ("DMLC_TASK_ID",)),
    Signs(FLAGS, sizes=("JAX_NUM_PROCESSES",), ranks=("JAX_PROCESS_ID",)),
    Signs(FLAGS, ("DLTS_NUM_WORKER",)),
    Signs(FLAGS, marks=("MLP_WORKER_1_HOST",)),
    *(Signs(TASK, (row.count,), (row.index,)) for row in NODES if not row.processes),
    Signs(TASK, lists=("DSTACK_NODES_IPS",), rank="DSTACK_NODES_NUM"),
    Signs(FLAGS, marks=("LWS_LEADER_ADDRESS",), rank="LWS_GROUP_SIZE"),
    Signs(FLAGS, ("NGC_ARRAY_SIZE",), ("NGC_ARRAY_INDEX",)),
    Signs(GOOGLE_FIX, ("BATCH_TASK_COUNT",), ("BATCH_TASK_INDEX",)),
    Signs(FLAGS, (GROVE_PODS,)),
    Signs(
        FLAGS, marks=("GROVE_PCLQ_POD_INDEX", "GROVE_HEADLESS_SERVICE", "GROVE_PCSG_NAME"), rank=GROVE_PODS
    ),
    Signs(FLAGS, marks=("NOMAD_ALLOC_INDEX",)),
    Signs(FLAGS, ("PADDLE_NNODES",), sizes=("PADDLE_TRAINERS_NUM",), ranks=("PADDLE_TRAINER_ID",)),
    Signs(FLAGS, (), ("MS_NODE_ID",), sizes=("RANK_SIZE", "MS_WORKER_NUM"), ranks=("RANK_ID",)),
    Signs(FLAGS, indices=("TPU_WORKER_ID",), lists=("TPU_WORKER_HOSTNAMES",)),
    Signs(FLAGS, ("_CONDOR_NPROCS",), ("_CONDOR_PROCNO",)),
    Signs(SCRIPT_FIX, ("NHOSTS", "COBALT_JOBSIZE", "PJM_NODE"), lists=("LOADL_PROCESSOR_LIST",)),
    Signs(MPI_FIX, lists=("MPI_HOST",)),
    Signs(FLAGS, ("MEGASCALE_NUM_SLICES", "ARNOLD_WORKER_NUM"), ("MEGASCALE_SLICE_ID", "ARNOLD_ID")),
    Signs(FLAGS, lists=("NODE_LIST", "NODE_IP_LIST")),
    Signs(FLAGS, ("NNODES", "NUM_NODES", "NODE_NUM", "HOST_NUM", "NUM_HOSTS"), sizes=("NUM_PROCESSES",)),
)
COUNT_ENDS = ("_NUM_NODES", "_NNODES", "_NODE_COUNT", "_NUM_HOSTS", "_NUM_MACHINES", "_WORLD_SIZE")
INDEX_ENDS = ("_NODE_RANK", "_NODE_INDEX", "_MACHINE_RANK", "_WORLD_RANK", "_GLOBAL_RANK")
"""Suffixes of variables that count or index nodes, on any platform; also names without a prefix."""
OF_PROCESSES_ENDS = ("_WORLD_SIZE", "_WORLD_RANK", "_GLOBAL_RANK")
"""Those that may count or index the processes of one node."""
OTHERS = ("LAUNCHER_", "MA_", "PET_", "SLURM_", "AZUREML_", "SM_HP_")
"""Prefixes of variables with these suffixes that are read elsewhere, or that users pass to their scripts."""
NODE_COUNTS = (PARALLELISM, "INITIAL_CLUSTER_SIZE", "NODE_COUNT")
"""Numbers of nodes on platforms that start one container on each: Determined, OCI Data Science."""
NAMES = (
    *(NODE_FILE, NODE_INDEX, *dict(LSF_HOSTS), LSF_SLOTS, SLOT_IDS, *NODE_COUNTS, *dict(HOST_FILES)),
    *(RSH_AGENT, RANK_0_HOST, *(name for row in TABLE for name in row.names())),
)
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
            reader.sign(name, row.fix, of_nodes=name not in (*row.sizes, *row.ranks))
    _read_any(reader)
    _read_pbs(reader)
    _read_lsf(reader)
    for variable, count in HOST_FILES:
        if len(_read_file(reader, variable, SCRIPT_FIX, is_counted=reader.has(count))) > 1:
            reader.sign(variable, SCRIPT_FIX)
    if not reader.has(OPEN_MPI.rank[0]) and (reader.text(RSH_AGENT) or "").endswith(KUBEXEC):
        reader.sign(RSH_AGENT, MPI_FIX)
    first = reader.text(RANK_0_HOST) or "localhost"  # as it is in TorchX's first replica
    if not is_loopback(first) and first.partition(".")[0] != reader.host.hostname().partition(".")[0]:
        reader.sign(RANK_0_HOST, FLAGS)
    for variable in NODE_COUNTS:
        if (reader.claim_int(Fact.NODE_COUNT, variable) or 1) > 1:
            reader.sign(variable, FLAGS)
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


def _find(reader: Reader, row: Signs) -> str:
    """Return the first variable of a platform that is a sign; empty if there is none."""
    found = [name for name in (*row.counts, *row.sizes) if is_above(reader, name, 1)]
    found += [name for name in (*row.indices, *row.ranks) if is_above(reader, name, 0)]
    found += [name for name in row.marks if reader.has(name)]
    found += [name for name in row.lists if len(set((reader.text(name) or "").replace(",", " ").split())) > 1]
    return next(iter(found), "")


def is_above(reader: Reader, name: str, limit: int) -> bool:
    """Whether a variable is a number above a limit, or not a number; an unset one is 0."""
    try:
        return parse_int(reader.text(name) or "0") > limit
    except Malformed:
        return True


def _read_file(reader: Reader, name: str, fix: str, *, is_counted: bool) -> set[str]:
    """Return the hosts at the start of the lines of a file; an unreadable one is a sign, unless counted."""
    path = reader.text(name)
    lines = (reader.host.read_text(path) or "").splitlines() if path is not None else []
    hosts = {line.split()[0] for line in lines if line.strip()}
    if path is not None and not hosts and not is_counted:
        fix = f"cannot read this file, which lists the hosts: {fix}"
        reader.sign(name, fix, of_nodes=False)
    return hosts


def _read_pbs(reader: Reader) -> None:
    # One line per slot: hosts repeat. Only the first host has the file, and pbsdsh passes on no variables
    index = reader.text(NODE_INDEX)
    number = reader.integer(NODE_INDEX) if (index or "").isdecimal() else None
    if number is not None and reader.node_count != 1:
        reader.set_least(number, NODE_INDEX)
    if not reader.has(NODE_FILE):
        if index is not None:
            reader.sign(NODE_INDEX, PBS_FIX)
        return
    is_other = (index or "0") != "0"
    # Torque's numbers describe the first part of a request (nodes=1:ppn=8+3:ppn=2); PBS_NP counts all slots
    slots, first = reader.text("PBS_NP"), reader.text("PBS_NUM_PPN")
    fills_one = reader.text("PBS_NUM_NODES") == "1" and slots is not None and slots == first
    hosts = _read_file(reader, NODE_FILE, PBS_FIX, is_counted=is_other or fills_one)
    reader.most_nodes = len(hosts) if reader.host.is_called(*hosts) else None
    if len(hosts) > 1 or is_other:
        reader.sign(NODE_FILE, PBS_FIX)


def _read_lsf(reader: Reader) -> None:
    known = False
    for name, step in LSF_HOSTS:
        listed = tuple(dict.fromkeys((reader.text(name) or "").split()[::step]))
        known = known or bool(listed)
        reader.most_nodes = len(listed) if reader.host.is_called(*listed) else reader.most_nodes
        if len(listed) > 1:
            if not reader.read_before.intersection(dict(LSF_HOSTS)):  # else `lsf` knows where ranks are
                reader.claim(Fact.HOSTS, listed, name, Trust.INDIRECT)
            # jsrun's list begins with the launch node, which has no ranks
            reader.sign(name, LSF_FIX, of_nodes=not reader.has(JSRUN.rank[0]))
            return
    if not known and is_above(reader, LSF_SLOTS, 1):
        fix = f"pass {LSF_HOSTS[0][0]} too, these may be slots of one host; {LSF_FIX}"
        reader.sign(LSF_SLOTS, fix, of_nodes=False)
