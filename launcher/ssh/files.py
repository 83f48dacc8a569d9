"""Files that only we may read, and how their names are written into OpenSSH's configuration."""

from __future__ import annotations

import os


def write_private(path: str, content: str | bytes, *, new: bool = False) -> None:
    """Write a file of mode 0600; text may hold bytes that are not UTF-8, as variables do.

    Args:
        path: Where; not through a symbolic link.
        content: What.
        new: Refuse to write where a file is already.

    Raises:
        OSError: It cannot be written, or is there already.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
    kind = os.O_EXCL if new else os.O_TRUNC
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | kind
    with open(os.open(path, flags, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)  # one that was there, too
        file.write(data)


def quote_path(path: str) -> str:
    """Return a path as an argument in sshd_config or ssh_config, where ``%`` begins a token.

    Raises:
        ValueError: A character that some version of OpenSSH cannot be told, or expands.
    """
    if not path.isprintable() or not {'"', "\\", "$"}.isdisjoint(path):
        raise ValueError(f"{path!r}: a path without quotes, backslashes, dollars and control characters")
    return '"' + path.replace("%", "%%") + '"'
