"""CPU binding: chooses the CPUs of each process on this node. Pure: the node is a `Layout`.

There are two modes. ``numa`` divides the cores of a NUMA node evenly among the processes with a GPU on that
node, so that memory, GPU and network card are near. ``core`` divides all cores evenly and contiguously in the
order of NUMA nodes. A physical core with all its hardware threads belongs to one process, unless there are
fewer cores than processes.

If a requested binding is impossible, the nearest possible one is used, with a note. A default binding is then
left out: unbound processes may be slower, but wrongly bound processes compete for the same CPUs.
"""

from __future__ import annotations

from itertools import pairwise

from launcher.core.frozen import frozen
from launcher.core.model import Binding, Core, Gpu, Layout
from launcher.core.mpi import STARTED_BY_MPI
from launcher.core.ranks import render_cpu_list
from launcher.inprocess.marker import is_worker
from launcher.machine.gpus import VISIBLE, name_visible_gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.frameworks.case import Case

    Shares = list[tuple[Core, ...]]

LEFT_ALONE = "processes are not bound to CPUs"
DIVIDED = "CPUs are divided evenly"


@frozen
class BindingRequest:
    """A request to bind processes.

    Attributes:
        mode: ``"numa"`` or ``"core"``.
        origin: The user's request, e.g. ``--bind numa``; None for the default.
        count: Number of processes on this node, None if unknown.
        gpus: The visible GPUs as CUDA_VISIBLE_DEVICES names them.
        gpus_each: Number of GPUs of each process.
        leaves_mask: Whether an mpirun made our own mask. It binds whatever it starts to one core, so that
            the CPUs of the cgroup count instead.
        keeps_mask: Whether this process's starter may have given it CPUs of its own, and others to its
            neighbours. Then a mask that is narrower than the cgroup's stays.
    """

    mode: str
    origin: str | None
    count: int | None
    gpus: tuple[str, ...] = ()
    gpus_each: int = 1
    leaves_mask: bool = False
    keeps_mask: bool = False


def plan_request(mode: str, case: Case) -> BindingRequest:
    """Return the request, with the treatment of the CPU mask that we inherited.

    All workers of torchrun have the mask of their agent, whatever started the agent.
    """
    given = case.options.get("bind")
    is_torchruns = not case.forks and is_worker(case.environ)
    is_mpi = any(name in case.environ for name in STARTED_BY_MPI)
    return BindingRequest(
        mode=mode,
        origin=given.origin if given else None,
        count=case.topology.local_size,
        gpus=name_visible_gpus(case.environ.get(VISIBLE), case.machine.gpu_count),
        gpus_each=int(case.options.number("gpus_per_process", 1)),
        leaves_mask=is_mpi and not is_torchruns,
        keeps_mask=not case.forks and not is_mpi and not is_torchruns,
    )


class _CannotBindError(Exception):
    """The reason why a binding is impossible; handled in this module."""


def plan_binding(request: BindingRequest, layout: Layout) -> Binding:
    """Return the cores of each process of this node."""
    try:
        cores = choose_cores(request, layout)
    except _CannotBindError as reason:
        return Binding(notes=(_note(request, LEFT_ALONE, reason),))
    count = request.count or 1
    cpu_count = sum(len(core.cpus) for core in cores)
    notes: tuple[str, ...] = ()
    try:
        if len(cores) < count:
            raise _CannotBindError(f"there are cores for {len(cores)} of {count} processes")
        if request.mode == "numa":
            nodes = [_wanted_nodes(request, layout.gpus, cores, place) for place in range(count)]
            return Binding("numa", tuple(divide_by_node(cores, nodes)), cpu_count)
    except _CannotBindError as reason:
        if request.origin is None:
            return Binding(notes=(_note(request, LEFT_ALONE, reason),))
        notes = (_note(request, DIVIDED, reason),)
    return Binding("core", tuple(divide(cores, count)), cpu_count, notes)


def _note(request: BindingRequest, outcome: str, reason: Exception) -> str:
    return f"{request.origin}: {outcome}: {reason}" if request.origin else f"{outcome}: {reason}"


