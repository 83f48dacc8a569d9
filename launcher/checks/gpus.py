"""Compares the GPUs that the node has, that the container gets, that CUDA finds, and that processes share.

Source: CUDA C++ Programming Guide, "CUDA Environment Variables"; NVIDIA Container Toolkit, "Specialized
Configurations with Docker" (--gpus); Kubernetes "Schedule GPUs".
"""

from __future__ import annotations

from launcher.checks.case import CheckedNode
from launcher.checks.finding import PROBLEM, WARNING, Finding, ok, render_count
from launcher.checks.runtime import AZURE_ML, option
from launcher.machine.numa import AMD_DEVICES, DRIVER_DEVICES, parse_pci_address, read_layout

VISIBLE = "CUDA_VISIBLE_DEVICES"


def look(case: CheckedNode) -> list[Finding]:
    """Compare the counts of GPUs, from the node down to the processes."""
    exposed = case.exposed_count
    if exposed is None:
        return []
    names = case.host.list_folder(DRIVER_DEVICES)
    in_machine = sum(parse_pci_address(name) is not None for name in names)
    if not exposed and not in_machine and not case.vm_gpu_count:
        return _look_at_amd(case)
    return [_compare_exposed(case, exposed, in_machine), *_look_at_variable(case), *_look_at_processes(case)]


def _look_at_amd(case: CheckedNode) -> list[Finding]:
    """Compare AMD's GPUs with the VM's devices; /sys shows the whole node."""
    has, names = case.vm_amd_count, case.host.list_folder(AMD_DEVICES)
    if not names:  # no driver, or a /sys that does not show it
        return []
    there = sum(parse_pci_address(name) is not None for name in names)
    if case.vm is not None and has is not None and there < has:
        expected, found = f"{has}, as every {case.vm.name} has", f"{there} that AMD's driver has"
        fix = "use another VM, or load the driver (dmesg | grep amdgpu)"
        return [Finding("gpus", PROBLEM, "GPUs", expected, found, fix)]
    return [ok("gpus", "GPUs", f"{there} of AMD")] if there else []


def _compare_exposed(case: CheckedNode, exposed: int, in_machine: int) -> Finding:
    has = case.vm_gpu_count
    found = f"{exposed} exposed to us (/dev/nvidiaN)"
    if case.vm is not None and has is not None and exposed < has:
        expected = f"{has}, as every {case.vm.name} has"
        lost = in_machine and in_machine < has
        fix = "use another VM: this one has lost a GPU (dmesg | grep -i xid)" if lost else _give_all(case)
        return Finding("gpus", PROBLEM, "GPUs", expected, found, fix)
    if not exposed:
        expected = f"some of the {in_machine} that the machine has"
        return Finding("gpus", PROBLEM, "GPUs", expected, found, _give_all(case))
    rest = f" of the machine's {in_machine}" if exposed < in_machine else ""
    return ok("gpus", "GPUs", f"{exposed}{rest} exposed to us")


def _give_all(case: CheckedNode) -> str:
    if case.runtime == AZURE_ML:
        return "use an environment with NVIDIA's runtime; its image must not set NVIDIA_VISIBLE_DEVICES"
    count = case.vm_gpu_count or "N"
    return option(
        case.runtime,
        "--gpus all",
        kubernetes=f"resources: {{limits: {{nvidia.com/gpu: {count}}}}} for the container",
        machine="run nvidia-smi, which makes the device files and shows what is wrong",
    )


def _look_at_variable(case: CheckedNode) -> list[Finding]:
    text = case.environ.get(VISIBLE)
    if text is None or not case.exposed_count:
        return []
    entries = [entry.strip() for entry in text.split(",")]
    fix = f"unset {VISIBLE}, or list only GPUs that exist: 0 to {case.exposed_count - 1}"
    if text.strip() in ("", "-1", "NoDevFiles"):
        return [Finding("gpus", WARNING, f"{VISIBLE}={text!r}", "at least one GPU", "it hides all GPUs", fix)]
    doubles = sorted({entry for entry in entries if entries.count(entry) > 1})
    if doubles:
        found = f"{', '.join(doubles)} more than once: CUDA then finds no device"
        return [Finding("gpus", PROBLEM, VISIBLE, "each GPU once", found, fix)]
    here = [gpu.uuid for gpu in read_layout(case.host).gpus]
    foreign = [entry for entry in entries if entry.startswith("GPU-") and _is_foreign(entry, here)]
    if foreign:
        found = f"{', '.join(foreign)}: matches no GPU here, or several"
        return [Finding("gpus", PROBLEM, VISIBLE, "the UUIDs of GPUs that are here", found, fix)]
    count = case.visible_count or 0
    if count < len(entries):
        found = f"{entries[count]!r} is no GPU here: CUDA sees {count} and ignores the rest"
        expected = f"{render_count(len(entries), 'GPU')} of the {case.exposed_count} that are here"
        return [Finding("gpus", PROBLEM, VISIBLE, expected, found, fix)]
    return [ok("gpus", VISIBLE, f"{count} of {case.exposed_count}")]


def _is_foreign(entry: str, here: list[str | None]) -> bool:
    """Whether a UUID or its prefix matches no GPU or several; False if not all UUIDs here are known."""
    known = [uuid for uuid in here if uuid is not None]
    return len(known) == len(here) > 0 and sum(uuid.startswith(entry) for uuid in known) != 1


def _look_at_processes(case: CheckedNode) -> list[Finding]:
    count = case.visible_count
    if not count or case.process_count == count or case.process_count == 1:
        return []
    each = f"{case.process_count} processes for {render_count(count, 'GPU')}"
    if case.process_count < count:
        return [ok("gpus", "processes", each)]
    expected, fix = "no more processes than GPUs", f"--nproc-per-node {count}"
    return [Finding("gpus", WARNING, "processes", expected, each, fix)]
