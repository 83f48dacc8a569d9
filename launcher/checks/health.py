"""Checks the health of GPUs: one that is throttled, or lacks links or spare memory rows, slows all ranks.

Source: NVIDIA NVML API reference (clock event reasons, row remapper); NVIDIA "GPU Memory Error
Management" (when to reset and when to replace a GPU).
"""

from __future__ import annotations

from launcher.checks.case import CheckedNode
from launcher.checks.finding import PROBLEM, WARNING, Finding, ok, render_count
from launcher.machine.hardware import count_switched
from launcher.machine.nvml import GpuFacts, read_gpu_facts

SLOWED = frozenset(("hardware slowdown", "hot (software)", "hot (hardware)", "power brake"))
"""Reasons for low clocks that are a fault of the node. A GPU at its power cap is not faulty."""


def look(case: CheckedNode) -> list[Finding]:
    """Check the facts that NVML reports about each GPU, and compare the GPUs with each other."""
    gpus = read_gpu_facts(case.host) if case.exposed_count else ()
    known = [gpu for gpu in gpus if any(fact is not None for fact in (gpu.throttle, gpu.has_ecc, gpu.links))]
    if not known:
        return []
    found = [finding for gpu in known for finding in _judge(gpu)]
    found += [*_compare_links(known), *_compare_ecc(known)]
    return found or [ok("health", "GPUs", f"nothing remarkable about {render_count(len(known), 'GPU')}")]


def _judge(gpu: GpuFacts) -> list[Finding]:
    what, number = _name(gpu), gpu.address or gpu.index
    found = []
    if gpu.remapping_failed:
        fix = "use another node, and have this GPU replaced (nvidia-smi -q -d ROW_REMAPPER)"
        found.append(
            Finding("health", PROBLEM, what, "spare rows for memory that fails", "none are left", fix)
        )
    if gpu.needs_reset:
        fix = f"nvidia-smi -r -i {number} on the machine while nothing uses it, or restart the machine"
        memory = "memory retired since its last reset"
        found.append(Finding("health", WARNING, what, "no pending reset", memory, fix))
    slowed = [reason for reason in gpu.throttle or () if reason in SLOWED]
    if slowed:
        fix = "look at cooling and power (nvidia-smi -q -d PERFORMANCE,TEMPERATURE); else another node"
        found.append(Finding("health", WARNING, what, "full clocks", ", ".join(slowed), fix))
    return found


def _compare_links(gpus: list[GpuFacts]) -> list[Finding]:
    """Compare the numbers of links to switches, which should be equal for all GPUs of a node."""
    counts = {gpu: count_switched(gpu) for gpu in gpus if gpu.links is not None}
    most = max(counts.values(), default=0)
    fix = "the fabric manager of the machine, or another node (nvidia-smi nvlink -s)"
    return [
        Finding("health", PROBLEM, _name(gpu), f"{most} NVLinks, as others have", str(count), fix)
        for gpu, count in counts.items()
        if count < most
    ]


def _compare_ecc(gpus: list[GpuFacts]) -> list[Finding]:
    """Compare ECC: a GPU without it is faster, but more likely to compute wrong results."""
    if not any(gpu.has_ecc for gpu in gpus):
        return []
    fix = "nvidia-smi -e 1 -i {} on the machine, and a reset"
    return [
        Finding(
            "health", WARNING, _name(gpu), "ECC, as others have", "none", fix.format(gpu.address or gpu.index)
        )
        for gpu in gpus
        if gpu.has_ecc is False
    ]


def _name(gpu: GpuFacts) -> str:
    return f"GPU{gpu.index}" + (f" ({gpu.address})" if gpu.address else "")
