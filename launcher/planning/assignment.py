"""Assigns GPUs, CPUs and network ports to each process of a plan. Pure: from the plan and the node's parts.

The convention is that of `launcher.planning.binding`: local rank N has the N-th visible GPU. Its ports are
those nearest to its GPU, or to its CPUs if it has no GPU; NCCL chooses among them itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.core.frozen import frozen
from launcher.core.model import Plan, PlannedProcess, Scope
from launcher.machine.gpus import VISIBLE, count_visible_gpus, name_visible_gpus
from launcher.machine.hardware import NEAREST, UNKNOWN, Hardware, Part, distance
from launcher.machine.infiniband import is_usable
from launcher.machine.nvml import NVIDIA, find_gpu


@frozen
class Assigned:
    """The devices and CPUs of one process.

    Attributes:
        rank, local_rank: Ranks as in the plan.
        gpus: Indices among the exposed GPUs; empty if it has none, or if they are unknown.
        cpus: CPUs that it is bound to; None if it is not bound.
        ports: Labels of the nearest usable ports.
        reach: Distance to these ports, as in the matrix; None without a port.
    """

    rank: int
    local_rank: int
    gpus: tuple[int, ...] = ()
    cpus: tuple[int, ...] | None = None
    ports: tuple[str, ...] = ()
    reach: str | None = None


def assign(
    plan: Plan, environ: Mapping[str, str], hardware: Hardware, gpus_each: int = 1
) -> tuple[Assigned, ...]:
    """Return the devices and CPUs of each process of a plan on this node.

    Args:
        plan: A plan for the same machine.
        environ: The environment that the processes inherit.
        hardware: The node's parts.
        gpus_each: Number of GPUs of each process.
    """
    names, assigned = name_visible_gpus(environ.get(VISIBLE), plan.machine.gpu_count), []
    # A platform that starts each process itself often exposes only that process's GPUs to it
    are_own = plan.allocation.scope is Scope.PROCESS and len(names) == gpus_each
    for process in plan.processes:
        first = process.local_rank * gpus_each
        own = names if are_own else names[first : first + gpus_each]
        found = (find_gpu(hardware.gpus, name) for name in own)
        gpus = tuple(dict.fromkeys(gpu.index for gpu in found if gpu is not None))
        origins = [part for part in hardware.parts if part.gpu is not None and part.gpu.index in gpus]
        reach, ports = nearest_ports(origins or _cpu_parts(process, hardware), hardware.parts)
        assigned.append(Assigned(process.rank, process.local_rank, gpus, process.cpus, ports, reach))
    return tuple(assigned)


def find_visible(environ: Mapping[str, str], hardware: Hardware) -> frozenset[int]:
    """Return the indices of the GPUs that CUDA_VISIBLE_DEVICES exposes, and of all other vendors' GPUs."""
    nvidia = [gpu for gpu in hardware.gpus if gpu.vendor == NVIDIA]
    others = [gpu.index for gpu in hardware.gpus if gpu.vendor != NVIDIA]
    listed = environ.get(VISIBLE)
    names = name_visible_gpus(listed, count_visible_gpus(len(nvidia), listed, [gpu.uuid for gpu in nvidia]))
    found = [gpu.index for gpu in (find_gpu(nvidia, name) for name in names) if gpu is not None]
    return frozenset((*found, *others))


def _cpu_parts(process: PlannedProcess, hardware: Hardware) -> list[Part]:
    """Return the NUMA nodes of the CPUs of a process without a GPU."""
    nodes = [node for node in hardware.nodes if node.number is not None]
    return [
        Part(f"NUMA{node.number}", numa_node=node.number)
        for node in nodes
        if process.cpus is not None and not set(node.cpus).isdisjoint(process.cpus)
    ]


def nearest_ports(origins: Sequence[Part], parts: Sequence[Part]) -> tuple[str | None, tuple[str, ...]]:
    """Return the distance to the nearest usable ports, and their labels; all if no distance is known."""
    usable = [part for part in parts if part.port is not None and is_usable(part.port)]
    far = {
        part.label: min((NEAREST.index(distance(origin, part)) for origin in origins), default=None)
        for part in usable
    }
    known = {label: step for label, step in far.items() if step is not None}
    if not known:
        return (UNKNOWN if usable else None), tuple(part.label for part in usable)
    least = min(known.values())
    return NEAREST[least], tuple(label for label, step in known.items() if step == least)
