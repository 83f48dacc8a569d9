"""Write a file in one step: a reader sees the old one or the whole new one."""

from __future__ import annotations

import os
from errno import EACCES


def replace_file(text: str, path: str) -> None:
    """Put a text where a path leads; a pipe or a device is written to, never replaced.

    Raises:
        OSError: The folder or the disk refuses; nothing half-written stays.
    """
    target = follow(path)
    if os.path.exists(target) and not os.path.isfile(target):
        write_to(target, text, os.O_WRONLY)
        return
    temporary = f"{target}.{os.urandom(4).hex()}.tmp"
    try:
        write_to(temporary, text, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
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


def write_to(path: str, text: str, flags: int) -> None:
    """Open a file in a certain way and write a text to it.

    Raises:
        OSError: It cannot be opened or written.
    """
    with open(os.open(path, flags | os.O_CLOEXEC | os.O_NOCTTY, 0o644), "w", encoding="utf-8") as file:
        file.write(text)
