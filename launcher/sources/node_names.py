"""Platforms that state three facts: the number of nodes, the index of this one, and the host of the first.

One table, one launcher per node. If the count or the index of a row is missing, the row's other variables are
signs (`launcher.sources.signs`).

Source: lws.sigs.k8s.io "Labels, annotations and environment variables"; beaker-docs.apps.allenai.org
"Environment variables"; dstack.ai "Distributed tasks"; docs.nvidia.com DGX Cloud Lepton "Environment
variables reference"; Metaflow `@parallel` (`parallel_decorator.py`); docs.runpod.io "Instant Clusters,
configuration reference".
"""

from __future__ import annotations

from launcher.core.environ import Reader
from launcher.core.frozen import frozen
from launcher.core.model import Fact, Scope, Trust
from launcher.core.mpi import STARTED

OF_A_PROCESS = ("RANK", "LOCAL_RANK", *STARTED)
"""If one of these is set, variables that users set too may have been passed on from another process."""
WORLD_SIZE = "WORLD_SIZE"


@frozen
class Names:
    """Names of one platform's variables for the nodes.

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


TABLE = (
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
    # RunPod, and users' own scripts; `torch_env` reads MASTER_ADDR
    Names("NUM_NODES", "NODE_RANK", gpus="NUM_TRAINERS", processes=True),
    Names("NNODES", "NODE_RANK", processes=True),
)


def read(reader: Reader) -> None:
    """Claim the facts of the first platform whose count and index are both set."""
    row = next((row for row in TABLE if reader.has(row.count) and reader.has(row.index)), None)
    if row is None:
        return
    is_common = row.processes and not (row.gpus and reader.has(row.gpus))
    if is_common and any(reader.has(name) for name in OF_A_PROCESS):
        return
    reader.starts = Scope.NODE
    count = reader.claim_int(Fact.NODE_COUNT, row.count, 1)
    reader.claim_int(Fact.NODE_RANK, row.index)
    if row.domain:
        _claim_first(reader, row)
    elif row.master:
        reader.claim_host(Fact.MASTER_ADDR, row.master, Trust.DERIVED)
    if row.processes and count is not None:
        _divide_world(reader, row, count)
    if row.gpus:
        reader.claim_int(Fact.PROCESSES_PER_NODE, row.gpus, 0, Trust.DERIVED)


def _claim_first(reader: Reader, row: Names) -> None:
    prefix, domain = reader.text(row.master), reader.text(row.domain)
    if prefix and domain:
        reader.claim(Fact.MASTER_ADDR, f"{prefix}-0.{domain}", f"{row.master}, {row.domain}", Trust.DERIVED)


def _divide_world(reader: Reader, row: Names, count: int) -> None:
    """Claim the number of processes per node if WORLD_SIZE is that of all nodes."""
    world, gpus = reader.integer(WORLD_SIZE, 1), reader.integer(row.gpus) if row.gpus else None
    if world is None or (world == count and not gpus):
        return  # a world size equal to the number of nodes may count nodes
    if gpus and world != count * gpus:
        reader.problem(
            "contradiction",
            f"{reader.origin(WORLD_SIZE)} but {reader.origin(row.count)} x {reader.origin(row.gpus)}",
            f"correct or unset {WORLD_SIZE} or {row.gpus}",
        )
    elif world % count:
        reader.problem(
            "contradiction",
            f"{reader.origin(WORLD_SIZE)} but {reader.origin(row.count)}: "
            "expected the same number of processes on each",
            f"correct or unset {WORLD_SIZE} or {row.count}",
        )
    else:
        reader.claim(
            Fact.PROCESSES_PER_NODE,
            world // count,
            f"{reader.origin(WORLD_SIZE)} / {reader.origin(row.count)}",
        )
