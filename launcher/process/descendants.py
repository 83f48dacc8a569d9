"""The process tree, read from /proc. A process that has ended has no relatives and no command line."""

from __future__ import annotations

import os

from launcher.machine.process import (
    PROC,
    list_folder,
    list_open,
    list_pids,
    read_command,
    read_file,
    read_name,
    read_stat,
    read_status,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

GPU_FILES = "/dev/nvidia"
HAS_LISTS = os.path.exists("/proc/thread-self/children")
"""False for a kernel without CONFIG_PROC_CHILDREN."""
COMMAND_LIMIT = 120
DEPTH_MAX = 1000
"""Maximum number of ancestors to visit: a tree that changes meanwhile must not cause an endless walk."""


def find_children(pid: int) -> list[int]:
    """Return the children of a process, including orphans that it has adopted."""
    if not HAS_LISTS:
        return _scan_children(pid)
    folder = f"{PROC}/{pid}/task"
    return [
        int(word) for task in list_folder(folder) for word in read_file(f"{folder}/{task}/children").split()
    ]


def find_descendants(pids: Iterable[int]) -> list[int]:
    """Return all descendants of these processes, nearest first; not the processes themselves."""
    found: list[int] = []
    seen = set(pids)
    level = list(seen)
    while level:
        level = [child for pid in level for child in find_children(pid) if child not in seen]
        seen.update(level)
        found += level
    return found


def read_state(pid: int) -> str | None:
    """Return the state as ps shows it (R, S, D, T, Z, ...); None if there is no such process."""
    found = read_stat(pid)
    return found.state if found else None


def find_parent(pid: int) -> int:
    """Return the parent of a process; 0 if there is no such process."""
    found = read_stat(pid)
    return found.parent if found else 0


def descends_from(pid: int, ancestors: set[int]) -> bool:
    """Whether a process descends from one of these; True if it has too many ancestors to check."""
    for _ in range(DEPTH_MAX):
        pid = find_parent(pid)
        if pid in ancestors:
            return True
        if pid <= 1:
            return False
    return True


def is_orphaned() -> bool:
    """Whether no shell can continue our process group once it has stopped, by the kernel's definition.

    For such a group the kernel drops Ctrl-Z, but not a SIGSTOP that we send ourselves.
    """
    pid = os.getpid()
    group, session = os.getpgrp(), os.getsid(0)
    try:
        while os.getpgid(pid) == group:
            pid = find_parent(pid)
            if pid == 0:
                return True
        return os.getsid(pid) != session
    except OSError:  # it has gone, or is in another pid namespace
        return True


def is_alive(pid: int) -> bool:
    """Whether a process exists and has not ended. A zombie has ended, unless its other threads still run."""
    found = read_stat(pid)
    return found is not None and not found.has_ended


def has_ended(pid: int) -> bool:
    """Whether a process is a zombie without running threads; False if /proc does not show it."""
    found = read_stat(pid)
    return found is not None and found.has_ended


def describe(pid: int) -> str:
    """Return a description of a process that does not end: its state, what holds it, and its command.

    A negative number is a process group, of whose processes nothing is known.
    """
    from launcher.core.redact import printable, quote_command

    if pid < 0:
        return f"process group {-pid}"
    line = quote_command(read_command(pid) or [f"[{read_name(pid) or '?'}]"], COMMAND_LIMIT)
    facts = [f"state {read_state(pid) or '?'}"]
    waits = read_file(f"{PROC}/{pid}/wchan").decode("ascii", "replace")
    if waits not in ("", "0"):
        facts.append(f"waits in {printable(waits)}")
    tracer = read_status(pid, "TracerPid")
    if tracer not in ("", "0"):
        facts.append(f"held by a debugger, pid {tracer}")
    gpus = find_gpu_files(pid)
    if gpus:
        facts.append(f"holds {', '.join(gpus)}")
    return f"pid {pid} ({', '.join(facts)}): {line}"


def find_gpu_files(pid: int) -> list[str]:
    """Return the GPU device files that a process has open."""
    return sorted({link for link in list_open(pid) if link.startswith(GPU_FILES)})


def _scan_children(parent: int) -> list[int]:
    pids = list_pids()
    return [pid for pid in pids if (found := read_stat(pid)) is not None and found.parent == parent]
