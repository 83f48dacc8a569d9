"""Files that only we may read, and how their names are written into OpenSSH's configuration."""

from __future__ import annotations

import os

from launcher.core.errors import NotReady, Problem, UsageError


def write_private(path: str, content: str | bytes, *, new: bool = False) -> None:
    """Write a file of mode 0600; text may hold bytes that are not UTF-8, as variables do.

    Args:
        path: Where; not through a symbolic link.
        content: What.
        new: Refuse to write where a file is already.

    Raises:
        UsageError: ``new``, and it is there already.
        NotReady: It cannot be written.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
    kind = os.O_EXCL if new else os.O_TRUNC
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | kind
    try:
        with open(os.open(path, flags, 0o600), "wb") as file:
            os.fchmod(file.fileno(), 0o600)  # one that was there, too
            file.write(data)
    except FileExistsError as error:
        raise exists(path) from error
    except OSError as error:
        raise cannot_write(f"{path}: {error.strerror}") from error


def exists(path: str) -> UsageError:
    """Return that there is something already where keys are to be."""
    what = f"{path} is there already, and keys that exist are never overwritten"
    fix = "give these to the nodes, name another place, or remove it first, if no job needs it any more"
    return UsageError(Problem("key-exists", what, "command line", fix))


def cannot_write(what: str) -> NotReady:
    """Return that a file or folder for ssh cannot be made."""
    fix = "name another place, or free the disk"
    return NotReady(Problem("cannot-write", what, "files for ssh", fix))


def quote_path(path: str) -> str:
    """Return a path as an argument in sshd_config or ssh_config.

    Raises:
        NotReady: A character that some version or some option of OpenSSH cannot be told, or expands.
    """
    if not path.isprintable() or not {'"', "\\", "$", "%"}.isdisjoint(path):
        what = (
            f"{path!r}: OpenSSH needs a path without quotes, backslashes, dollars, percent signs and newlines"
        )
        raise cannot_write(what)
    return f'"{path}"'


def name_user(uid: int) -> str:
    """Return the fix where a user id has no name, which all programs of OpenSSH want."""
    return f"echo 'train:x:{uid}:{uid}::/tmp:/bin/sh' >>/etc/passwd in the image, or use a user of it"
