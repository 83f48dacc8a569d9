"""Our own control group, v1 and v2: its folders, and what its memory controller counts.

Source: Linux Documentation/admin-guide/cgroup-v2.rst (memory.events, memory.max),
cgroup-v1/memory.rst (memory.oom_control, memory.failcnt, memory.limit_in_bytes ...).
"""

from __future__ import annotations

from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.machine.host import Host

ROOT = "/sys/fs/cgroup"
PATH_MAX = 4096
UNLIMITED = 1 << 60
"""v1 writes "no limit" as the largest number of pages, in bytes."""


def cgroup_folders(host: Host, *controllers: str) -> list[str]:
    """Return the folders of our cgroup and of those above it, v2 and v1, innermost first.

    Args:
        host: The machine.
        controllers: Those of v1 that are wanted, e.g. ``"memory"``; v2 has all in one folder.

    Returns:
        Paths that may or may not be there: in a container the path that the kernel states can be the
        one outside. ``[ROOT]`` where the kernel states nothing.
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
    return folders or [ROOT]


def _mounts(names: str, controllers: tuple[str, ...]) -> list[str]:
    """Return where a hierarchy of /proc/self/cgroup is mounted below ROOT."""
    if not names:
        return ["", "/unified"]  # the second where v1 is there, too
    wanted = [name for name in names.split(",") if name in controllers]
    return list(dict.fromkeys([f"/{names}", *(f"/{name}" for name in wanted)])) if wanted else []


@frozen
class MemoryEvents:
    """What the memory controller has counted for our cgroup; None where it does not say.

    Attributes:
        oom_kill: Processes of ours that were killed for lack of memory, by any limit.
        limit_hits: How often our own limit was reached (v2: and nothing could be freed).
        file: Where ``oom_kill`` stands, empty if nowhere.
    """

    oom_kill: int | None = None
    limit_hits: int | None = None
    file: str = ""


def read_memory_events(host: Host) -> MemoryEvents:
    """Return the counters of the innermost cgroup that has them.

    v1 counts for this cgroup alone, v2 for those below it, too. The root of v2 counts nothing.
    """
    for folder in cgroup_folders(host, "memory"):
        events = _fields(host, f"{folder}/memory.events")
        if "oom_kill" in events:
            return MemoryEvents(events["oom_kill"], events.get("oom"), f"{folder}/memory.events")
        control = _fields(host, f"{folder}/memory.oom_control")
        if control:
            return MemoryEvents(
                control.get("oom_kill"), _v1_hits(host, folder), f"{folder}/memory.oom_control"
            )
    return MemoryEvents()


def _v1_hits(host: Host, folder: str) -> int | None:
    """Return how often a limit of a cgroup of v1 was reached.

    Memory with swap has a limit of its own, and where both are the same (Kubernetes; --memory-swap like
    --memory) the kernel meets that one first: mm/memcontrol.c, try_charge_memcg. Linux 6.18 does not count
    that any longer (seen); there only the highest use tells.
    """
    names = ("memory.failcnt", "memory.memsw.failcnt", "memory.max_usage_in_bytes", "memory.limit_in_bytes")
    own, with_swap, most, limit = (_number(host, f"{folder}/{name}") for name in names)
    if own is None:
        return None
    hits = own + (with_swap or 0)
    return hits or int(most is not None and limit is not None and most >= limit)


def read_memory_limit(host: Host) -> int | None:
    """Return the smallest limit in bytes of our cgroup and those above it that we see; None for no limit."""
    limits = [
        limit
        for folder in cgroup_folders(host, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        for limit in [_number(host, f"{folder}/{name}")]
        if limit is not None and limit < UNLIMITED
    ]
    return min(limits, default=None)


def read_node_oom_kill(host: Host) -> int | None:
    """Return how many processes of the whole node were killed for lack of memory since its start."""
    # 200 lines, of which one is wanted: not worth a dictionary at every start.
    _, found, rest = ("\n" + (host.read_text("/proc/vmstat") or "")).partition("\noom_kill ")
    number = rest.partition("\n")[0]
    return int(number) if found and _is_number(number) else None


def _fields(host: Host, path: str) -> dict[str, int]:
    """Return a file of lines like ``oom_kill 0``."""
    words = [line.split() for line in (host.read_text(path) or "").splitlines()]
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and _is_number(pair[1])}


def _number(host: Host, path: str) -> int | None:
    text = (host.read_text(path) or "").strip()
    return int(text) if _is_number(text) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20
