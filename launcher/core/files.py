"""Write a file that a path names: in one step, and never where another user has led it.

In a folder that several users may write to (/tmp), another one can put a link, a pipe or a file of its own in
the place of a name. So the way to a file is walked step by step, by descriptors: links count only if they
are root's or our own. What is there already is replaced, not written into; where that cannot be (a mounted
file, a device), it must not be one that another user can have put there.

Source: fs.protected_symlinks, protected_regular and protected_fifos of the kernel (sysctl/fs.rst), which
are stricter in what they look at and laxer in where.
"""

from __future__ import annotations

import os
import stat
from errno import EACCES, EISDIR, ELOOP

LINKS_MAX = 40
"""As many links as the kernel follows in one path (path_resolution(7))."""
FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def replace_file(text: str, path: str, mode: int | None = None, *, makes_folders: bool = False) -> None:
    """Put a text where a path leads; a pipe or a device is written to, never replaced.

    Args:
        text: The whole new text.
        path: Where it is to stand.
        mode: Permissions of a new file whatever the umask; None for those that the umask leaves.
        makes_folders: Whether to make the folders above it that are missing.

    Raises:
        OSError: The folder or the disk refuses; nothing half-written stays.
        PermissionError: It is a link or a pipe of another user.
    """
    folder, name = open_folder(path, makes=makes_folders)
    try:
        found = find(folder, name)
        if found is not None and not stat.S_ISREG(found.st_mode):
            _write_there(text, folder, name, os.O_WRONLY)
        else:
            _replace_there(text, folder, name, mode)
    finally:
        os.close(folder)


def write_in_place(text: str, path: str) -> None:
    """Write a text into what is there: a file that is mounted, a pipe, a device. Never waits.

    Raises:
        OSError: It is not there, cannot be written, or is a pipe that no process reads.
        PermissionError: Another user may have put it, or a link to it, there.
    """
    folder, name = open_folder(path)
    try:
        _write_there(text, folder, name, os.O_WRONLY | os.O_NONBLOCK)
    finally:
        os.close(folder)


def open_folder(path: str, *, makes: bool = False) -> tuple[int, str]:
    """Return a descriptor of the folder in which a path ends, and the name there, which is no link.

    Args:
        path: A path, whose last part need not exist.
        makes: Whether to make folders that are missing.

    Raises:
        OSError: There is no such folder, or the path ends in a folder.
        PermissionError: A link on the way is another user's: it can lead to any file of ours.
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
    """Return what stands in a folder, a link itself; None for nothing."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _split(path: str) -> list[str]:
    """Return the parts of a path, the first one last; one that ends with a slash ends in a folder."""
    parts = [part for part in path.split("/") if part]
    return [*(["."] if path.endswith("/") else []), *reversed(parts)]


def _go_on(folder: int, part: str) -> int:
    """Return a folder in a folder, instead of that."""
    inner = os.open(part, FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
    os.close(folder)
    return inner


def _make_folder(folder: int, name: str) -> None:
    try:  # noqa: SIM105 - contextlib is more to load than this needs
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:  # another node has been quicker
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
        refuse_planted(found, os.fstat(folder))  # it may be another one by now
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
    """Hold that no other user can have put there what is to be written into.

    In a folder that root or we alone may change, as /dev is, that is so whatever the file's owner: container
    runtimes mount files of other users.

    Args:
        found: What stands there.
        folder: The folder that it stands in.

    Raises:
        PermissionError: Another user may have put it there: a pipe, where we would wait and that user read;
            a file that stays that user's; a second name for a file of ours.
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
