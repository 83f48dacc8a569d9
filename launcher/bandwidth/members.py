"""The members: what each process says of itself, and the nodes that follow from it."""

from __future__ import annotations

import socket

from launcher.bandwidth.expect import Ways, read_ways
from launcher.core.errors import HardwareMissing, Problem
from launcher.core.frozen import frozen
from launcher.machine.gpu_facts import find_nvlink_gbps
from launcher.machine.host import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


@frozen
class Member:
    """A node of the job.

    Attributes:
        name: Its hostname, with its index behind it where several nodes share one.
        ranks: Of its processes, ascending.
        gpu_count: Different GPUs that its processes can use with NCCL.
        ways: What it has to talk through.
    """

    name: str
    ranks: tuple[int, ...]
    gpu_count: int
    ways: Ways


def describe_process(torch: Any, local_rank: int, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what the others must know of this process, for JSON; the first one of a node reads the node."""
    name = socket.gethostname()
    master = environ.get("MASTER_ADDR")
    return {
        "host": name,
        "node": environ.get("NODE_RANK") or environ.get("GROUP_RANK"),
        "gpus": name_gpus(torch, environ.get("CUDA_VISIBLE_DEVICES", "")),
        "ways": vars(read_node(Host(), environ, name, master)) if local_rank == 0 else None,
    }


def read_node(host: Host, environ: Mapping[str, str], name: str, master: str | None) -> Ways:
    """Return what a node has to talk through, its NVLinks by NVML: slow, and so only here."""
    return read_ways(host, environ, name, master, lambda: find_nvlink_gbps(host.gpu_facts()))


def name_gpus(torch: Any, visible: str) -> list[str]:
    """Return the GPUs that this process can use with NCCL, by what they are called on their node."""
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

    A node is what has an index of its own; where not all processes know theirs, what has a hostname.

    Args:
        processes: What `describe_process` gave, by rank.
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
    """Make a tuple again of what JSON has made a list of."""
    return tuple(value) if isinstance(value, list) else value


def choose_backend(asked: str, members: Sequence[Member]) -> str:
    """Return ``nccl`` where each process has a GPU of its own, else ``gloo``.

    Args:
        asked: ``auto``, or which one it must be.
        members: All nodes.

    Raises:
        HardwareMissing: NCCL was asked for, and a node has not enough GPUs for it.
    """
    short = [
        f"{member.name} has {member.gpu_count} for {len(member.ranks)} processes"
        for member in members
        if member.gpu_count < len(member.ranks)
    ]
    if asked == "nccl" and short:
        what = f"--backend nccl: expected a GPU, and a torch with NCCL, for each process; {'; '.join(short)}"
        fix = "give the containers their GPUs (docker run --gpus all), or --backend gloo"
        raise HardwareMissing(Problem("no-gpu", what, "command line", fix))
    return "gloo" if asked == "gloo" or short else "nccl"


def list_units(members: Sequence[Member]) -> dict[str, tuple[int, ...]]:
    """Return what is measured in pairs, by name: the nodes; of a single node its processes."""
    if len(members) > 1:
        return {member.name: member.ranks for member in members}
    return {f"rank {rank}": (rank,) for member in members for rank in member.ranks}
