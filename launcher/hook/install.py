"""Install, remove and inspect the hook's file: atomically, and never another program's file."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from contextlib import contextmanager

from launcher.core.errors import make_error
from launcher.core.files import remove_file, replace_file
from launcher.hook.line import HEAD, enter_file
from launcher.machine.files import has_access_list, read_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

READ_LIMIT_BYTES = 1 << 20
INSTALLED = ("site-packages", "dist-packages")
"""Folders in a Python's library that it does not load with ``-S``, as the hook's Python runs."""
MODE = 0o644
"""Readable by all users whatever the installer's umask: the job may run as another user."""


def install(path: str, text: str, *, force: bool = False) -> str:
    """Write the file; return what was done: ``"installed"``, ``"updated"`` or ``"as it was"``.

    Args:
        path: The file.
        text: Its new content.
        force: Whether to replace a file of ours that has added lines.

    Raises:
        UsageError: The file belongs to another program, or lines were added to ours.
        NotReady: The file cannot be read, or the directory cannot be written to.
    """
    old = read_own(path)
    if old == text:
        return "as it was"
    with _own_file(path, old, text, force=force):
        replace_file(text, path, MODE, makes_folders=True)
    return "updated" if old else "installed"


def remove(path: str, text: str, *, force: bool = False) -> str:
    """Remove the file; return what was done: ``"removed"`` or ``"not there"``.

    Args:
        path: The file.
        text: What `install` would write there.
        force: Whether to remove a file of ours together with lines that were added to it.

    Raises:
        UsageError: The file belongs to another program, or lines were added to ours.
        NotReady: The file cannot be read, or the directory cannot be written to.
    """
    old = read_own(path)
    if old is None:
        return "not there"
    with _own_file(path, old, text, force=force):
        remove_file(path)
    return "removed"


def look(path: str, text: str) -> tuple[str, bool]:
    """Return the state of the file, and whether it contains what this launcher would write.

    Raises:
        UsageError: The file belongs to another program.
        NotReady: The file cannot be read.
    """
    found = read_own(path)
    if found is None:
        return "not installed", False
    if found == text:
        return "installed", True
    target = found.splitlines()[1].removeprefix("# ") if found.count("\n") > 1 else ""
    if not os.path.isfile(target):
        return f"does nothing: {target or 'its launcher'} is gone", False
    if target != enter_file():
        return f"installed by another launcher: {target}", False
    if not _is_alike(found, text):
        return "installed, and changed since", text in found
    return "installed by another version of this launcher, or by another Python", False


@contextmanager
def _own_file(path: str, old: str | None, text: str, *, force: bool) -> Iterator[None]:
    """Change the file; refuse if lines of it were added or changed, unless ``force`` is set."""
    if old is not None and not force and not _is_alike(old, text):
        raise make_error("hook-changed", path=path)
    try:
        yield
    except OSError as error:
        raise make_error("hook-file", path=path, reason=error.strerror) from error


def _is_alike(old: str, text: str) -> bool:
    """Whether two texts differ only in versions and paths: as many lines, each with the same beginning."""
    return [_begin(line) for line in old.splitlines()] == [_begin(line) for line in text.splitlines()]


def _begin(line: str) -> str:
    """Return the indentation and the first word of a line."""
    return line[: len(line) - len(line.lstrip())] + "".join(line.split(None, 1)[:1])


def read_own(path: str) -> str | None:
    """Return the text of one of our files; None if there is none.

    Raises:
        UsageError: The file belongs to another program.
        NotReady: The file cannot be read.
    """
    try:
        text = read_whole(path, READ_LIMIT_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise make_error("hook-file", path=path, reason=error.strerror) from error
    if not text.startswith(HEAD):
        raise make_error("hook-conflict", path=path)
    return text


def find_closed_folder(path: str) -> str | None:
    """Return the nearest directory above a file that not all users can enter; None if all can reach it."""
    while path != "/":
        path = os.path.dirname(path)
        try:
            if not os.stat(path).st_mode & 0o001:
                return path
        except OSError:
            return path
    return None


def find_unsafe(package: str) -> str | None:
    """Apply `find_writable` to the launcher, its Python, and everything Python reads first.

    These are a ``pyvenv.cfg``, which names the library, and the library without installed packages.

    Args:
        package: The directory of the launcher.
    """
    folder = os.path.dirname(sys.executable)
    settings = [os.path.join(one, "pyvenv.cfg") for one in (folder, os.path.dirname(folder))]
    library = os.path.dirname(os.path.abspath(os.__file__))
    paths = (package, sys.executable, *filter(os.path.exists, settings), library)
    return next(filter(None, map(find_writable, paths)), None)


def find_writable(path: str) -> str | None:
    """Return the command that takes the first file or directory from other users who can change what is run.

    None if only root and this user can. Links are followed: an installer may have made a package of links.

    Args:
        path: A file that the hook names, or the directory of a package.
    """
    todo, known = [path], {os.path.realpath(path)}
    while todo:
        path = todo.pop()
        for folder, folders, names in os.walk(path):
            folders[:] = [name for name in folders if name not in INSTALLED]
            for inside in (folder, *(os.path.join(folder, name) for name in (*folders, *names))):
                if mend := _mend(inside, is_above=False):
                    return f"{mend[0]} -R {mend[1]} {shlex.quote(path)}"
                if os.path.islink(inside):
                    if command := find_writable_above(inside):
                        return command
                    target = os.path.realpath(inside)
                    todo += [] if target in known else [target]
                    known.add(target)
        if command := find_writable_above(path):
            return command
    return None


def find_writable_above(path: str) -> str | None:
    """Return the same of a path and the directories above it; this user makes those that are missing."""
    for above in filter(os.path.lexists, _list_above(path)):
        if mend := _mend(above, is_above=above != path):
            return f"{mend[0]} {mend[1]} {shlex.quote(above)}"
    return None


def _mend(path: str, *, is_above: bool) -> tuple[str, str] | None:
    """Return how to take a file from other users; None if only root and this user can write it."""
    found = os.lstat(path)
    if found.st_uid not in (0, os.geteuid()):
        return "chown", f"-h {os.geteuid()}:{os.getegid()}"
    # The sticky bit protects the files of a directory, but does not keep new ones out
    if stat.S_ISLNK(found.st_mode) or (is_above and found.st_mode & stat.S_ISVTX):
        return None
    by_group = found.st_mode & stat.S_IWGRP and found.st_gid not in (0, os.getegid())
    if by_group or found.st_mode & stat.S_IWOTH:
        return "chmod", "go-w"
    return ("setfacl", "-b") if found.st_mode & stat.S_IWGRP and has_access_list(path) else None


def _list_above(path: str) -> list[str]:
    """Return a path, all directories above it, and the same of all links among them."""
    found: list[str] = []
    todo = [path]
    while todo:
        path = os.path.abspath(todo.pop())
        while path not in found:
            found.append(path)
            if os.path.islink(path):
                todo.append(os.path.join(os.path.dirname(path), os.readlink(path)))
            path = os.path.dirname(path)
    return found
