"""The nodes of the job, from what each process says about itself."""

from __future__ import annotations

import socket

from launcher.bandwidth.expect import Ways, read_ways
from launcher.core.frozen import frozen
from launcher.machine.gpu_facts import find_nvlink_gbps
from launcher.machine.host import Host
from launcher.machine.nvml import read_gpu_facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


@frozen
class Member:
    """A node of the job.

    Attributes:
        name: Its hostname, followed by its index if several nodes have the same hostname.
        ranks: Ranks of its processes, ascending.
        gpu_count: Number of different GPUs that its processes can use with NCCL.
        ways: Hardware through which it can talk.
    """

    name: str
    ranks: tuple[int, ...]
    gpu_count: int
    ways: Ways


def describe_process(torch: Any, local_rank: int, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return facts about this process, for JSON; the first process of a node adds those of the node."""
    name = socket.gethostname()
    master = environ.get("MASTER_ADDR")
    return {
        "host": name,
        "node": environ.get("NODE_RANK") or environ.get("GROUP_RANK"),
        "gpus": name_gpus(torch, environ.get("CUDA_VISIBLE_DEVICES", "")),
        "ways": vars(read_node(Host(), environ, name, master)) if local_rank == 0 else None,
    }


def read_node(host: Host, environ: Mapping[str, str], name: str, master: str | None) -> Ways:
    """Return the hardware through which a node can talk. NVLinks come from NVML, which is slow: only here."""
    return read_ways(host, environ, name, master, lambda: find_nvlink_gbps(read_gpu_facts(host)))


def name_gpus(torch: Any, visible: str) -> list[str]:
    """Return names of the GPUs that this process can use with NCCL; a GPU has one name on its node."""
    if not (torch.cuda.is_available() and torch.distributed.is_nccl_available()):
        return []
    return [
        str(
            getattr(torch.cuda.get_device_properties(index), "uuid", f"{visible}:{index}")
        )  # from torch 2.4 on
        for index in range(torch.cuda.device_count())
    ]


def read_members(processes: Sequence[Mapping[str, Any]]) -> tuple[Member, ...]:
    """Return the nodes, in order of their first ranks.

    Processes with the same node index are on one node. If not all processes know their index, those with the
    same hostname are.

    Args:
        processes: The results of `describe_process`, by rank.
    """
    key = "node" if all(process["node"] is not None for process in processes) else "host"
    ranks: dict[str, list[int]] = {}
    for rank, process in enumerate(processes):
        ranks.setdefault(str(process[key]), []).append(rank)
    hosts = {label: str(processes[members[0]]["host"]) for label, members in ranks.items()}
    are_shared = len(set(hosts.values())) < len(hosts)
    return tuple(
        _read_member(f"{hosts[label]}:{label}" if are_shared else hosts[label], members, processes)
        for label, members in ranks.items()
    )


def _read_member(name: str, ranks: Sequence[int], processes: Sequence[Mapping[str, Any]]) -> Member:
    gpus = {gpu for rank in ranks for gpu in processes[rank]["gpus"]}
    told: Mapping[str, Any] = next((processes[r]["ways"] for r in ranks if processes[r]["ways"]), {})
    values: dict[str, Any] = {key: _freeze(value) for key, value in told.items()}
    values["name"] = name
    return Member(name, tuple(ranks), len(gpus), Ways(**values))


def _freeze(value: object) -> object:
    """Return a list as a tuple, which JSON turned into a list; any other value as it is."""
    return tuple(value) if isinstance(value, list) else value


def choose_backend(members: Sequence[Member]) -> str:
    """Return ``nccl`` if each process has a GPU of its own, else ``gloo``."""
    return "nccl" if all(member.gpu_count >= len(member.ranks) for member in members) else "gloo"


def list_units(members: Sequence[Member]) -> dict[str, tuple[int, ...]]:
    """Return what is measured in pairs, by name: the nodes, or the processes of a single node."""
    if len(members) > 1:
        return {member.name: member.ranks for member in members}
    return {f"rank {rank}": (rank,) for member in members for rank in member.ranks}
