"""The variables of PyTorch's ``env://`` contract, set by a platform (Azure ML PyTorch) or a user.

RANK and WORLD_SIZE count processes; or nodes, if the platform starts one launcher per node (Azure ML's
default). Which of the two is decided by comparing sizes, not here. But some platforms are known to count
nodes: then their own sources read these two variables.

PET_* are variables for a torchrun that is started once per node (Kubeflow Trainer sets them): each flag of
torchrun can be given as ``PET_<DEST>``; we are started in torchrun's place. Flags that state no fact of the
job (PET_MAX_RESTARTS, PET_RDZV_BACKEND, ...) are read as flags by `launcher.options.reading.read_options`.

Source: pytorch.org "Environment variable initialization"; Azure ML "Distributed GPU training guide";
deepspeed `launcher/launch.py`; torch/distributed/argparse_util.py; kubeflow/trainer
pkg/runtime/framework/plugins/torch.
"""

from __future__ import annotations

from launcher.core.environ import MEETS_AT_MASTER, parse_host_port, parse_int, parse_nodes
from launcher.core.model import COUNT_WORDS, Fact, Scope, Trust
from launcher.sources import MARKERS, launched
from launcher.sources.reader import Reader

RANK, WORLD_SIZE, LOCAL_RANK, NODE_RANK, MASTER_ADDR, MASTER_PORT = MARKERS["torch_env"]
ALIBABA_PAI, TENCENT = MARKERS["alibaba_pai"]
KUBEFLOW, VERTEX_AI, VOLCANO = "PET_NNODES", "CLUSTER_SPEC", "VC_"
_, PET_RANK, PET_ADDR, RDZV_ENDPOINT, STANDALONE, NPROC_PER_NODE = AGENT = MARKERS["torch_agent"]
PET_PORT = "PET_MASTER_PORT"
PODS = ("KUBERNETES_SERVICE_HOST", "RUNAI_NUM_OF_GPUS", PET_RANK, PET_ADDR, PET_PORT, NPROC_PER_NODE)
DEEPSPEED = {"CROSS_RANK": Fact.NODE_RANK, "CROSS_SIZE": Fact.NODE_COUNT, "LOCAL_SIZE": Fact.LOCAL_SIZE}
"""Variables that DeepSpeed's launcher adds to the contract in every process."""
GROUP_RANK = "GROUP_RANK"
"""torchrun's index of the node. Ranks are in the order of nodes: on node 0, RANK is LOCAL_RANK."""
BY_TORCHRUN = (GROUP_RANK, "ROLE_RANK")
"""Variables that torchrun sets in every process; it sets no NODE_RANK."""
OF_A_PROCESS = (LOCAL_RANK, GROUP_RANK, "GROUP_WORLD_SIZE")


def counts_nodes(reader: Reader) -> str:
    """Return what shows that RANK and WORLD_SIZE count nodes here: a variable, or a prefix of several.

    It is empty if they count processes, or if nothing tells. Each answer has one source that reads them.
    """
    is_of_process = reader.has(*OF_A_PROCESS) or (reader.text("LOCAL_WORLD_SIZE") or "1") != "1"
    is_default = reader.text(WORLD_SIZE) == "1" and reader.text(RANK) in (None, "0")  # an image's, perhaps
    if is_of_process or is_default or not reader.has(RANK, WORLD_SIZE):
        return ""
    volcano = any(reader.matching(VOLCANO, end) for end in ("_HOSTS", "_NUM", "_INDEX"))
    # Other platforms set these names too; only with RANK, which these always set, do they count
    with_rank = (ALIBABA_PAI, TENCENT, *PODS) if reader.has(RANK) else ()
    return reader.first(KUBEFLOW, VERTEX_AI) or (VOLCANO if volcano else reader.first(*with_rank) or "")


