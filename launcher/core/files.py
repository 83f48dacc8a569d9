"""Opens, creates, renames and removes files, and never follows what another user has planted.

In a directory that several users may write to (/tmp), another user can create a link, a pipe, a directory or
a file under a name that we want to write. So we walk a path step by step with descriptors, follow only links
of root or of our own user, and enter no directory that another user has made in such a place. We replace an
existing file and do not write into it. If it must be written in place (a log that grows, a mounted file, a
device), no other user may have been able to put it there.

All other modules write through this one (`tests/unit/test_file_rule.py` lists the few exceptions). ``at`` is
the descriptor of a directory, for a path inside of it: what happens to the folder's own path does not matter.
It imports nothing of the launcher and runs on Python 3.8, because `launcher.inprocess` uses it.

Source: fs.protected_symlinks, protected_regular and protected_fifos of the kernel (sysctl/fs.rst). They check
more properties of a file, but only in some directories.
"""

from __future__ import annotations

import os
import stat
from errno import EACCES, EEXIST, EISDIR, ELOOP, EPERM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

LINKS_MAX = 40
"""Number of links that the kernel follows in one path (path_resolution(7))."""
FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
SAFE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
PRIVATE_FOLDER = 0o700


def replace_file(
    data: str | bytes,
    path: str,
    mode: int | None = None,
    *,
    makes_folders: bool = False,
    at: int | None = None,
) -> None:
    """Write a file in one step, replacing an existing one; a pipe or a device is written to.

    Never waits: a pipe that no process reads is an error.

    Args:
        data: The whole new content.
        path: Path of the file.
        mode: Permissions of a new file whatever the umask; None for those that the umask leaves.
        makes_folders: Whether to make missing parent directories.
        at: Directory of a relative path; None for the working directory.

    Raises:
        OSError: The write failed, e.g. on a full disk; no partial file stays.
        PermissionError: Another user has planted a part of the path.
    """
    with _Place(path, makes=makes_folders, at=at) as (folder, name):
        found = find(folder, name)
        if found is not None and not stat.S_ISREG(found.st_mode):
            _write_there(data, folder, name)
            return
        temporary = f"{name}.{os.urandom(4).hex()}.tmp"
        file = os.open(temporary, NEW_FLAGS, 0o644, dir_fd=folder)
        try:
            _write(data, file, mode)
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(temporary, dir_fd=folder)
            raise


def write_in_place(text: str, path: str) -> None:
    """Write a text into an existing file, pipe or device, such as a mounted file. Never waits.

    Raises:
        OSError: It does not exist, cannot be written, or is a pipe that no process reads.
        PermissionError: Another user may have put it, or a link to it, there.
    """
    with _Place(path) as (folder, name):
        _write_there(text, folder, name)


def create_file(data: str | bytes, path: str, mode: int, *, at: int | None = None) -> None:
    """Write a new file with these permissions.

    Raises:
        FileExistsError: Something has this name.
        OSError: It cannot be written, e.g. on a full disk, and no partial file stays; or another user has
            planted a part of the path.
    """
    with _Place(path, at=at) as (folder, name):
        file = os.open(name, NEW_FLAGS, mode, dir_fd=folder)
        try:
            _write(data, file, mode)
        except BaseException:
            os.unlink(name, dir_fd=folder)
            raise


def append_file(path: str, *, new: bool = False, makes_folders: bool = False, at: int | None = None) -> int:
    """Return a non-blocking descriptor that appends to a file, a pipe or a device; a missing file is made.

    Raises:
        FileExistsError: Something has this name, and ``new`` is set.
        OSError: It cannot be opened, or is a pipe that no process reads.
        PermissionError: Another user may have put it, or a part of the path, there.
    """
    flags = os.O_APPEND | SAFE_FLAGS
    with _Place(path, makes=makes_folders, at=at) as (folder, name):
        try:
            return os.open(name, NEW_FLAGS | flags, 0o666, dir_fd=folder)
        except FileExistsError:
            if new:
                raise
        return _open_there(folder, name, os.O_WRONLY | flags)


def open_own(path: str, flags: int = os.O_RDONLY, *, kind: int = stat.S_IFREG, at: int | None = None) -> int:
    """Return a non-blocking descriptor of a file that our user or root has made: it can be evidence.

    Raises:
        OSError: It cannot be opened, or is of another kind.
        PermissionError: Another user has made it, gave it a second name, or planted a part of the path.
    """
    with _Place(path, at=at) as (folder, name):
        _refuse_foreign(os.stat(name, dir_fd=folder, follow_symlinks=False), kind)
        return _open_checked(folder, name, flags | SAFE_FLAGS, lambda found: _refuse_foreign(found, kind))


