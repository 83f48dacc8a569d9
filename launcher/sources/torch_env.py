"""The variables of PyTorch's ``env://`` contract, set by a platform (Azure ML PyTorch) or a user.

RANK and WORLD_SIZE count processes; or nodes, if the platform starts one launcher per node (Azure ML's
default). Which of the two is decided by comparing sizes, not here. But some platforms are known to count
nodes: then their own sources read these two variables.

Source: pytorch.org "Environment variable initialization"; Azure ML "Distributed GPU training guide";
deepspeed `launcher/launch.py`.
"""

from __future__ import annotations

from launcher.core.model import Fact, Scope, Trust
from launcher.sources import MARKERS, launched
from launcher.sources.reader import Reader

RANK, WORLD_SIZE, LOCAL_RANK, NODE_RANK, MASTER_ADDR, MASTER_PORT = MARKERS["torch_env"]
ALIBABA_PAI, TENCENT = MARKERS["alibaba_pai"]
KUBEFLOW, VERTEX_AI, VOLCANO = "PET_NNODES", "CLUSTER_SPEC", "VC_"
PETS = ("PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NPROC_PER_NODE")
PODS = ("KUBERNETES_SERVICE_HOST", "RUNAI_NUM_OF_GPUS", *PETS)
TORCHRUN = ((Fact.NODE_RANK, "GROUP_RANK"), (Fact.NODE_COUNT, "GROUP_WORLD_SIZE"))
DEEPSPEED = ((Fact.NODE_RANK, "CROSS_RANK"), (Fact.NODE_COUNT, "CROSS_SIZE"), (Fact.LOCAL_SIZE, "LOCAL_SIZE"))
"""Variables that torchrun, and DeepSpeed's launcher, add to the contract in every process."""
BY_TORCHRUN = ("GROUP_RANK", "ROLE_RANK")
"""Variables that torchrun sets in every process; it sets no NODE_RANK."""
OF_A_PROCESS = (LOCAL_RANK, "GROUP_RANK", "GROUP_WORLD_SIZE")


def counts_nodes(reader: Reader) -> str:
    """Return what shows that RANK and WORLD_SIZE count nodes here: a variable, or a prefix of several.

    It is empty if they count processes, or if nothing tells. Each answer has one source that reads them.
    """
    if reader.has(*OF_A_PROCESS) or (reader.text("LOCAL_WORLD_SIZE") or "1") != "1":
        return ""
    if not (reader.has(RANK) or reader.has(WORLD_SIZE)):
        return ""
    if reader.text(WORLD_SIZE) == "1" and reader.text(RANK) in (None, "0"):
        return ""  # an image's defaults look the same and prove nothing
    for name in (KUBEFLOW, VERTEX_AI):
        if reader.has(name):
            return name
    if any(reader.matching(VOLCANO, end) for end in ("_HOSTS", "_NUM", "_INDEX")):
        return VOLCANO
    # Other platforms set these names too; only with RANK, which these always set, do they count
    return next((name for name in (ALIBABA_PAI, TENCENT, *PODS) if reader.has(name) and reader.has(RANK)), "")


def read(reader: Reader) -> None:
    """Claim the contract, but not RANK and WORLD_SIZE on a platform that counts nodes with them."""
    if launched.is_left_over(reader):
        return
    is_process = all(reader.has(name) for name in (RANK, WORLD_SIZE, LOCAL_RANK))
    is_sealed = launched.is_worker(reader)
    if not counts_nodes(reader):
        reader.claim_process((RANK, WORLD_SIZE, LOCAL_RANK, "LOCAL_WORLD_SIZE"))
        if is_process and not is_sealed:
            reader.claim_numbers(TORCHRUN)
            if all(reader.has(name) for _, name in DEEPSPEED):
                reader.claim_numbers(DEEPSPEED)
    if is_sealed or not (is_process and reader.has(*BY_TORCHRUN)):
        reader.claim_int(Fact.NODE_RANK, NODE_RANK)  # else it is about what started torchrun
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
