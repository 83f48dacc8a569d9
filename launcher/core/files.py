"""Write a file in one step: a reader sees the old one or the whole new one."""

from __future__ import annotations

import os
import stat
from errno import EACCES


def replace_file(text: str, path: str, mode: int | None = None) -> None:
    """Put a text where a path leads; a pipe or a device is written to, never replaced.

    Args:
        text: The whole new text.
        path: Where it is to stand.
        mode: Permissions of a new file whatever the umask; None for those that the umask leaves.

    Raises:
        OSError: The folder or the disk refuses; nothing half-written stays.
        PermissionError: It is a link or a pipe of another user.
    """
    target = follow(path)
    _refuse_foreign_pipe(target)
    if os.path.exists(target) and not os.path.isfile(target):
        write_to(target, text, os.O_WRONLY)
        return
    temporary = f"{target}.{os.urandom(4).hex()}.tmp"
    try:
        write_to(temporary, text, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        os.replace(temporary, target)
    except OSError as error:
        if not isinstance(error, FileExistsError) and os.path.exists(temporary):
            os.unlink(temporary)
        raise


def follow(path: str) -> str:
    """Return where a path leads.

    Raises:
        PermissionError: It is a link of another user: in a folder that everybody may write to, such
            a link can lead to any file of ours.
    """
    if os.path.islink(path) and os.lstat(path).st_uid not in (0, os.geteuid()):
        raise PermissionError(EACCES, "a symbolic link of another user")
    return os.path.realpath(path)


def _refuse_foreign_pipe(target: str) -> None:
    """Somebody who may write to a folder could read there what we write, or let us wait for ever."""
    try:
        found = os.stat(target)
    except OSError:
        return
    if stat.S_ISFIFO(found.st_mode) and found.st_uid not in (0, os.geteuid()):
        raise PermissionError(EACCES, "a pipe of another user")


def write_to(path: str, text: str, flags: int, mode: int | None = None) -> None:
    """Open a file in a certain way, give it a mode unless that is None, and write a text to it.

    Raises:
        OSError: It cannot be opened or written.
    """
    with open(os.open(path, flags | os.O_CLOEXEC | os.O_NOCTTY, 0o644), "w", encoding="utf-8") as file:
        if mode is not None:  # by the file: a path may lead elsewhere by now
            os.fchmod(file.fileno(), mode)
        file.write(text)
