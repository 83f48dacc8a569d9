"""The private directory of a job on a node, in which ranks find the socket of their node's launcher."""

from __future__ import annotations

import contextlib
import os
import socket
from errno import EADDRINUSE

from launcher.core import files
from launcher.core.errors import make_error
from launcher.core.redact import quote
from launcher.core.wire import Garbled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.core.errors import LauncherError

SOCKET = "ranks"
FOLDERS = ("/dev/shm", "/tmp", "/var/tmp")  # noqa: S108 - mode 700, and the owner is checked
"""Places for the directory, in order of preference; ranks search them in the same order."""


def folder_name(job: str) -> str:
    """Return the name of a job's directory.

    Raises:
        Garbled: The launcher never gives a job this name.
    """
    if not (job.isascii() and job.isalnum() and len(job) <= 64):
        raise Garbled(f"{quote(job, 80)!r} is not the name of a job")
    return f"launcher-{job}"


def find_socket(job: str) -> str | None:
    """Return the path of the socket on this node; None if this job has no directory here.

    The directory counts only if it belongs to our user and no other user has access: in /tmp every user can
    create one.

    Raises:
        Garbled: The launcher never gives a job this name.
    """
    for folder in _list_folders(folder_name(job)):
        try:
            status = os.lstat(folder)
        except OSError:
            continue
        if status.st_uid == os.geteuid() and status.st_mode & 0o77 == 0:
            return os.path.join(folder, SOCKET)
    return None


def _list_folders(name: str) -> Iterator[str]:
    """Yield the paths at which the directory may be, see `make_folder`."""
    for base in FOLDERS:
        yield os.path.join(base, name)
    for base in FOLDERS:
        with contextlib.suppress(OSError):
            yield from (os.path.join(base, one) for one in os.listdir(base) if one.startswith(f"{name}-"))


def make_folder(job: str) -> str:
    """Create the directory, or return an existing one of this job.

    An existing directory belongs to another launcher of this job, which is running or was killed. If others
    have taken its name everywhere, a random number follows: the job is on the command line, for all to read.

    Raises:
        OSError: The directory can be created in none of `FOLDERS`.
    """
    refused: OSError = FileExistsError("all belong to another user")
    name = folder_name(job)
    for path in (
        os.path.join(base, one) for one in (name, f"{name}-{os.urandom(8).hex()}") for base in FOLDERS
    ):
        found = find_socket(job)
        if found is not None:
            if is_dead(found):
                with contextlib.suppress(OSError):
                    files.remove_file(found)
            return os.path.dirname(found)
        try:
            os.close(files.make_folder(path, files.PRIVATE_FOLDER, new=True))
        except OSError as error:
            refused = error
        else:
            return path
    raise refused


def is_dead(path: str) -> bool:
    """Whether no launcher listens on a socket."""
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.connect(path)
        except OSError:
            return True
    return False


def has_launcher(job: str) -> bool:
    """Whether a launcher of this job listens on this node."""
    path = find_socket(job)
    return path is not None and not is_dead(path)


def remove_folder(job: str) -> None:
    """Remove the directory of a job, with the socket and what killed ranks have left there."""
    path = find_socket(job)
    if path is not None:
        files.remove_tree(os.path.dirname(path))


def cannot_have_ranks(error: OSError) -> LauncherError:
    """Return the error that ranks cannot find the launcher of this node."""
    if error.errno == EADDRINUSE:
        return make_error("second-launcher", node=os.uname().nodename)
    path, reason = error.filename or ", ".join(FOLDERS), error.strerror or error
    return make_error("no-rank-folder", path=path, reason=reason)
