"""Checks the health of GPUs: one that is throttled, or lacks links or spare memory rows, slows all ranks.

Source: NVIDIA NVML API reference (clock event reasons, row remapper); NVIDIA "GPU Memory Error
Management" (when to reset and when to replace a GPU).
"""

from __future__ import annotations

from launcher.checks.case import CheckedNode
from launcher.checks.finding import Findings, fail, ok, render_count, warn
from launcher.machine.gpu_facts import GpuFacts
from launcher.machine.hardware import count_switched
from launcher.machine.nvml import read_gpu_facts

SLOWED = frozenset(("hardware slowdown", "hot (software)", "hot (hardware)", "power brake"))
"""Reasons for low clocks that are a fault of the node. A GPU at its power cap is not faulty."""


def look(case: CheckedNode) -> Findings:
    """Check the facts that NVML reports about each GPU, and compare the GPUs with each other."""
    gpus = read_gpu_facts(case.host) if case.exposed_count else ()
    known = [gpu for gpu in gpus if any(fact is not None for fact in (gpu.throttle, gpu.has_ecc, gpu.links))]
    found = [*(finding for gpu in known for finding in _judge(gpu)), *_compare(known)]
    yield from found
    if known and not found:
        yield ok("GPUs", f"nothing remarkable about {render_count(len(known), 'GPU')}")


def _judge(gpu: GpuFacts) -> Findings:
    what = _name(gpu)
    if gpu.remapping_failed:
        fix = "use another node, and have this GPU replaced (nvidia-smi -q -d ROW_REMAPPER)"
        yield fail(what, "spare rows for memory that fails", "none are left", fix)
    if gpu.needs_reset:
        number = gpu.address or gpu.index
        fix = f"nvidia-smi -r -i {number} on the machine while nothing uses it, or restart the machine"
        yield warn(what, "no pending reset", "memory retired since its last reset", fix)
    slowed = [reason for reason in gpu.throttle or () if reason in SLOWED]
    if slowed:
        fix = "look at cooling and power (nvidia-smi -q -d PERFORMANCE,TEMPERATURE); else another node"
        yield warn(what, "full clocks", ", ".join(slowed), fix)


def _compare(gpus: list[GpuFacts]) -> Findings:
    """Compare the links to switches, which should be as many for all GPUs of a node, and ECC.

    A GPU without ECC is faster than the others, but more likely to compute wrong results.
    """
    counts = {gpu: count_switched(gpu) for gpu in gpus if gpu.links is not None}
    most = max(counts.values(), default=0)
    for gpu, count in counts.items():
        if count < most:
            fix = "the fabric manager of the machine, or another node (nvidia-smi nvlink -s)"
            yield fail(_name(gpu), f"{most} NVLinks, as others have", str(count), fix)
    if any(gpu.has_ecc for gpu in gpus):
        for gpu in gpus:
            if gpu.has_ecc is False:
                fix = f"nvidia-smi -e 1 -i {gpu.address or gpu.index} on the machine, and a reset"
                yield warn(_name(gpu), "ECC, as others have", "none", fix)


def _name(gpu: GpuFacts) -> str:
    return f"GPU{gpu.index}" + (f" ({gpu.address})" if gpu.address else "")
