"""Reads and parses the files of a process below /proc/PID.

If a process has ended or belongs to another user, the values are empty or None. No function raises.

Source: proc(5).
"""

from __future__ import annotations

import os

from launcher.core.frozen import frozen


def _find_proc() -> str:
    """Return /proc, or a path without files if the numbers there are those of another PID namespace."""
    try:
        return "/proc" if os.readlink("/proc/self") == str(os.getpid()) else "/proc/self/none"
    except OSError:
        return "/proc"  # there is nothing


PROC = _find_proc()
"""Where processes are looked up: after ``unshare --pid`` alone, or with the machine's /proc in a container, a
number means another process there, which must not be taken for a child of ours."""

LIMIT_BYTES = 1 << 20
"""Size limit of one file; /proc returns a file in pieces."""
PIECE_BYTES = 1 << 18
OPEN_MAX = 1 << 15
"""Number of descriptors of a process that are looked at."""
ENVIRON_BYTES = 4 << 20
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
ENDED = ("Z", "X")
_STATE, _PARENT, _FLAGS, _TIMES, _THREADS, _STARTED, _RESIDENT = 0, 1, 6, slice(11, 15), 17, 19, 21
_EXIT_CODE = 49
"""Fields 3, 4, 9, 14 to 17, 20, 22, 24 and 52 of /proc/PID/stat, as offsets from the state (field 3)."""
_FORKED = 0x40
"""PF_FORKNOEXEC, include/linux/sched.h."""


@frozen
class Stat:
    """The numbers of one process in /proc/PID/stat.

    Attributes:
        parent: PID of its parent.
        state: R, S, D, T, Z ... as in ps.
        cpu_s: CPU time in seconds, including that of children that it has waited for.
        threads: Number of its threads.
        started_s: Time of its start, in seconds since boot.
        memory_bytes: Resident memory; shared memory counts for each process that shares it.
        exit_code: Exit status in the form of wait(2); 0 for success, and if we may not see it.
        is_fork: Whether it has not executed a program since its fork, so that it shows that of its parent.
    """

    parent: int
    state: str
    cpu_s: float = 0.0
    threads: int = 1
    started_s: float = 0.0
    memory_bytes: int = 0
    exit_code: int = 0
    is_fork: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether it is a zombie without running threads."""
        return self.state in ENDED and self.threads <= 1


def read_stat(pid: int) -> Stat | None:
    """Return the numbers of a process; None if there is no such process."""
    return parse_stat(read_file(f"{PROC}/{pid}/stat"))


def parse_stat(data: bytes) -> Stat | None:
    """Return the numbers in a /proc/PID/stat; None for the empty text of a process that has ended."""
    # The second field is the name in parentheses, which can contain any character.
    words = data.rpartition(b")")[2].decode("ascii", "replace").split()
    if len(words) <= _RESIDENT:
        return None
    return Stat(
        int(words[_PARENT]),
        words[_STATE],
        sum(map(int, words[_TIMES])) / TICKS,
        int(words[_THREADS]),
        int(words[_STARTED]) / TICKS,
        int(words[_RESIDENT]) * PAGE_BYTES,
        int(words[_EXIT_CODE]) if len(words) > _EXIT_CODE else 0,
        bool(int(words[_FLAGS]) & _FORKED),
    )


def list_pids() -> list[int]:
    """Return the PIDs of all processes that this process can see."""
    return [int(name) for name in list_folder(PROC) if name.isdecimal()]


def read_name(pid: int) -> str:
    """Return the name of the program, at most 15 characters."""
    return read_file(f"{PROC}/{pid}/comm").decode("utf-8", "replace").strip()


def read_command(pid: int, limit: int = LIMIT_BYTES) -> list[str]:
    """Return the command line; empty for a kernel thread and for a zombie."""
    return read_file(f"{PROC}/{pid}/cmdline", limit).decode("utf-8", "surrogateescape").split("\0")[:-1]


def read_environ(pid: int) -> dict[str, str]:
    """Return the environment that the program was started with."""
    pairs = (word.partition(b"=") for word in read_file(f"{PROC}/{pid}/environ", ENVIRON_BYTES).split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, equals, value in pairs if equals}


def read_status(pid: int, field: str) -> str:
    """Return a field of /proc/PID/status, such as ``SigCgt``; empty if it is missing."""
    for line in read_file(f"{PROC}/{pid}/status").decode("ascii", "replace").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return value.strip()
    return ""


def read_users(pid: int) -> set[int]:
    """Return the users whose rights a process has: several in a set-user-ID program, none if it is gone."""
    return set(map(int, read_status(pid, "Uid").split()))


def read_storage_bytes(pid: int) -> int:
    """Return the bytes that a process and the children it has waited for read from and wrote to storage."""
    words = read_file(f"{PROC}/{pid}/io").split()
    values = dict(zip(words[::2], words[1::2], strict=False))
    return sum(int(values.get(name, 0)) for name in (b"read_bytes:", b"write_bytes:"))


def has_signal(pid: int, number: int, *sets: str) -> bool:
    """Whether one of these sets of signals (``SigCgt``, ``SigBlk``, ...) contains a signal."""
    return any(int(read_status(pid, name) or "0", 16) >> number - 1 & 1 for name in sets)


def list_open(pid: int) -> list[str]:
    """Return the targets of a process's open descriptors: paths, ``socket:[INODE]``, ``pipe:[INODE]``."""
    folder = f"{PROC}/{pid}/fd"
    return [link for name in list_folder(folder)[:OPEN_MAX] if (link := read_link(f"{folder}/{name}"))]


def list_folder(path: str) -> list[str]:
    """Return the names in a directory; empty if it cannot be read."""
    try:
        return os.listdir(path)
    except OSError:
        return []


def read_link(path: str) -> str:
    """Return the target of a symbolic link; empty if it cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def read_file(path: str, limit: int = LIMIT_BYTES) -> bytes:
    """Return the content of a file, up to ``limit`` bytes; empty if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return read_all(fd, limit)
    finally:
        os.close(fd)


def read_all(fd: int, limit: int = LIMIT_BYTES) -> bytes:
    """Return what is left to read from a descriptor, up to ``limit`` bytes."""
    parts, size = [], 0
    try:
        while part := os.read(fd, min(PIECE_BYTES, limit - size)):
            parts.append(part)
            size += len(part)
    except OSError:
        pass  # the process has ended meanwhile
    return b"".join(parts)
