"""Platforms that are names of variables: a row each, and one reader for all of them.

In `PLATFORMS` is a row per source. In `NODES` are platforms that start one launcher on each node and state
three facts: the number of nodes, the index of this one, and the host of the first (source ``node_names``). If
the count or the index of such a row is missing, its other variables are signs (`launcher.sources.signs`).

- MVAPICH2's mpirun_rsh names neither node nor host. Versions 3 and newer start through Hydra.
- PALS: mpiexec on HPE's PBS systems, or Slurm's plugin that sets the same variables. PMI states the size.
- Flux gives a task (``flux run``, ``flux submit``) neither its node nor any host; only its commands know
  these. The initial program of a batch job has none of these variables.
- SkyPilot runs a task once per node; its addresses are one per line, the head node's first.

Source: MVAPICH2 user guide (MV2_COMM_WORLD_*); HPE pals.h (2023), slurm src/plugins/mpi/cray_shasta,
openpmix/prrte src/mca/ess/pals; flux-run(1), flux-core src/shell/task.c; docs.skypilot.co "Environment
variables"; lws.sigs.k8s.io "Labels, annotations and environment variables"; beaker-docs.apps.allenai.org
"Environment variables"; dstack.ai "Distributed tasks"; docs.nvidia.com DGX Cloud Lepton "Environment
variables reference"; Metaflow `@parallel` (`parallel_decorator.py`); docs.runpod.io "Instant Clusters,
configuration reference"; tencentcloud.com BatchCompute "Environment variables" (document 599/11752).
"""

from __future__ import annotations

from launcher.core.environ import Reader
from launcher.core.frozen import frozen
from launcher.core.model import Fact, Scope, Trust
from launcher.core.mpi import FLUX, MVAPICH, PALS, STARTED, Family

OF_A_PROCESS = ("RANK", "LOCAL_RANK", *STARTED)
"""If one of these is set, variables that users set too may have been passed on from another process."""
WORLD_SIZE = "WORLD_SIZE"


@frozen
class Names:
    """The variables of a platform.

    Attributes:
        family: The starter whose ranks and sizes are stated; None for one launcher on each node.
        node_rank: Index of the node.
        node_count: Number of nodes.
        local_size: A second name of the processes on this node.
        local_rank: A second name of the local rank, which must agree.
        hosts: Hosts of the nodes, separated by blanks, the first one the master.
        gpus: GPUs per node.
        note: What to do if not all processes are on this node, for a platform that names no host.
    """

    family: Family | None = None
    node_rank: str = ""
    node_count: str = ""
    local_size: str = ""
    local_rank: str = ""
    hosts: str = ""
    gpus: str = ""
    note: str = ""


PLATFORMS = {
    "mvapich": Names(MVAPICH),
    "pals": Names(
        PALS,
        "PALS_NODEID",
        local_size="PMI_LOCAL_SIZE",
        local_rank="PMI_LOCAL_RANK",
        note="PALS does not tell processes where rank 0 runs: "
        "export MASTER_ADDR=$(head -n 1 $PBS_NODEFILE) before mpiexec",
    ),
    "flux": Names(
        FLUX,
        node_count="FLUX_JOB_NNODES",
        note="Flux does not tell its tasks any host: "
        'pass --master-addr "$(flux hostlist -n 0 local)", or set MASTER_ADDR',
    ),
    "skypilot": Names(
        node_rank="SKYPILOT_NODE_RANK",
        node_count="SKYPILOT_NUM_NODES",
        hosts="SKYPILOT_NODE_IPS",
        gpus="SKYPILOT_NUM_GPUS_PER_NODE",
    ),
}