def make_folder(path: str, mode: int = 0o777, *, new: bool = False, at: int | None = None) -> int:
    """Return a descriptor of a directory, for ``at``; it and those above are made if missing.

    Args:
        path: The directory.
        mode: Its permissions if it is made, which the umask limits.
        new: Whether it must not exist, and only it is made.
        at: Directory of a relative path; None for the working directory.

    Raises:
        FileExistsError: Something has this name, and ``new`` is set.
        OSError: It cannot be made or entered, or another user has planted a part of the path.
    """
    folder, name = open_folder(path.rstrip("/") or "/", makes=not new, at=at, ends_in_folder=True)
    try:
        if name:
            _make_folder(folder, name, mode, new=new)
            folder = _go_on(folder, name)
        elif new:
            raise FileExistsError(EEXIST, os.strerror(EEXIST))
    except BaseException:
        os.close(folder)
        raise
    return folder


def make_private_folder(bases: Iterable[str]) -> str:
    """Make a directory with a random name that only our user can enter, in the first base that can have one.

    Raises:
        OSError: None of them has.
    """
    refused = OSError(EACCES, os.strerror(EACCES))
    for base in bases:
        path = os.path.join(os.path.abspath(base), f"launcher-{os.urandom(8).hex()}")
        try:
            os.close(make_folder(path, PRIVATE_FOLDER, new=True))
        except OSError as error:
            refused = OSError(error.errno, f"{base}: {error.strerror}")
        else:
            return path
    raise refused


def rename_file(path: str, name: str, *, at: int | None = None) -> None:
    """Give a file another name in its directory, replacing what has that name; a missing file is ignored.

    Raises:
        OSError: It cannot be renamed, or another user has planted a part of the path.
    """
    with _Place(path, at=at, follows_last=False) as (folder, old):
        if find(folder, old) is not None:
            os.replace(old, name, src_dir_fd=folder, dst_dir_fd=folder)


def remove_file(path: str, *, at: int | None = None) -> None:
    """Remove a file, a link or a socket.

    Raises:
        OSError: It cannot be removed, or another user has planted a part of the path.
    """
    with _Place(path, at=at, follows_last=False) as (folder, name):
        os.unlink(name, dir_fd=folder)


def remove_tree(path: str) -> None:
    """Remove a directory and what is in it; what cannot be removed stays."""
    try:
        with _Place(path, follows_last=False) as (folder, name):
            _remove_tree(folder, name)
    except OSError:
        pass


def open_folder(
    path: str,
    *,
    makes: bool = False,
    at: int | None = None,
    follows_last: bool = True,
    ends_in_folder: bool = False,
) -> tuple[int, str]:
    """Return a descriptor of a path's last directory, and the file's name in it, with all links resolved.

    Args:
        path: A path whose last part need not exist.
        makes: Whether to make missing directories.
        at: Directory of a relative path; None for the working directory.
        follows_last: Whether the last part may be a link that is followed.
        ends_in_folder: Whether the path may name a directory: then the descriptor is that one's, and the name
            is empty.

    Raises:
        OSError: The directory does not exist, or the path names a directory.
        PermissionError: The path has a link of another user, which could lead to any file of ours, or a
            directory that another user has made where all may.
    """
    if at is None or path.startswith("/"):
        folder = os.open("/" if path.startswith("/") else ".", FOLDER_FLAGS)
    else:
        folder = os.dup(at)
    left, links = _split(path), 0
    try:
        while left:
            part = left.pop()
            if not left and not follows_last:
                return folder, part
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
        if ends_in_folder:
            return folder, ""
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
    except BaseException:
        os.close(folder)
        raise


class _Place:
    """The last directory of a path, open in a ``with`` statement, and the file's name: see `open_folder`."""

    def __init__(self, path: str, **how: Any) -> None:
        self._found = open_folder(path, **how)

    def __enter__(self) -> tuple[int, str]:
        return self._found

    def __exit__(self, *_: object) -> None:
        os.close(self._found[0])


def look_at_all(paths: Iterable[str]) -> Iterator[tuple[str, os.stat_result | OSError]]:
    """Yield what absolute paths lead to without any link, or why they lead to nothing.

    If they are sorted, a directory above many is opened once: another user may have made them, deep below.
    """
    parts: list[str] = []
    folders = [os.open("/", FOLDER_FLAGS)]
    try:
        for path in paths:
            *above, name = filter(None, path.split("/"))
            while above[: len(parts)] != parts:
                del parts[-1]
                os.close(folders.pop())
            try:
                for part in above[len(parts) :]:
                    folders.append(os.open(part, FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folders[-1]))
                    parts.append(part)
                yield path, os.stat(name, dir_fd=folders[-1], follow_symlinks=False)
            except OSError as error:
                yield path, error
    finally:
        for folder in folders:
            os.close(folder)


