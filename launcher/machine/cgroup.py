"""Reads our own control group, v1 or v2: its directories, its CPUs, its memory and its memory events.

Source: Linux Documentation/admin-guide/cgroup-v2.rst (memory.events, memory.max, cpu.max),
cgroup-v1/cpusets.rst, cgroup-v1/memory.rst (memory.oom_control, memory.failcnt, memory.limit_in_bytes ...).
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.ranks import is_number, parse_cpu_list

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.machine.host import Host

ROOT = "/sys/fs/cgroup"
ONLINE = "/sys/devices/system/cpu/online"
PATH_MAX = 4096
FOLDERS_LIMIT = 1 << 12
"""More cgroups and ancestors than a process has."""
DIGITS = 19
"""Of the largest number of 64 bits."""
UNLIMITED = 1 << 60
"""Limit in bytes from which on there is none: v1 writes "no limit" as the largest number of whole pages."""


def cgroup_folders(host: Host, *controllers: str) -> list[str]:
    """Return the directories of our cgroup and of its ancestors, v2 and v1, innermost first.

    Args:
        host: The node.
        controllers: The wanted controllers of v1, e.g. ``"memory"``; v2 has all controllers in one directory.

    Returns:
        Paths that need not exist: in a container the kernel may report the path that the cgroup has outside.
        ``[ROOT]`` if the kernel reports none.
    """
    folders: list[str] = []
    for line in (host.read_text("/proc/self/cgroup") or "").splitlines():
        _, names, path = (line + "::").split(":", 2)
        path = path.rstrip(":")
        if len(path) > PATH_MAX:
            continue
        for mount in _mounts(names, controllers):
            inner = path
            while inner not in ("", "/"):
                folders.append(f"{ROOT}{mount}{inner}")
                inner = inner.rpartition("/")[0]
            folders.append(f"{ROOT}{mount}")
        if len(folders) > FOLDERS_LIMIT:
            break
    return folders or [ROOT]


def _mounts(names: str, controllers: tuple[str, ...]) -> list[str]:
    """Return the possible mount points below ROOT of a hierarchy in /proc/self/cgroup."""
    if not names:
        return ["", "/unified"]  # the second one if v1 is mounted too
    wanted = [name for name in names.split(",") if name in controllers]
    return list(dict.fromkeys([f"/{names}", *(f"/{name}" for name in wanted)])) if wanted else []


def read_granted_cpus(host: Host) -> int | None:
    """Return the number of CPUs that this container may use, at least 1; None if unreadable.

    It does not depend on the affinity mask that we inherited: mpirun binds each process that it starts to one
    core if it starts one or two. The cgroup's cpuset is what the container really has, and a quota (Docker's
    ``--cpus``) limits it further.
    """
    folders = cgroup_folders(host, "cpu", "cpuset")
    cpus = _first_cpu_list(host, folders)
    if not cpus:
        return None
    quota = min(filter(None, (_quota(host, folder) for folder in folders)), default=None)
    return max(1, min(len(cpus), quota)) if quota else len(cpus)


def read_cpuset(host: Host) -> frozenset[int]:
    """Return the CPUs of the cgroup, independently of our own affinity mask; empty if unreadable."""
    return _first_cpu_list(host, cgroup_folders(host, "cpuset"))


def _first_cpu_list(host: Host, folders: list[str]) -> frozenset[int]:
    names = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
    for path in [f"{folder}/{name}" for folder in folders for name in names] + [ONLINE]:
        cpus = parse_cpu_list(host.read_text(path) or "")
        if cpus:
            return cpus
    return frozenset()


def _quota(host: Host, folder: str) -> int | None:
    text = host.read_text(f"{folder}/cpu.max")
    if text is None:
        quota = host.read_text(f"{folder}/cpu.cfs_quota_us")
        text = f"{quota} {host.read_text(f'{folder}/cpu.cfs_period_us')}" if quota else ""
    words = text.split()
    if len(words) != 2 or not all(is_number(word, DIGITS) for word in words):
        return None
    if not int(words[1]):
        return None
    return -(-int(words[0]) // int(words[1]))  # rounded up: half a CPU still runs one thread


@frozen
class MemoryEvents:
    """Event counts of our cgroup's memory controller; None if it does not report them.

    Attributes:
        oom_kill: Number of processes of the cgroup that the kernel killed for lack of memory, by any limit.
        limit_hits: Number of times that our own limit was reached (v2: and no memory could be freed).
        file: File with ``oom_kill``; empty without one.
    """

    oom_kill: int | None = None
    limit_hits: int | None = None
    file: str = ""


def read_memory_events(host: Host) -> MemoryEvents:
    """Return the counters of the innermost cgroup that has them.

    v1 counts events of this cgroup only, v2 also those of its descendants. The root of v2 has no counters.
    """
    for folder in cgroup_folders(host, "memory"):
        events = read_fields(host, f"{folder}/memory.events")
        if "oom_kill" in events:
            return MemoryEvents(events["oom_kill"], events.get("oom"), f"{folder}/memory.events")
        control = read_fields(host, f"{folder}/memory.oom_control")
        if control:
            return MemoryEvents(
                control.get("oom_kill"), _v1_hits(host, folder), f"{folder}/memory.oom_control"
            )
    return MemoryEvents()


def _v1_hits(host: Host, folder: str) -> int | None:
    """Return how often a memory limit of a v1 cgroup was reached; None without a counter.

    Memory plus swap has its own limit. If both limits are equal (Kubernetes; --memory-swap equal to
    --memory), the kernel checks that one first: mm/memcontrol.c, try_charge_memcg. Linux 6.18 no longer
    counts these hits (observed). So if none are counted, a peak use at the limit counts as one hit.
    """
    names = ("memory.failcnt", "memory.memsw.failcnt", "memory.max_usage_in_bytes", "memory.limit_in_bytes")
    own, with_swap, most, limit = (host.read_number(f"{folder}/{name}", DIGITS) for name in names)
    if own is None:
        return None
    hits = own + (with_swap or 0)
    return hits or int(most is not None and limit is not None and most >= limit)


def read_memory_limit(host: Host) -> int | None:
    """Return the lowest memory limit in bytes of our cgroup and its visible ancestors; None if unlimited."""
    limits = [
        limit
        for folder in cgroup_folders(host, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        for limit in [host.read_number(f"{folder}/{name}", DIGITS)]
        if limit is not None and limit < UNLIMITED
    ]
    return min(limits, default=None)


def read_memory_use(host: Host) -> tuple[int, int | None] | None:
    """Return the job's memory in bytes and its limit: of the innermost cgroup that counts it, or of the node.

    Without the file cache, which the kernel can drop if needed. The limit is None if there is none.
    """
    for folder in cgroup_folders(host, "memory"):
        names = ("current", "usage_in_bytes", "max", "limit_in_bytes")
        numbers = [host.read_number(f"{folder}/memory.{name}", DIGITS) for name in names]
        used, limit = numbers[0] or numbers[1], numbers[2] or numbers[3]  # v2; v1
        if used is not None:
            fields = read_fields(host, f"{folder}/memory.stat")
            cache = fields.get("total_inactive_file", fields.get("inactive_file", 0))  # v1; v2
            return max(0, used - cache), limit if limit and limit < UNLIMITED else None
    fields = read_fields(host, "/proc/meminfo")
    total, free = fields.get("MemTotal:"), fields.get("MemAvailable:")
    return None if total is None or free is None else ((total - free) << 10, total << 10)


def read_node_oom_kill(host: Host) -> int | None:
    """Return how many processes the node has killed for lack of memory since boot; None if unknown."""
    # The file has 200 lines and we need one, so we do not build a dictionary at every start.
    _, found, rest = ("\n" + (host.read_text("/proc/vmstat") or "")).partition("\noom_kill ")
    number = rest.partition("\n")[0]
    return int(number) if found and is_number(number, DIGITS) else None


def read_fields(host: Host, path: str) -> dict[str, int]:
    """Return the fields of a file with lines like ``oom_kill 0`` or ``MemTotal: 9 kB``."""
    words = [line.split() for line in (host.read_text(path) or "").splitlines()]
    return {pair[0]: int(pair[1]) for pair in words if len(pair) > 1 and is_number(pair[1], DIGITS)}
