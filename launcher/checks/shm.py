"""Checks shared memory, where NCCL puts the buffers between GPUs, and DataLoader's workers their batches.

If it is too small, a job ends with a bus error after hours, or at its start with NCCL's "unhandled system
error".

Source: NCCL user guide, "Troubleshooting, Shared memory" (1 GiB); PyTorch README, "Docker Image";
"docker run" reference (64 MiB unless --shm-size or --ipc=host).
"""

from __future__ import annotations

from launcher.checks.case import CheckedNode
from launcher.checks.finding import Findings, fail, ok, warn
from launcher.core.errors import say_size

PLACE = "/dev/shm"  # noqa: S108 - its real name
PER_PROCESS_BYTES = 1 << 30
FREE_BYTES = 64 << 20
LEAST_GIB = 8


def look(case: CheckedNode) -> Findings:
    """Compare the size with 1 GiB for each process, and the free space with 64 MiB."""
    space, count = case.host.space(PLACE), case.process_count
    if space is None and case.host.is_recorded():
        return
    size, free = space or (0, 0)
    if size < count * PER_PROCESS_BYTES:
        is_shared = space is None or count > 1 or bool(case.exposed_count)
        report = fail if size < PER_PROCESS_BYTES and is_shared else warn
        expected = f"{count} GiB or more" + (f", 1 for each of {count} processes" if count > 1 else "")
        found = "no such directory" if space is None else say_size(size)
        yield report(PLACE, expected, found, _enlarge(case, exists=bool(space)))
    elif free < FREE_BYTES:
        found = f"{say_size(free)} free of {say_size(size)}"
        fix = f"remove what dead processes left: ls -l {PLACE}, e.g. rm {PLACE}/nccl-* {PLACE}/torch_*"
        yield fail(PLACE, f"{say_size(FREE_BYTES)} free", found, fix)
    else:
        yield ok(PLACE, f"{say_size(size)}, {say_size(free)} free")


def _enlarge(case: CheckedNode, *, exists: bool) -> str:
    gib = max(LEAST_GIB, case.process_count)
    mounted = f"mount -o remount,size={gib}g {PLACE}"
    made = f"mkdir -p {PLACE} && mount -t tmpfs -o size={gib}g tmpfs {PLACE}"
    return case.option(
        f"--shm-size={gib}g",
        kubernetes=f"a volume at {PLACE}: emptyDir: {{medium: Memory, sizeLimit: {gib}Gi}}",
        machine=mounted if exists else made,
        azure_ml=f"resources: {{shm_size: {gib}g}} in the YAML of the job",
    )
