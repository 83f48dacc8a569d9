"""Reads a whole file that the user or the environment names, with limits on its size and on time."""

from __future__ import annotations

import errno
import os
import select
import stat
import time

from launcher.core.files import open_own

STEP_BYTES = 1 << 16
ACCESS_LIST = "system.posix_acl_access"
PIPE_S = 5.0
"""Time limit in seconds for a pipe that the user has typed, such as ``<(command)``."""


def read_whole(path: str, limit_bytes: int, pipe_s: float = 0.0) -> bytes:
    """Return the content of a regular file, or of a pipe if ``pipe_s`` is not 0.

    At most one byte more than the limit is returned, which shows that the file is longer.

    Raises:
        OSError: It cannot be read, is another kind of file, or is a pipe that does not end within ``pipe_s``
            seconds.
    """
    return _read(open_file(path, is_pipe_meant=pipe_s > 0), limit_bytes + 1, pipe_s)


def open_file(path: str, *, is_pipe_meant: bool = False, at: int | None = None) -> int:
    """Return a non-blocking descriptor of a regular file, or of a pipe if ``is_pipe_meant``.

    Raises:
        OSError: It cannot be opened, or is another kind of file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=at)
    kind = os.fstat(fd).st_mode
    if stat.S_ISREG(kind) or (stat.S_ISFIFO(kind) and is_pipe_meant):
        return fd
    os.close(fd)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EINVAL, "not a regular file")


def read_guarded(path: str, limit_bytes: int, *, of_system: bool) -> bytes:
    """Return the content of a regular file that not all users can write.

    At most one byte more than the limit is returned, which shows that the file is longer. With ``of_system``
    the file and its directory must belong to root or to our user, and only they may write them: no access
    list, and no group but root's, or the one that has our user's number and so no other member.

    Raises:
        OSError: It is not such a file, or cannot be read.
    """
    folder, name = os.path.split(path)
    place = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd = open_file(name, at=place)
        try:
            if of_system:
                _refuse_shared(place, "its folder")
                _refuse_shared(fd, "it")
            elif os.fstat(fd).st_mode & stat.S_IWOTH:
                raise OSError(errno.EPERM, "all users can write it")
        except OSError:
            os.close(fd)
            raise
        return _read(fd, limit_bytes + 1)
    finally:
        os.close(place)


def has_access_list(path: str) -> bool:
    """Whether more than the owner and the group have rights: the group's bits are those of the list, then."""
    try:
        return bool(os.getxattr(path, ACCESS_LIST))
    except OSError:  # it has none, or its file system
        return False


def _refuse_shared(fd: int, what: str) -> None:
    """Refuse a file or a directory that another user than root and ours can write."""
    found = os.fstat(fd)
    own_group = os.getegid() if os.getegid() == os.geteuid() else 0
    if found.st_mode & stat.S_IWOTH:
        raise OSError(errno.EPERM, f"all users can write {what}")
    if found.st_mode & stat.S_IWGRP and found.st_gid not in (0, own_group):
        raise OSError(errno.EPERM, f"group {found.st_gid} can write {what}")
    if found.st_mode & stat.S_IWGRP and has_access_list(f"/proc/self/fd/{fd}"):  # fgetxattr(2) refuses O_PATH
        raise OSError(errno.EPERM, f"an access list lets others write {what}")
    if found.st_uid not in (0, os.geteuid()):
        raise OSError(errno.EPERM, f"user {found.st_uid} owns {what}, neither root nor you")


def read_own(path: str, limit_bytes: int) -> bytes:
    """Return the content of a file that our user or root has made: evidence of what our processes do.

    At most one byte more than the limit is returned, which shows that the file is longer.

    Raises:
        OSError: It is not such a file, or cannot be read: see `launcher.core.files.open_own`.
    """
    return _read(open_own(path), limit_bytes + 1)


def _read(fd: int, size: int, pipe_s: float = 0.0) -> bytes:
    """Return what is read from a descriptor, and close it."""
    try:
        return _read_open(fd, size, time.monotonic() + pipe_s, pipe_s)
    finally:
        os.close(fd)


def _read_open(fd: int, size: int, deadline: float, pipe_s: float) -> bytes:
    data = b""
    while len(data) < size:
        try:
            part = os.read(fd, min(STEP_BYTES, size - len(data)))
        except BlockingIOError:  # another process holds the pipe open and has not written yet
            part = None
        if part:
            data += part
        elif part == b"" and (data or not pipe_s):
            break
        elif not _wait(fd, deadline):  # no data yet: a writer may still open the pipe
            raise TimeoutError(errno.ETIMEDOUT, f"the pipe did not end within {pipe_s:g} s")
        elif part == b"":
            pipe_s = 0.0  # the pipe has ended or has data: the next empty read is its end
    return data


def _wait(fd: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    left_s = deadline - time.monotonic()
    return left_s > 0 and bool(poll.poll(left_s * 1000))
