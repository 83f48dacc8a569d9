"""Read a file that a user or the environment has named, in whole: bounded in size and in time."""

from __future__ import annotations

import errno
import os
import select
import stat
import time

STEP_BYTES = 1 << 16
PIPE_S = 5.0
"""How long a pipe that the user has typed may take, as of ``<(command)``."""


def read_whole(path: str, limit_bytes: int, pipe_s: float = 0.0) -> bytes:
    """Return a regular file, or a pipe if it may be waited for; at most one byte more than the limit.

    Raises:
        OSError: It cannot be read, is no such file, or a pipe does not end within ``pipe_s`` seconds.
    """
    fd = open_file(path, is_pipe_meant=pipe_s > 0)
    try:
        return _read(fd, limit_bytes + 1, time.monotonic() + pipe_s, pipe_s)
    finally:
        os.close(fd)


def open_file(path: str, *, is_pipe_meant: bool = False) -> int:
    """Return a descriptor of a regular file, or of a pipe if that is meant; it does not wait.

    Raises:
        OSError: It cannot be opened, or is no such file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    kind = os.fstat(fd).st_mode
    if stat.S_ISREG(kind) or (stat.S_ISFIFO(kind) and is_pipe_meant):
        return fd
    os.close(fd)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EINVAL, "not a regular file")


def read_guarded(path: str, limit_bytes: int, *, of_system: bool) -> bytes:
    """Return a regular file that not all users can write; ``of_system``: and that is root's, or ours.

    Raises:
        OSError: It is none, or cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if found.st_mode & stat.S_IWOTH:
            raise OSError(errno.EPERM, "all users can write it")
        if of_system and found.st_uid not in (0, os.geteuid()):
            raise OSError(errno.EPERM, f"user {found.st_uid} owns it, neither root nor you")
        return _read(fd, limit_bytes + 1, time.monotonic(), 0.0)
    finally:
        os.close(fd)


def _read(fd: int, size: int, deadline: float, pipe_s: float) -> bytes:
    data = b""
    while len(data) < size:
        try:
            part = os.read(fd, min(STEP_BYTES, size - len(data)))
        except BlockingIOError:  # a pipe that another process holds open
            part = None
        if part:
            data += part
        elif part == b"" and (data or not pipe_s):
            break
        elif not _wait(fd, deadline):  # nothing was written yet, by a process that may still open it
            raise TimeoutError(errno.ETIMEDOUT, f"a pipe that does not end within {pipe_s:g} s")
        elif part == b"":
            pipe_s = 0.0  # it has ended, or there is something to read: the next empty read is its end
    return data


def _wait(fd: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    left_s = deadline - time.monotonic()
    return left_s > 0 and bool(poll.poll(left_s * 1000))
