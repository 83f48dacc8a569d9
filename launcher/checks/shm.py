"""Checks shared memory, where NCCL puts the buffers between GPUs, and DataLoader's workers their batches.

If it is too small, a job ends with a bus error after hours, or at its start with NCCL's "unhandled system
error".

Source: NCCL user guide, "Troubleshooting, Shared memory" (1 GiB); PyTorch README, "Docker Image";
"docker run" reference (64 MiB unless --shm-size or --ipc=host).
"""

from __future__ import annotations

from launcher.checks.case import CheckedNode
from launcher.checks.finding import PROBLEM, WARNING, Finding, ok
from launcher.checks.runtime import AZURE_ML, option
from launcher.core.errors import say_size

PLACE = "/dev/shm"  # noqa: S108 - its real name
PER_PROCESS_BYTES = 1 << 30
FREE_BYTES = 64 << 20
LEAST_GIB = 8


def look(case: CheckedNode) -> list[Finding]:
    """Compare the size with 1 GiB for each process, and the free space with 64 MiB."""
    space = case.host.space(PLACE)
    if space is None:
        return [] if case.host.is_recorded() else [_wrong(case, PROBLEM, _expect(case), "no such directory")]
    size, free = space
    is_shared = case.process_count > 1 or bool(case.exposed_count)
    if size < case.process_count * PER_PROCESS_BYTES:
        level = PROBLEM if size < PER_PROCESS_BYTES and is_shared else WARNING
        return [_wrong(case, level, _expect(case), say_size(size))]
    if free < FREE_BYTES:
        found = f"{say_size(free)} free of {say_size(size)}"
        fix = f"remove what dead processes left: ls -l {PLACE}, e.g. rm {PLACE}/nccl-* {PLACE}/torch_*"
        return [Finding("shm", PROBLEM, PLACE, f"{say_size(FREE_BYTES)} free", found, fix)]
    return [ok("shm", PLACE, f"{say_size(size)}, {say_size(free)} free")]


def _expect(case: CheckedNode) -> str:
    count = case.process_count
    return f"{count} GiB or more" + (f", 1 for each of {count} processes" if count > 1 else "")


def _wrong(case: CheckedNode, level: str, expected: str, found: str) -> Finding:
    gib = max(LEAST_GIB, case.process_count)
    if case.runtime == AZURE_ML:
        fix = f"resources: {{shm_size: {gib}g}} in the YAML of the job"
    else:
        fix = option(
            case.runtime,
            f"--shm-size={gib}g",
            kubernetes=f"a volume at {PLACE}: emptyDir: {{medium: Memory, sizeLimit: {gib}Gi}}",
            machine=f"mount -o remount,size={gib}g {PLACE}"
            if case.host.space(PLACE)
            else f"mkdir -p {PLACE} && mount -t tmpfs -o size={gib}g tmpfs {PLACE}",
        )
    return Finding("shm", level, PLACE, expected, found, fix)
