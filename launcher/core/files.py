"""Writes files atomically, and never to a place that another user has planted.

In a folder that several users may write to (/tmp), another user can create a link, a pipe or a file under a
name that we want to write. So we walk a path step by step with descriptors, and follow only links of root or
of our own user. We replace an existing file and do not write into it. If a file cannot be replaced (a mounted
file, a device), we write into it only if no other user can have put it there.

Source: fs.protected_symlinks, protected_regular and protected_fifos of the kernel (sysctl/fs.rst). They check
more properties of a file, but only in some folders.
"""

from __future__ import annotations

import os
import stat
from errno import EACCES, EISDIR, ELOOP

LINKS_MAX = 40
"""Number of links that the kernel follows in one path (path_resolution(7))."""
FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def replace_file(text: str, path: str, mode: int | None = None, *, makes_folders: bool = False) -> None:
    """Write a text to a path, replacing a file; a pipe or a device is written to and never replaced.

    Never waits: a pipe that no process reads is an error.

    Args:
        text: The whole new text.
        path: Path of the file.
        mode: Permissions of a new file whatever the umask; None for those that the umask leaves.
        makes_folders: Whether to make missing parent folders.

    Raises:
        OSError: The write failed, e.g. on a full disk; no partial file stays.
        PermissionError: The path leads to a link or a pipe of another user.
    """
    folder, name = open_folder(path, makes=makes_folders)
    try:
        found = find(folder, name)
        if found is not None and not stat.S_ISREG(found.st_mode):
            _write_there(text, folder, name, os.O_WRONLY | os.O_NONBLOCK)
        else:
            _replace_there(text, folder, name, mode)
    finally:
        os.close(folder)


def write_in_place(text: str, path: str) -> None:
    """Write a text into an existing file, pipe or device, such as a mounted file. Never waits.

    Raises:
        OSError: It does not exist, cannot be written, or is a pipe that no process reads.
        PermissionError: Another user may have put it, or a link to it, there.
    """
    folder, name = open_folder(path)
    try:
        _write_there(text, folder, name, os.O_WRONLY | os.O_NONBLOCK)
    finally:
        os.close(folder)


def open_folder(path: str, *, makes: bool = False) -> tuple[int, str]:
    """Return a descriptor of a path's last folder, and the file's name in it, with all links resolved.

    Args:
        path: A path whose last part need not exist.
        makes: Whether to make missing folders.

    Raises:
        OSError: The folder does not exist, or the path names a folder.
        PermissionError: The path has a link of another user, which could lead to any file of ours.
    """
    folder = os.open("/" if path.startswith("/") else ".", FOLDER_FLAGS)
    left, links = _split(path), 0
    try:
        while left:
            part = left.pop()
            found = find(folder, part)
            if found is None and not left:
                return folder, part
            if found is None and makes:
                _make_folder(folder, part)
                left.append(part)
            elif found is not None and stat.S_ISLNK(found.st_mode):
                links += 1
                target = _read_link(folder, part, links)
                left += _split(target)
                folder = _go_on(folder, "/" if target.startswith("/") else ".")
            elif left or (found is not None and stat.S_ISDIR(found.st_mode)):
                folder = _go_on(folder, part)
            else:
                return folder, part
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
    except BaseException:
        os.close(folder)
        raise


def find(folder: int, name: str) -> os.stat_result | None:
    """Return the status of a name in a folder, without following a link; None if it does not exist."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _split(path: str) -> list[str]:
    """Return the parts of a path in reverse order, with ``.`` as the last part after a final slash."""
    parts = [part for part in path.split("/") if part]
    return [*(["."] if path.endswith("/") else []), *reversed(parts)]


def _go_on(folder: int, part: str) -> int:
    """Open a folder inside a folder, close the outer one, and return the inner one."""
    inner = os.open(part, FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
    os.close(folder)
    return inner


def _make_folder(folder: int, name: str) -> None:
    try:  # noqa: SIM105 - contextlib is too large to load for this
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:  # another node was faster
        pass


def _read_link(folder: int, name: str, count: int) -> str:
    if count > LINKS_MAX:
        raise OSError(ELOOP, os.strerror(ELOOP))
    link = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if os.fstat(link).st_uid not in (0, os.geteuid()):
            raise PermissionError(EACCES, "a symbolic link of another user")
        return os.readlink("", dir_fd=link)
    finally:
        os.close(link)


def _replace_there(text: str, folder: int, name: str, mode: int | None) -> None:
    temporary = f"{name}.{os.urandom(4).hex()}.tmp"
    file = os.open(temporary, NEW_FLAGS, 0o644, dir_fd=folder)
    try:
        _write(text, file, mode)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(temporary, dir_fd=folder)
        raise


def _write_there(text: str, folder: int, name: str, flags: int) -> None:
    refuse_planted(os.stat(name, dir_fd=folder, follow_symlinks=False), os.fstat(folder))
    file = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY, dir_fd=folder)
    found = os.fstat(file)
    try:
        refuse_planted(found, os.fstat(folder))  # it may have been replaced meanwhile
        if stat.S_ISREG(found.st_mode):
            os.ftruncate(file, 0)
    except BaseException:
        os.close(file)
        raise
    _write(text, file, None)


def _write(text: str, file: int, mode: int | None) -> None:
    with open(file, "w", encoding="utf-8") as opened:
        if mode is not None:
            os.fchmod(file, mode)
        opened.write(text)


def refuse_planted(found: os.stat_result, folder: os.stat_result) -> None:
    """Check that no other user can have put a file there that we are about to write into.

    In a folder that only root or we may change, such as /dev, the file's owner does not matter, except for a
    pipe: container runtimes mount files of other users.

    Args:
        found: Status of the existing file.
        folder: Status of its folder.

    Raises:
        PermissionError: Another user may have put it there: a pipe, at which we would wait and which that
            user would read; a file that this user owns; a second name for a file of ours.
    """
    own = (0, os.geteuid())
    is_foreign = found.st_uid not in own
    if is_foreign and stat.S_ISFIFO(found.st_mode):
        raise PermissionError(EACCES, "a pipe of another user")
    is_shared = bool(folder.st_mode & OTHERS_WRITE) or folder.st_uid not in own
    if is_shared and is_foreign:
        raise PermissionError(EACCES, "a file of another user, in a folder that others may write to")
    if is_shared and stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        raise PermissionError(EACCES, "a file with several names, in a folder that others may write to")
