"""Files that only our user can read, and their names in OpenSSH's configuration."""

from __future__ import annotations

from launcher.core.errors import NotReady, Problem, UsageError
from launcher.core.files import create_file, replace_file


def write_private(path: str, content: str | bytes, *, new: bool = False) -> None:
    """Write a file of mode 0600.

    Args:
        path: Path of the file.
        content: The contents; text may contain bytes that are not UTF-8 as surrogates, as variables do.
        new: Whether to refuse an existing file.

    Raises:
        UsageError: The file exists, and ``new`` is set.
        NotReady: It cannot be written.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
    try:
        (create_file if new else replace_file)(data, path, 0o600)
    except FileExistsError as error:
        raise exists(path) from error
    except OSError as error:
        raise cannot_write(f"{path}: {error.strerror}") from error


def exists(path: str) -> UsageError:
    """Return the error that a file exists where keys are to be written."""
    what = f"{path} exists already; existing keys are never overwritten"
    fix = "give these to the nodes, name another place, or remove it first, if no job needs it any more"
    return UsageError(Problem("key-exists", what, "command line", fix))


def cannot_write(what: str) -> NotReady:
    """Return the error that a file or folder for ssh cannot be written."""
    fix = "name another place, or free the disk"
    return NotReady(Problem("cannot-write", what, "files for ssh", fix))


def quote_path(path: str) -> str:
    """Return a path as an argument in sshd_config or ssh_config.

    Raises:
        NotReady: It contains a character that some version or option of OpenSSH cannot express, or expands.
    """
    if not path.isprintable() or not {'"', "\\", "$", "%"}.isdisjoint(path):
        what = (
            f"{path!r}: OpenSSH needs a path without quotes, backslashes, dollars, percent signs and newlines"
        )
        raise cannot_write(what)
    return f'"{path}"'


def name_user(uid: int) -> str:
    """Return the fix for a user id without a name, which all programs of OpenSSH need."""
    return f"echo 'train:x:{uid}:{uid}::/tmp:/bin/sh' >>/etc/passwd in the image, or use a user of it"
