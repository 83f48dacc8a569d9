"""Reads the files of a machine: those below a directory, or those of a recording.

All readers take regular files only: what we read from a pipe or a terminal would be lost to its real reader.
`read_whole` and `read_guarded` are for the files that a user or the environment names.

A recording maps absolute paths to the text of a file, to ``{"link": target}``, or to None for a name of which
only the existence is known. It may contain anything: a value of another type counts as unknown.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from launcher.core.errors import attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    Tree: TypeAlias = "dict[str, Tree]"

READ_LIMIT_BYTES = 1 << 20
STEP_BYTES = 1 << 14
LINKS_MAX = 40
"""Links in one path; the kernel's limit, see path_resolution(7)."""
ACCESS_LIST = "system.posix_acl_access"
PIPE_S = 5.0
"""Time limit in seconds for a pipe that the user has typed, such as ``<(command)``."""


class Folder:
    """The files below a directory, and no others: a whole machine's for ``/``."""

    def __init__(self, root: str) -> None:
        self.root = root

    def path(self, path: str, *, follows: bool = True) -> str:
        """Return where an absolute path of the machine is; links lead to places below ``root`` (chroot(2)).

        Raises:
            OSError: Links lead in a circle.
        """
        if self.root == "/":
            return f"/{path.lstrip('/')}"
        found: list[str] = []
        left, links = path.split("/")[::-1], 0
        while left:
            part = left.pop()
            if part == "..":
                del found[-1:]
            elif part not in ("", "."):
                found.append(part)
                here = os.path.join(self.root, *found)
                if (left or follows) and os.path.islink(here):
                    links += 1
                    if links > LINKS_MAX:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                    target = os.readlink(here)
                    found = [] if target.startswith("/") else found[:-1]
                    left += target.split("/")[::-1]
        return os.path.join(self.root, *found)

    def read_text(self, path: str) -> str | None:
        """Return a file's text (at most 1 MiB, undecodable bytes escaped), None if unreadable."""
        data = attempt(lambda: _read(open_file(self.path(path)), READ_LIMIT_BYTES))
        return None if data is None else data.decode("utf-8", "surrogateescape")

    def read_link(self, path: str) -> str | None:
        """Return the target of a symbolic link, None if it is not a link."""
        return attempt(lambda: os.readlink(self.path(path, follows=False)))

    def list_folder(self, path: str) -> tuple[str, ...]:
        """Return the names in a directory, sorted; empty if it cannot be listed."""
        return tuple(sorted(attempt(lambda: os.listdir(self.path(path))) or ()))

    def has_file(self, path: str) -> bool:
        """Whether a path exists, as a file of any kind or as a link."""
        return bool(attempt(lambda: os.path.lexists(self.path(path, follows=False))))

    def read_whole(self, path: str, limit_bytes: int, pipe_s: float = 0.0) -> bytes:
        """Return the content of a file that the user names: see the function `read_whole`."""
        return read_whole(self.path(path), limit_bytes, pipe_s)

    def read_guarded(self, path: str, limit_bytes: int, *, of_system: bool) -> bytes:
        """Return the content of a file that configures us: see the function `read_guarded`."""
        return read_guarded(self.path(os.path.abspath(path)), limit_bytes, of_system=of_system)


class Recording:
    """The files of a recording, which are never looked for on this machine."""

    def __init__(self, texts: Mapping[str, object]) -> None:
        self._texts = texts
        self._tree: Tree = {}

    def path(self, path: str) -> str:
        """Return a path that does not exist."""
        return f"/nonexistent{path}"

    def read_text(self, path: str) -> str | None:
        """Return a recorded text."""
        text = self._texts.get(path)
        return text if isinstance(text, str) else None

    def read_link(self, path: str) -> str | None:
        """Return a recorded link's target."""
        link = self._texts.get(path)
        target = link.get("link") if isinstance(link, dict) else None
        return target if isinstance(target, str) else None

    def list_folder(self, path: str) -> tuple[str, ...]:
        """Return the names in a directory that occur in recorded paths."""
        if not self._tree:  # a search for each directory would take hours for thousands
            for name in self._texts:
                folder = self._tree
                for part in name.split("/"):
                    folder = folder.setdefault(part, {})
        folder = self._tree
        for part in path.rstrip("/").split("/"):
            folder = folder.get(part, {})
        return tuple(sorted(folder))

    def has_file(self, path: str) -> bool:
        """Whether a file was recorded."""
        return self.read_text(path) is not None

    def read_whole(self, path: str, limit_bytes: int, pipe_s: float = 0.0) -> bytes:
        """Return a recorded file's content.

        Raises:
            FileNotFoundError: It was not recorded.
        """
        text = self.read_text(path)
        if text is None:
            raise FileNotFoundError(errno.ENOENT, "the snapshot does not have it")
        return text.encode("utf-8", "surrogateescape")[: limit_bytes + 1]

    def read_guarded(self, path: str, limit_bytes: int, *, of_system: bool) -> bytes:
        """Return a recorded file's content, as `read_whole`: its owner is not recorded."""
        return self.read_whole(path, limit_bytes)


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
        os.lstat(name, dir_fd=place)  # nothing is wrong with the directory of a file that is not there
        if of_system:  # first: what another user has put there may be a link to a device
            _refuse_shared(place, "its directory")
        fd = open_file(name, at=place)
        try:
            if of_system:
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
    return bool(attempt(os.getxattr, path, ACCESS_LIST))  # fails if it has none, or its file system


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
    from launcher.core.files import open_own

    return _read(open_own(path), limit_bytes + 1)


def _read(fd: int, size: int, pipe_s: float = 0.0) -> bytes:
    """Return what is read from a descriptor, and close it.

    Takes a third of the time of `open`, which matters for 100 small files.
    """
    deadline, data = time.monotonic() + pipe_s, b""
    try:
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
    finally:
        os.close(fd)


def _wait(fd: int, deadline: float) -> bool:
    import select

    poll = select.poll()
    poll.register(fd, select.POLLIN)
    left_s = deadline - time.monotonic()
    return left_s > 0 and bool(poll.poll(left_s * 1000))
