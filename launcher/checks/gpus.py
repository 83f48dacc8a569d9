"""Checks of GPUs: how many there are, their health, and what dead jobs have left on them."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.checks.case import CheckedNode
from launcher.checks.finding import Finding, Findings, fail, ok, render_count, warn
from launcher.core.errors import say_size
from launcher.machine.gpus import VISIBLE
from launcher.machine.hardware import count_switched
from launcher.machine.host import Host
from launcher.machine.numa import AMD_DEVICES, DRIVER_DEVICES, parse_pci_address, read_layout
from launcher.machine.nvml import GpuFacts, GpuMemoryUse, read_gpu_facts, read_gpu_use

SLOWED = frozenset(("hardware slowdown", "hot (software)", "hot (hardware)", "power brake"))
"""Reasons for low clocks that are a fault of the node. A GPU at its power cap is not faulty."""
OWN_BYTES = 2 << 30
"""Memory of a large GPU that the driver itself may use."""
MUCH = 0.1


def check_gpus(case: CheckedNode) -> Findings:
    """Compare the GPUs that the node has, that the container gets, that CUDA finds, and that processes share.

    Compare the counts of GPUs, from the node down to the processes.

    Source:
        CUDA C++ Programming Guide, "CUDA Environment Variables"; NVIDIA Container Toolkit, "Specialized
        Configurations with Docker" (--gpus); Kubernetes "Schedule GPUs".
    """
    exposed = case.exposed_count
    if exposed is None:
        return
    in_machine = _count_pci(case.host.list_folder(DRIVER_DEVICES))
    if not exposed and not in_machine and not case.vm_gpu_counts[0]:
        yield from _judge_amd(case)
        return
    yield _judge_exposed(case, exposed, in_machine)
    text = case.environ.get(VISIBLE)
    if text is not None and exposed:
        yield _judge_variable(case, text, exposed)
    count, processes = case.visible_count, case.process_count
    if count and processes not in (1, count):
        each = f"{processes} processes for {render_count(count, 'GPU')}"
        if processes < count:
            yield ok("processes", each)
        else:
            yield warn("processes", "no more processes than GPUs", each, f"--nproc-per-node {count}")


def _count_pci(names: Sequence[str]) -> int:
    return sum(parse_pci_address(name) is not None for name in names)


def _judge_amd(case: CheckedNode) -> Findings:
    """Compare AMD's GPUs with the VM's devices; /sys shows the whole node."""
    names = case.host.list_folder(AMD_DEVICES)
    (_, has), there = case.vm_gpu_counts, _count_pci(names)
    if not names:  # no driver, or a /sys that does not show it
        return
    if case.vm is not None and has is not None and there < has:
        expected, found = f"{has}, as every {case.vm.name} has", f"{there} that AMD's driver has"
        yield fail("GPUs", expected, found, "use another VM, or load the driver (dmesg | grep amdgpu)")
    elif there:
        yield ok("GPUs", f"{there} of AMD")


def _judge_exposed(case: CheckedNode, exposed: int, in_machine: int) -> Finding:
    (has, _), found = case.vm_gpu_counts, f"{exposed} exposed to us (/dev/nvidiaN)"
    give_all = case.option(
        "--gpus all",
        kubernetes=f"resources: {{limits: {{nvidia.com/gpu: {has or 'N'}}}}} for the container",
        machine="run nvidia-smi, which makes the device files and shows what is wrong",
        azure_ml="use an environment with NVIDIA's runtime; its image must not set NVIDIA_VISIBLE_DEVICES",
    )
    if case.vm is not None and has is not None and exposed < has:
        lost = in_machine and in_machine < has
        fix = "use another VM: this one has lost a GPU (dmesg | grep -i xid)" if lost else give_all
        return fail("GPUs", f"{has}, as every {case.vm.name} has", found, fix)
    if not exposed:
        return fail("GPUs", f"some of the {in_machine} that the machine has", found, give_all)
    rest = f" of the machine's {in_machine}" if exposed < in_machine else ""
    return ok("GPUs", f"{exposed}{rest} exposed to us")


def _judge_variable(case: CheckedNode, text: str, exposed: int) -> Finding:
    entries = [entry.strip() for entry in text.split(",")]
    fix = f"unset {VISIBLE}, or list only GPUs that exist: 0 to {exposed - 1}"
    if text.strip() in ("", "-1", "NoDevFiles"):
        return warn(f"{VISIBLE}={text!r}", "at least one GPU", "it hides all GPUs", fix)
    doubles = sorted({entry for entry in entries if entries.count(entry) > 1})
    if doubles:
        found = f"{', '.join(doubles)} more than once: CUDA then finds no device"
        return fail(VISIBLE, "each GPU once", found, fix)
    here = [gpu.uuid for gpu in read_layout(case.host).gpus]
    foreign = [entry for entry in entries if entry.startswith("GPU-") and _is_foreign(entry, here)]
    if foreign:
        found = f"{', '.join(foreign)}: matches no GPU here, or several"
        return fail(VISIBLE, "the UUIDs of GPUs that are here", found, fix)
    count = case.visible_count or 0
    if count < len(entries):
        found = f"{entries[count]!r} is no GPU here: CUDA sees {count} and ignores the rest"
        expected = f"{render_count(len(entries), 'GPU')} of the {exposed} that are here"
        return fail(VISIBLE, expected, found, fix)
    return ok(VISIBLE, f"{count} of {exposed}")


def _is_foreign(entry: str, here: list[str | None]) -> bool:
    """Whether a UUID or its prefix matches no GPU or several; False if not all UUIDs here are known."""
    known = [uuid for uuid in here if uuid is not None]
    return len(known) == len(here) > 0 and sum(uuid.startswith(entry) for uuid in known) != 1


def check_health(case: CheckedNode) -> Findings:
    """Check the health of GPUs: one that is throttled, or lacks links or spare memory rows, slows all ranks.

    Check the facts that NVML reports about each GPU, and compare the GPUs with each other.

    Source:
        NVIDIA NVML API reference (clock event reasons, row remapper); NVIDIA "GPU Memory Error
        Management" (when to reset and when to replace a GPU).
    """
    gpus = read_gpu_facts(case.host) if case.exposed_count else ()
    known = [gpu for gpu in gpus if any(fact is not None for fact in (gpu.throttle, gpu.has_ecc, gpu.links))]
    found = [*(finding for gpu in known for finding in _judge_health(gpu)), *_compare_gpus(known)]
    yield from found
    if known and not found:
        yield ok("GPUs", f"nothing remarkable about {render_count(len(known), 'GPU')}")


def _judge_health(gpu: GpuFacts) -> Findings:
    what = _name_gpu(gpu)
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


def _compare_gpus(gpus: list[GpuFacts]) -> Findings:
    """Compare the links to switches, which should be as many for all GPUs of a node, and ECC.

    A GPU without ECC is faster than the others, but more likely to compute wrong results.
    """
    counts = {gpu: count_switched(gpu) for gpu in gpus if gpu.links is not None}
    most = max(counts.values(), default=0)
    for gpu, count in counts.items():
        if count < most:
            fix = "the fabric manager of the machine, or another node (nvidia-smi nvlink -s)"
            yield fail(_name_gpu(gpu), f"{most} NVLinks, as others have", str(count), fix)
    if any(gpu.has_ecc for gpu in gpus):
        for gpu in gpus:
            if gpu.has_ecc is False:
                fix = f"nvidia-smi -e 1 -i {gpu.address or gpu.index} on the machine, and a reset"
                yield warn(_name_gpu(gpu), "ECC, as others have", "none", fix)


def _name_gpu(gpu: GpuFacts) -> str:
    return f"GPU{gpu.index}" + (f" ({gpu.address})" if gpu.address else "")


def check_stale(case: CheckedNode) -> Findings:
    """Check for stale processes that a dead job left on the GPUs, and that use memory of the next job.

    Check the processes and the used memory of each GPU.

    Source:
        NVIDIA NVML API reference; its value of used memory includes some of the driver's own.
    """
    gpus = read_gpu_use() if case.exposed_count and not case.host.is_recorded() else ()
    taken = [gpu for gpu in gpus if gpu.pids or gpu.used_bytes > OWN_BYTES]
    for gpu in taken:
        yield _judge_use(case.host, gpu)
    if gpus and not taken:
        yield ok("processes on the GPUs", f"none on {render_count(len(gpus), 'GPU')}")


def _judge_use(host: Host, gpu: GpuMemoryUse) -> Finding:
    names = {pid: (host.read_text(f"/proc/{pid}/comm") or "").strip() for pid in gpu.pids}
    shown = ", ".join(f"{pid} ({name or 'not of this container'})" for pid, name in names.items())
    by = (
        f"process{'es' if len(names) > 1 else ''} {shown}"
        if names
        else "processes that this user may not see"
    )
    found = f"{say_size(gpu.used_bytes)} of {say_size(gpu.total_bytes)} taken by {by}"
    fix = "end what uses it, outside of this container: nvidia-smi on the machine"
    if any(names.values()):
        fix = f"kill {' '.join(map(str, gpu.pids))}, if it does not belong to a running job"
    report = fail if gpu.used_bytes > max(OWN_BYTES, MUCH * gpu.total_bytes) else warn
    return report(f"GPU {gpu.index}", "free before the job starts", found, fix)