def find(folder: int, name: str) -> os.stat_result | None:
    """Return the status of a name in a directory, without following a link; None if it does not exist."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _split(path: str) -> list[str]:
    """Return the parts of a path in reverse order, with ``.`` as the last part after a final slash."""
    parts = [part for part in path.split("/") if part]
    return [*(["."] if path.endswith("/") else []), *reversed(parts)]


def _go_on(folder: int, part: str) -> int:
    """Open a directory inside a directory, close the outer one, and return the inner one."""

    def check(found: os.stat_result) -> None:
        if _is_foreign(found) and part not in ("/", ".", ".."):
            refuse_planted(found, os.fstat(folder))

    inner = _open_checked(folder, part, FOLDER_FLAGS | os.O_NOFOLLOW, check)
    os.close(folder)
    return inner


def _open_checked(folder: int, name: str, flags: int, check: Callable[[os.stat_result], None]) -> int:
    """Open a file and return its descriptor, or close it if the check of its status raises.

    What was checked by its name may have been replaced meanwhile.
    """
    file = os.open(name, flags, dir_fd=folder)
    try:
        check(os.fstat(file))
    except BaseException:
        os.close(file)
        raise
    return file


def _make_folder(folder: int, name: str, mode: int = 0o777, *, new: bool = False) -> None:
    try:
        os.mkdir(name, mode, dir_fd=folder)
    except FileExistsError:  # another node was faster
        if new:
            raise


def _read_link(folder: int, name: str, count: int) -> str:
    if count > LINKS_MAX:
        raise OSError(ELOOP, os.strerror(ELOOP))
    link = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if _is_foreign(os.fstat(link)):
            raise PermissionError(EACCES, "a symbolic link of another user")
        return os.readlink("", dir_fd=link)
    finally:
        os.close(link)


def _open_there(folder: int, name: str, flags: int) -> int:
    """Open an existing file, unless another user may have put it there."""
    place = os.fstat(folder)
    refuse_planted(os.stat(name, dir_fd=folder, follow_symlinks=False), place)
    return _open_checked(folder, name, flags | SAFE_FLAGS, lambda found: refuse_planted(found, place))


def _write_there(data: str | bytes, folder: int, name: str) -> None:
    file = _open_there(folder, name, os.O_WRONLY)
    if stat.S_ISREG(os.fstat(file).st_mode):
        os.ftruncate(file, 0)
    _write(data, file, None)


def _write(data: str | bytes, file: int, mode: int | None) -> None:
    with open(file, "wb") as opened:
        if mode is not None:
            os.fchmod(file, mode)
        opened.write(data.encode() if isinstance(data, str) else data)


def _remove_tree(folder: int, name: str) -> None:
    try:
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            for entry in os.listdir(inner):
                found = find(inner, entry)
                if found is not None and stat.S_ISDIR(found.st_mode):
                    _remove_tree(inner, entry)
                elif found is not None:
                    os.unlink(entry, dir_fd=inner)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=folder)
    except (OSError, RecursionError):
        pass


def refuse_planted(found: os.stat_result, folder: os.stat_result) -> None:
    """Check that no other user can have put a file there that we write into, or a directory that we enter.

    In a directory that only root or we may change, such as /dev, the file's owner does not matter, except for
    a pipe: container runtimes mount files of other users. Nor does it if it is the folder's owner, who may
    change everything there: on some network file systems all files belong to one user.

    Args:
        found: Status of what exists.
        folder: Status of its directory.

    Raises:
        PermissionError: Another user may have put it there: a pipe, at which we would wait and which that
            user would read; a file or directory that this user owns; a second name for a file of ours.
    """
    is_foreign, is_folder = _is_foreign(found), stat.S_ISDIR(found.st_mode)
    if is_foreign and stat.S_ISFIFO(found.st_mode):
        raise PermissionError(EACCES, "a pipe of another user")
    # A team's directory is writable by its group, and its members work in each other's directories
    is_shared = bool(folder.st_mode & (stat.S_IWOTH if is_folder else OTHERS_WRITE))
    is_shared = is_shared or (not is_folder and _is_foreign(folder))
    is_exempt = found.st_uid == folder.st_uid and not folder.st_mode & stat.S_ISVTX
    if is_shared and is_foreign and not is_exempt:
        what = "folder" if is_folder else "file"
        raise PermissionError(EACCES, f"a {what} of another user, in a directory that others may write to")
    if is_shared and stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        raise PermissionError(EACCES, "a file with several names, in a directory that others may write to")


def _refuse_foreign(found: os.stat_result, kind: int) -> None:
    if stat.S_IFMT(found.st_mode) != kind:
        raise OSError(EPERM, "not a regular file" if kind == stat.S_IFREG else "not a pipe")
    if _is_foreign(found):
        raise PermissionError(EPERM, "another user owns it")
    if found.st_nlink != 1:
        raise PermissionError(EPERM, "it has several names, or none")


def _is_foreign(found: os.stat_result) -> bool:
    """Whether a user other than root and us owns something."""
    return found.st_uid not in (0, os.geteuid())
