"""Compares the GPUs that the node has, that the container gets, that CUDA finds, and that processes share.

Source: CUDA C++ Programming Guide, "CUDA Environment Variables"; NVIDIA Container Toolkit, "Specialized
Configurations with Docker" (--gpus); Kubernetes "Schedule GPUs".
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.checks.case import CheckedNode
from launcher.checks.finding import Finding, Findings, fail, ok, render_count, warn
from launcher.machine.numa import AMD_DEVICES, DRIVER_DEVICES, parse_pci_address, read_layout

VISIBLE = "CUDA_VISIBLE_DEVICES"


def look(case: CheckedNode) -> Findings:
    """Compare the counts of GPUs, from the node down to the processes."""
    exposed = case.exposed_count
    if exposed is None:
        return
    in_machine = _count_pci(case.host.list_folder(DRIVER_DEVICES))
    if not exposed and not in_machine and not case.vm_gpu_count:
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
    has, there = case.vm_amd_count, _count_pci(names)
    if not names:  # no driver, or a /sys that does not show it
        return
    if case.vm is not None and has is not None and there < has:
        expected, found = f"{has}, as every {case.vm.name} has", f"{there} that AMD's driver has"
        yield fail("GPUs", expected, found, "use another VM, or load the driver (dmesg | grep amdgpu)")
    elif there:
        yield ok("GPUs", f"{there} of AMD")


def _judge_exposed(case: CheckedNode, exposed: int, in_machine: int) -> Finding:
    has, found = case.vm_gpu_count, f"{exposed} exposed to us (/dev/nvidiaN)"
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