def choose_cores(request: BindingRequest, layout: Layout) -> tuple[Core, ...]:
    """Return the cores to divide, without the CPUs that we may not use."""
    own, cpuset = frozenset(layout.own), frozenset(layout.cpuset or layout.own)
    if request.count is None:
        raise _CannotBindError("how many processes this node runs is unknown")
    if request.keeps_mask and own < cpuset:
        raise _CannotBindError(f"this process is bound to CPUs {render_cpu_list(own)} already")
    allowed = cpuset if request.leaves_mask else own
    cores = [Core(tuple(cpu for cpu in core.cpus if cpu in allowed), core.node) for core in layout.cores]
    if not any(core.cpus for core in cores):
        raise _CannotBindError("which cores this node has is unknown")
    return tuple(core for core in cores if core.cpus)


def divide(cores: Sequence[Core], count: int) -> Shares:
    """Return equal shares of neighbouring cores, one per process.

    With fewer cores than processes CPUs are divided instead, each as if it were a core. With fewer CPUs than
    processes they share CPUs.
    """
    if len(cores) < count:
        cores = [Core((cpu,), core.node) for core in cores for cpu in core.cpus]
    starts = [place * len(cores) // count for place in range(count + 1)]
    return [tuple(cores[start : max(end, start + 1)]) for start, end in pairwise(starts)]


def divide_by_node(cores: Sequence[Core], nodes: Sequence[frozenset[int | None]]) -> Shares:
    """Return shares of the cores of each process's own nodes.

    Args:
        cores: All cores, in the order of NUMA nodes.
        nodes: The NUMA nodes of each process. A process with several gets a share of each that has cores.
    """
    shares: Shares = [() for _ in nodes]
    for node in dict.fromkeys(core.node for core in cores):
        here = [core for core in cores if core.node == node]
        claimants = [place for place, wanted in enumerate(nodes) if node in wanted]
        if len(here) < len(claimants):
            found = f"{len(here)} of {len(claimants)} processes"
            raise _CannotBindError(f"NUMA node {node} has cores for {found}")
        for place, share in zip(claimants, divide(here, len(claimants)) if claimants else (), strict=True):
            shares[place] += share
    return shares


def _wanted_nodes(
    request: BindingRequest, gpus: Sequence[Gpu], cores: Sequence[Core], place: int
) -> frozenset[int | None]:
    """Return the NUMA nodes of one process's GPUs, at least one with CPUs that we may use."""
    present = frozenset(core.node for core in cores)
    if len(present) == 1:
        return present  # our cores are on one node only, whatever node the GPU reports
    names = request.gpus[place * request.gpus_each : (place + 1) * request.gpus_each]
    if len(names) < request.gpus_each:
        each = f" of {request.gpus_each} each" if request.gpus_each > 1 else ""
        visible = f"{len(request.gpus)} visible GPUs for {request.count} processes{each}"
        raise _CannotBindError(visible if request.gpus else "there is no GPU")
    nodes = frozenset(_find_node(gpus, name) for name in names)
    if None in nodes:
        raise _CannotBindError(f"the NUMA node of GPU {', '.join(names)} is unknown")
    if not nodes & present:
        raise _CannotBindError(f"none of our CPUs is on the NUMA node of GPU {', '.join(names)}")
    return nodes


def _find_node(gpus: Sequence[Gpu], name: str) -> int | None:
    """Return the NUMA node of a GPU that CUDA_VISIBLE_DEVICES names by index or UUID prefix; None if unknown.

    Only NVML knows the GPU of a MIG instance, except for the older form MIG-GPU-<uuid>/1/0. If all GPUs are
    on one node, this does not matter.
    """
    if name.isdecimal():
        place = int(name[:9])
        meant = [gpus[place]] if place < len(gpus) else []
    else:
        uuid = name.removeprefix("MIG-").partition("/")[0].lower()
        meant = [gpu for gpu in gpus if gpu.uuid and gpu.uuid.lower().startswith(uuid)]
    nodes = {gpu.node for gpu in meant or gpus}
    return nodes.pop() if len(nodes) == 1 else None
