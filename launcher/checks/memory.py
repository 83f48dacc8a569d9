"""Checks of shared memory, and the memory limit."""

from __future__ import annotations

from launcher.checks.case import CheckedNode
from launcher.checks.finding import Findings, fail, ok, warn
from launcher.core.errors import say_size
from launcher.machine.cgroup import read_fields, read_memory_limit

SHM = "/dev/shm"  # noqa: S108 - its real name
SHM_EACH_BYTES = 1 << 30
SHM_FREE_BYTES = 64 << 20
SHM_LEAST_GIB = 8
MEMORY = "memory"
MEMORY_EACH_BYTES = 2 << 30


def check_shm(case: CheckedNode) -> Findings:
    """Check shared memory, where NCCL puts the buffers between GPUs, and DataLoader's workers their batches.

    If it is too small, a job ends with a bus error after hours, or at its start with NCCL's "unhandled system
    error". Compare the size with 1 GiB for each process, and the free space with 64 MiB.

    Source:
        NCCL user guide, "Troubleshooting, Shared memory" (1 GiB); PyTorch README, "Docker Image"; "docker
        run" reference (64 MiB unless --shm-size or --ipc=host).
    """
    space, count = case.host.space(SHM), case.process_count
    if space is None and case.host.is_recorded():
        return
    size, free = space or (0, 0)
    if size < count * SHM_EACH_BYTES:
        is_shared = space is None or count > 1 or bool(case.exposed_count)
        report = fail if size < SHM_EACH_BYTES and is_shared else warn
        expected = f"{count} GiB or more" + (f", 1 for each of {count} processes" if count > 1 else "")
        found = "no such directory" if space is None else say_size(size)
        yield report(SHM, expected, found, _enlarge_shm(case, exists=bool(space)))
    elif free < SHM_FREE_BYTES:
        found = f"{say_size(free)} free of {say_size(size)}"
        fix = f"remove what dead processes left: ls -l {SHM}, e.g. rm {SHM}/nccl-* {SHM}/torch_*"
        yield fail(SHM, f"{say_size(SHM_FREE_BYTES)} free", found, fix)
    else:
        yield ok(SHM, f"{say_size(size)}, {say_size(free)} free")


def _enlarge_shm(case: CheckedNode, *, exists: bool) -> str:
    gib = max(SHM_LEAST_GIB, case.process_count)
    mounted = f"mount -o remount,size={gib}g {SHM}"
    made = f"mkdir -p {SHM} && mount -t tmpfs -o size={gib}g tmpfs {SHM}"
    return case.option(
        f"--shm-size={gib}g",
        kubernetes=f"a volume at {SHM}: emptyDir: {{medium: Memory, sizeLimit: {gib}Gi}}",
        machine=mounted if exists else made,
        azure_ml=f"resources: {{shm_size: {gib}g}} in the YAML of the job",
    )


def check_memory(case: CheckedNode) -> Findings:
    """Check the memory limit: what the node's processes may use together before the kernel kills one.

    Files in /dev/shm count, too. A process with torch and CUDA takes 2 to 3 GiB before it loads a model.
    Compare the limit or the node's memory, whichever is smaller, with 2 GiB for each process.

    Source:
        Linux Documentation/admin-guide/cgroup-v2.rst (memory.max), proc(5) (MemTotal).
    """
    limit, fields = read_memory_limit(case.host), read_fields(case.host, "/proc/meminfo")
    total = fields["MemTotal:"] << 10 if "MemTotal:" in fields else None
    known = [size for size in (limit, total) if size is not None]
    if not known:
        return
    size, count = min(known), case.process_count
    is_limited = limit is not None and size == limit and limit != total
    found = f"{say_size(size)}{' by the limit of our cgroup' if is_limited else ''}"
    if size >= count * MEMORY_EACH_BYTES:
        yield ok(MEMORY, found)
        return
    needed = say_size(count * MEMORY_EACH_BYTES)
    fix = fewer = "start fewer processes (--nproc-per-node N), or use a larger machine"
    if is_limited:
        fix = case.option(
            f"--memory={needed.replace(' GiB', 'g')}",
            kubernetes=f"resources: {{limits: {{memory: {needed.replace(' GiB', 'Gi')}}}}} or more",
            machine="raise the limit of this job (sbatch --mem), or MemoryMax of the service",
            azure_ml="Azure ML gives a job the whole machine: " + fewer,
        )
    expected = f"{needed} or more, 2 GiB for each of {count} process{'es' if count > 1 else ''}"
    yield warn(MEMORY, expected, found, fix)
