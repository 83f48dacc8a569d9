"""Who descends from whom, as /proc tells it. A process that is gone has no relatives and no words."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

GPU_FILES = "/dev/nvidia"
ENDED = ("Z", "X")


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
    return (_stat(pid) or (None,))[0]


def is_alive(pid: int) -> bool:
    """Whether a process is there and has not ended (a zombie has)."""
    state = read_state(pid)
    return state is not None and state not in ENDED


def describe(pid: int) -> str:
    """Return what there is to say about a process that does not end."""
    from launcher.redact import printable, redact_argv

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
    return [pid for pid in pids if (_stat(pid) or ("", 0))[1] == parent]


def _stat(pid: int) -> tuple[str, int] | None:
    """Return the state and the parent of a process."""
    text = _read(f"/proc/{pid}/stat")
    if text is None:
        return None
    # The second field is the name in parentheses and may itself hold any character.
    words = text.rpartition(b")")[2].split()
    return words[0].decode("ascii"), int(words[1])


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
