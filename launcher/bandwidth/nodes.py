"""The nodes of the job, from what each process reports about itself."""

from __future__ import annotations

import socket

from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


@frozen
class MeasuredNode:
    """A node of the job.

    Attributes:
        name: Its hostname, followed by its index if several nodes have the same hostname.
        ranks: Ranks of its processes, ascending.
        gpu_count: Number of different GPUs that its processes can use with NCCL.
        port_gbps: Rate of each port that NCCL can use, the highest first.
        port_kind: ``InfiniBand``, or ``RDMA`` for RoCE and EFA.
        nvlink_gbps: Total rate of a GPU's NVLinks in one direction.
        hints: What keeps NCCL on this node from its ports or NVLinks.
    """

    name: str
    ranks: Sequence[int] = (0,)
    gpu_count: int = 0
    port_gbps: Sequence[float] = ()
    port_kind: str = "InfiniBand"
    nvlink_gbps: float | None = None
    hints: Sequence[str] = ()


def describe_process(
    torch: Any, environ: Mapping[str, str], ways: Mapping[str, object] | None
) -> dict[str, Any]:
    """Return facts about this process, for JSON; the first process of a node adds its hardware."""
    has_nccl = torch.cuda.is_available() and torch.distributed.is_nccl_available()
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    return {
        "host": socket.gethostname(),
        "node": environ.get("NODE_RANK") or environ.get("GROUP_RANK"),
        "gpus": [f"{visible}:{index}" for index in range(torch.cuda.device_count() if has_nccl else 0)],
        "ways": ways,
    }


def read_nodes(processes: Sequence[Mapping[str, Any]]) -> tuple[MeasuredNode, ...]:
    """Return the nodes, in order of their first ranks.

    Processes with the same node index are on one node. If not all processes know their index, those with the
    same hostname are.

    Args:
        processes: The results of `describe_process`, by rank.
    """
    key = "node" if all(process["node"] is not None for process in processes) else "host"
    ranks: dict[str, list[int]] = {}
    for rank, process in enumerate(processes):
        ranks.setdefault(process[key], []).append(rank)
    hosts = {label: processes[members[0]]["host"] for label, members in ranks.items()}
    are_shared = len(set(hosts.values())) < len(hosts)
    nodes = []
    for label, members in ranks.items():
        gpus = {gpu for rank in members for gpu in processes[rank]["gpus"]}
        ways: Mapping[str, Any] = next(
            (processes[rank]["ways"] for rank in members if processes[rank]["ways"]), {}
        )
        name = f"{hosts[label]}:{label}" if are_shared else hosts[label]
        nodes.append(MeasuredNode(name, members, len(gpus), **ways))
    return tuple(nodes)


def choose_backend(nodes: Sequence[MeasuredNode]) -> str:
    """Return ``nccl`` if each process has a GPU of its own, else ``gloo``."""
    return "nccl" if all(node.gpu_count >= len(node.ranks) for node in nodes) else "gloo"


def list_units(nodes: Sequence[MeasuredNode]) -> dict[str, Sequence[int]]:
    """Return what is measured in pairs, by name: the nodes, or the processes of a single node."""
    if len(nodes) > 1:
        return {node.name: node.ranks for node in nodes}
    return {f"rank {rank}": (rank,) for node in nodes for rank in node.ranks}
