"""Which GPU, CPUs and network ports each process of a plan has: pure, from the plan and the parts of a node.

By the same convention as `launcher.planning.binding`: local rank N has the N-th visible GPU. The ports are
those that its GPU, or without one its CPUs, are nearest to; NCCL chooses among them itself.
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.model import Plan, Process, Scope
from launcher.machine.gpu_facts import NVIDIA, find_gpu
from launcher.machine.gpus import count_visible_gpus, name_visible_gpus
from launcher.machine.hardware import Hardware, Part, distance
from launcher.machine.infiniband import is_usable
from launcher.machine.pci import NEAREST, UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VISIBLE = "CUDA_VISIBLE_DEVICES"


@frozen
class Assigned:
    """What one process has.

    Attributes:
        rank, local_rank: As in the plan.
        gpus: Indices among the exposed GPUs; empty without one, or if it cannot be told which.
        cpus: Those it is bound to; None if it is left alone.
        ports: Labels of the usable ports nearest to it.
        reach: How far these are, as in the matrix; None without one.
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
    """Return what each process of a plan has on this node.

    Args:
        plan: As made from the same machine.
        environ: What the processes inherit.
        hardware: The node's parts.
        gpus_each: GPUs of each process.
    """
    names = name_visible_gpus(environ.get(VISIBLE), plan.machine.gpu_count)
    return tuple(
        _assign(process, _own_names(plan, process, names, gpus_each), hardware) for process in plan.processes
    )


def find_visible(environ: Mapping[str, str], hardware: Hardware) -> frozenset[int]:
    """Return the indices of the GPUs that CUDA_VISIBLE_DEVICES leaves; AMD's are no matter of CUDA."""
    nvidia = [gpu for gpu in hardware.gpus if gpu.vendor == NVIDIA]
    others = [gpu.index for gpu in hardware.gpus if gpu.vendor != NVIDIA]
    listed = environ.get(VISIBLE)
    names = name_visible_gpus(listed, count_visible_gpus(len(nvidia), listed))
    found = [gpu.index for gpu in (find_gpu(nvidia, name) for name in names) if gpu is not None]
    return frozenset((*found, *others))


def _own_names(plan: Plan, process: Process, names: tuple[str, ...], each: int) -> tuple[str, ...]:
    """Return its GPUs as CUDA_VISIBLE_DEVICES names them.

    A platform that starts each process itself often shows it no GPU but its own.
    """
    if plan.allocation.scope is Scope.PROCESS and len(names) == each:
        return names
    return names[process.local_rank * each : (process.local_rank + 1) * each]


def _assign(process: Process, names: Sequence[str], hardware: Hardware) -> Assigned:
    found = [gpu for gpu in (find_gpu(hardware.gpus, name) for name in names) if gpu is not None]
    gpus = tuple(dict.fromkeys(gpu.index for gpu in found))
    origins = [part for part in hardware.parts if part.gpu is not None and part.gpu.index in gpus]
    reach, ports = nearest_ports(origins or _cpu_parts(process, hardware), hardware.parts)
    return Assigned(process.rank, process.local_rank, gpus, process.cpus, ports, reach)


def _cpu_parts(process: Process, hardware: Hardware) -> list[Part]:
    """Return where a process without a GPU computes: the NUMA nodes of its CPUs."""
    nodes = [node for node in hardware.nodes if node.number is not None]
    return [
        Part(f"NUMA{node.number}", numa_node=node.number)
        for node in nodes
        if process.cpus is not None and not set(node.cpus).isdisjoint(process.cpus)
    ]


def nearest_ports(origins: Sequence[Part], parts: Sequence[Part]) -> tuple[str | None, tuple[str, ...]]:
    """Return how far the nearest usable ports are, and which these are; all if no distance is known."""
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