@frozen
class Node:
    """Names of the variables for the nodes of a platform that starts one launcher on each.

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
    Node("LWS_GROUP_SIZE", "LWS_WORKER_INDEX", "LWS_LEADER_ADDRESS"),
    Node("BEAKER_REPLICA_COUNT", "BEAKER_REPLICA_RANK", "BEAKER_LEADER_REPLICA_HOSTNAME"),
    Node("DSTACK_NODES_NUM", "DSTACK_NODE_RANK", "DSTACK_MASTER_NODE_IP", gpus="DSTACK_GPUS_PER_NODE"),
    Node(
        "LEPTON_JOB_TOTAL_WORKERS",
        "LEPTON_JOB_WORKER_INDEX",
        "LEPTON_JOB_WORKER_PREFIX",
        "LEPTON_SUBDOMAIN",
        "LEPTON_RESOURCE_ACCELERATOR_NUM",
    ),
    Node("MF_PARALLEL_NUM_NODES", "MF_PARALLEL_NODE_INDEX", "MF_PARALLEL_MAIN_IP"),
    Node("BATCH_TASK_INSTANCE_NUM", "BATCH_TASK_INSTANCE_INDEX"),
    # RunPod, and users' own scripts; `torch_env` reads MASTER_ADDR
    Node("NUM_NODES", "NODE_RANK", gpus="NUM_TRAINERS", processes=True),
    Node("NNODES", "NODE_RANK", processes=True),
)
NODE_MARKERS = tuple(name for row in NODES for name in (row.count, row.master) if name)


def read(reader: Reader) -> None:
    """Claim what the variables of a platform state."""
    names = PLATFORMS[reader.source]
    size, local_rank, local_size = None, None, None
    if names.family is None:
        reader.starts = Scope.NODE
    else:
        _, size, local_rank, local_size = reader.claim_numbers(names.family.numbers())
        reader.confirm(names.local_rank, local_rank, names.family.local_rank)
        other = reader.claim_int(Fact.LOCAL_SIZE, names.local_size)
        local_size = local_size or other
    reader.claim_int(Fact.NODE_RANK, names.node_rank)
    nodes = reader.claim_int(Fact.NODE_COUNT, names.node_count)
    reader.claim_hosts(reader.hosts(names.hosts, None), names.hosts, master=Trust.DERIVED)
    reader.claim_int(Fact.PROCESSES_PER_NODE, names.gpus, trust=Trust.DERIVED)
    if names.family and size and nodes and nodes in (1, size):  # every node in the count has a task
        local_size = size // nodes
        origin = f"{names.family.size}={size}, {names.node_count}={nodes}"
        reader.claim(Fact.LOCAL_SIZE, local_size, origin, Trust.DERIVED)
    if names.note and size != local_size:
        reader.note(names.note)


def read_node(reader: Reader) -> None:
    """Claim the facts of the first platform in `NODES` whose count and index are both set."""
    row = next((row for row in NODES if reader.has(row.count) and reader.has(row.index)), None)
    if row is None:
        for row in NODES:
            _claim_first(reader, row)
        return
    is_common = row.processes and not (row.gpus and reader.has(row.gpus))
    if is_common and any(reader.has(name) for name in OF_A_PROCESS):
        return
    reader.starts = Scope.NODE
    count = reader.claim_int(Fact.NODE_COUNT, row.count)
    reader.claim_int(Fact.NODE_RANK, row.index)
    _claim_first(reader, row)
    if row.processes and count is not None:
        _divide_world(reader, row, count)
    reader.claim_int(Fact.PROCESSES_PER_NODE, row.gpus, trust=Trust.DERIVED)


def _claim_first(reader: Reader, row: Node) -> None:
    if not row.domain:
        reader.claim_host(Fact.MASTER_ADDR, row.master, Trust.DERIVED)
        return
    prefix, domain = reader.text(row.master), reader.text(row.domain)
    if prefix and domain:
        reader.claim(Fact.MASTER_ADDR, f"{prefix}-0.{domain}", f"{row.master}, {row.domain}", Trust.DERIVED)


def _divide_world(reader: Reader, row: Node, count: int) -> None:
    """Claim the number of processes per node if WORLD_SIZE is that of all nodes."""
    world, gpus = reader.integer(WORLD_SIZE, 1), reader.integer(row.gpus)
    if world is None or (world == count and not gpus):
        return  # a world size equal to the number of nodes may count nodes
    if gpus and world != count * gpus:
        what, other = f"{reader.origin(row.count)} x {reader.origin(row.gpus)}", row.gpus
    elif world % count:
        what, other = f"{reader.origin(row.count)}: expected the same number of processes on each", row.count
    else:
        origin = f"{reader.origin(WORLD_SIZE)} / {reader.origin(row.count)}"
        reader.claim(Fact.PROCESSES_PER_NODE, world // count, origin)
        return
    reader.contradict(WORLD_SIZE, other, what)