def read(reader: Reader) -> None:
    """Claim the contract, but not RANK and WORLD_SIZE on a platform that counts nodes with them."""
    if launched.is_left_over(reader):
        return
    is_process = all(map(reader.has, (RANK, WORLD_SIZE, LOCAL_RANK)))
    is_sealed = launched.is_worker(reader)
    if not counts_nodes(reader):
        is_of_node = is_process and not is_sealed
        reader.claim_process(launched.NAMES[: 6 if is_of_node else 4])
        if is_of_node and all(map(reader.has, DEEPSPEED)):
            reader.claim_numbers((fact, name) for name, fact in DEEPSPEED.items())
    if is_sealed or not (is_process and reader.has(*BY_TORCHRUN)):
        reader.claim_int(Fact.NODE_RANK, NODE_RANK)  # else it is about what started torchrun
    rank, local, group = map(reader.integer, (RANK, LOCAL_RANK, GROUP_RANK))
    if None not in (rank, local, group) and not is_sealed and (rank == local) != (group == 0):
        reader.contradict(GROUP_RANK, RANK, f"{reader.origin(RANK)} with {reader.origin(LOCAL_RANK)}")
    reader.claim_host(Fact.MASTER_ADDR, MASTER_ADDR)
    reader.claim_int(Fact.MASTER_PORT, MASTER_PORT)


def read_nodes(reader: Reader) -> None:
    """Claim the node rank, the number of nodes, and the processes of each node.

    RANK and WORLD_SIZE count nodes in a PyTorch job on Alibaba's PAI (DLC), Baidu's AIHC or Tencent's TI-ONE:
    the master is 0, worker i is i + 1. NPROC_PER_NODE (TI-ONE: GPU_NUM_PER_NODE) beside them identifies
    these platforms. On other platforms users set these names too, so without RANK they mean nothing.
    """
    if counts_nodes(reader) in (ALIBABA_PAI, TENCENT):
        reader.starts = Scope.NODE
        reader.claim_numbers(((Fact.NODE_RANK, RANK), (Fact.NODE_COUNT, WORLD_SIZE)))
        reader.claim_int(Fact.PROCESSES_PER_NODE, ALIBABA_PAI, 1)
        reader.claim_int(Fact.PROCESSES_PER_NODE, TENCENT, trust=Trust.DERIVED)
        return
    each, *numbers = map(reader.integer, (ALIBABA_PAI, RANK, WORLD_SIZE, NODE_RANK))
    rank, world, node = numbers
    if rank is None or not world or node is None or not each or world % each or not reader.has(LOCAL_RANK):
        return
    if node not in (rank // each, rank % (world // each)):  # node by node, or one on each node in turn
        reader.contradict(NODE_RANK, RANK, f"{reader.origin(RANK)} with {reader.origin(ALIBABA_PAI)}")


def read_agent(reader: Reader) -> None:
    """Claim one worker group per node, as torchrun's own flags in PET_* state it."""
    # An address alone may be of another job, and so may a node rank beside a process's local rank
    alone = (PET_ADDR, PET_RANK) if reader.has(LOCAL_RANK) else (PET_ADDR,)
    if reader.has(*(name for name in AGENT if name not in alone)):
        reader.starts = Scope.NODE
    if reader.text(STANDALONE) == "1":
        reader.claim(Fact.NODE_COUNT, 1, STANDALONE)
        reader.claim(Fact.NODE_RANK, 0, STANDALONE)
    else:
        # "2", "2:2" (a fixed job) or "1:4" (elastic: the number of nodes is not known before the start)
        nodes = reader.parsed(KUBEFLOW, parse_nodes)
        if nodes is not None:
            reader.claim(Fact.NODE_COUNT if isinstance(nodes, int) else Fact.NODE_RANGE, nodes, KUBEFLOW)
        reader.claim_int(Fact.NODE_RANK, PET_RANK)
    reader.claim_parsed(
        Fact.PROCESSES_PER_NODE,
        NPROC_PER_NODE,
        lambda text: text if text in COUNT_WORDS else parse_int(text, 1),
    )
    reader.claim_host(Fact.MASTER_ADDR, PET_ADDR)
    reader.claim_int(Fact.MASTER_PORT, PET_PORT)
    if reader.has(RDZV_ENDPOINT) and (reader.text("PET_RDZV_BACKEND") or "static") in MEETS_AT_MASTER:
        # host[:port] of the rendezvous; by convention node 0 of a fixed job, and port 0 for a free one
        host, port = reader.parsed(RDZV_ENDPOINT, lambda text: parse_host_port(text, 0)) or (None, None)
        for fact, value in ((Fact.MASTER_ADDR, host), (Fact.MASTER_PORT, port)):
            if value is not None:
                reader.claim(fact, value, RDZV_ENDPOINT, Trust.DERIVED)
