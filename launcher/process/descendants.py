"""Who descends from whom, as /proc tells it. A process that is gone has no relatives and no words."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

GPU_FILES = "/dev/nvidia"
ENDED = ("Z", "X")
DEPTH_MAX = 1000
"""Ancestors that are looked at: a tree that changes meanwhile must not keep us forever."""
_STATE, _PARENT, _THREADS, _EXIT_CODE = 0, 1, 17, 49
"""Fields 3, 4, 20 and 52 of /proc/PID/stat, see proc(5), counted from the state on."""


def find_children(pid: int) -> list[int]:
    """Return the children of a process, those adopted from its dead descendants too."""
    found: list[int] = []
    folder = f"/proc/{pid}/task"
    for task in _list(folder):
        text = _read(f"{folder}/{task}/children")
        if text is None and os.path.exists(f"{folder}/{task}"):
            return _scan_children(pid)  # a kernel without CONFIG_PROC_CHILDREN
        found += [int(word) for word in (text or b"").split()]
    return found


def find_descendants(pids: Iterable[int]) -> list[int]:
    """Return all below these processes, nearest first; not the processes themselves."""
    found: list[int] = []
    seen = set(pids)
    level = list(seen)
    while level:
        level = [child for pid in level for child in find_children(pid) if child not in seen]
        seen.update(level)
        found += level
    return found


def read_state(pid: int) -> str | None:
    """Return R, S, D, T, Z ... as ps shows it; None if there is no such process."""
    words = _stat(pid)
    return words[_STATE] if words else None


def find_parent(pid: int) -> int:
    """Return the parent of a process, 0 if there is no such process."""
    return int((_stat(pid) or ["", "0"])[_PARENT])


def descends_from(pid: int, ancestors: set[int]) -> bool:
    """Return whether a process is below one of these."""
    for _ in range(DEPTH_MAX):
        pid = find_parent(pid)
        if pid in ancestors:
            return True
        if pid <= 1:
            return False
    return True


def is_orphaned() -> bool:
    """Whether no shell can continue our process group once it has stopped, as the kernel sees it.

    The kernel drops a Ctrl-Z for such a group, but not a SIGSTOP that we send ourselves.
    """
    pid = os.getpid()
    group, session = os.getpgrp(), os.getsid(0)
    try:
        while os.getpgid(pid) == group:
            pid = find_parent(pid)
            if pid == 0:
                return True
        return os.getsid(pid) != session
    except OSError:  # it is gone, or in another pid namespace
        return True


def is_alive(pid: int) -> bool:
    """Whether a process is there and has not ended. A zombie has, but for one whose threads go on."""
    words = _stat(pid)
    return bool(words) and (words[_STATE] not in ENDED or int(words[_THREADS]) > 1)


def has_ended(pid: int) -> bool:
    """Whether a process is a zombie none of whose threads go on; False where /proc does not say."""
    words = _stat(pid)
    return bool(words) and words[_STATE] in ENDED and int(words[_THREADS]) <= 1


def read_exit_code(pid: int) -> int | None:
    """Return how a process that nobody has waited for has ended, 0 for well; None where that is not seen."""
    words = _stat(pid)
    return int(words[_EXIT_CODE]) if len(words) > _EXIT_CODE and words[_STATE] in ENDED else None


def has_signal(pid: int, number: int, *sets: str) -> bool:
    """Whether one of these sets of signals in /proc/PID/status (``SigCgt``, ``SigBlk``, ...) has this one."""
    for line in (_read(f"/proc/{pid}/status") or b"").splitlines():
        name, _, value = line.decode("ascii", "replace").partition(":")
        if name in sets and int(value, 16) >> number - 1 & 1:
            return True
    return False


def describe(pid: int) -> str:
    """Return what there is to say about a process that does not end."""
    from launcher.core.redact import printable, redact_argv

    words = (_read(f"/proc/{pid}/cmdline") or b"").decode("utf-8", "replace").split("\0")[:-1]
    name = (_read(f"/proc/{pid}/comm") or b"?").decode("utf-8", "replace").strip()
    line = printable(" ".join(redact_argv(words))) if words else f"[{printable(name)}]"
    facts = [f"state {read_state(pid) or '?'}"]
    waits = (_read(f"/proc/{pid}/wchan") or b"").decode("ascii", "replace")
    if waits not in ("", "0"):
        facts.append(f"waits in {printable(waits)}")
    tracer = _tracer(pid)
    if tracer:
        facts.append(f"held by a debugger, pid {tracer}")
    gpus = find_gpu_files(pid)
    if gpus:
        facts.append(f"holds {', '.join(gpus)}")
    return f"pid {pid} ({', '.join(facts)}): {line[:120]}"


def find_gpu_files(pid: int) -> list[str]:
    """Return the device files of GPUs that a process holds open."""
    folder = f"/proc/{pid}/fd"
    links = set()
    for name in _list(folder):
        try:
            links.add(os.readlink(f"{folder}/{name}"))
        except OSError:
            continue
    return sorted(link for link in links if link.startswith(GPU_FILES))


def _scan_children(parent: int) -> list[int]:
    pids = [int(name) for name in _list("/proc") if name.isdecimal()]
    return [pid for pid in pids if _stat(pid)[_PARENT : _PARENT + 1] == [str(parent)]]


def _stat(pid: int) -> list[str]:
    """Return what the kernel says of a process after its name; nothing if it is gone."""
    # The second field is the name in parentheses and may itself hold any character.
    return (_read(f"/proc/{pid}/stat") or b"").rpartition(b")")[2].decode("ascii").split()


def _tracer(pid: int) -> int:
    for line in (_read(f"/proc/{pid}/status") or b"").splitlines():
        if line.startswith(b"TracerPid:"):
            return int(line.split()[1])
    return 0


def _list(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read(path: str) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, 1 << 16)
    except OSError:  # it ended between the two
        return None
    finally:
        os.close(fd)
