"""Where the ranks of a node find their session: a socket in a folder of our own user, named after the job."""

from __future__ import annotations

import contextlib
import os
import socket

from launcher.core.messages import Garbled
from launcher.output.folder import remove_tree

SOCKET = "session"
SERVE_SOCKET = "LAUNCHER_SERVE_SOCKET"
"""The variable that tells a session where the serving launcher of its node listens, if there is one."""
FOLDERS = ("/dev/shm", "/tmp", "/var/tmp")  # noqa: S108 - mode 700, and its owner is looked at
"""Where a session may have its folder, in this order; ranks look for it in the same."""


def folder_name(job: str) -> str:
    """Return the name of a session's folder.

    Raises:
        Garbled: The job's name is none that we give.
    """
    if not (job.isascii() and job.isalnum() and len(job) <= 64):
        raise Garbled(f"{job[:80]!r} is no name of a job")
    return f"launcher-{job}"


def find_session(job: str) -> str | None:
    """Return the path of the session's socket on this node, None if there is no session of this job.

    Only one in a folder of our own user counts: in /tmp every user can make one.
    """
    for base in FOLDERS:
        folder = os.path.join(base, folder_name(job))
        try:
            status = os.lstat(folder)
        except OSError:
            continue
        if status.st_uid == os.geteuid() and status.st_mode & 0o77 == 0:
            return os.path.join(folder, SOCKET)
    return None


def make_folder(job: str) -> str:
    """Make the session's folder, or return that of another session of this job, which lives or was killed.

    Raises:
        OSError: Nowhere.
    """
    refused: OSError = FileExistsError("all belong to another user")
    for base in FOLDERS:
        path = os.path.join(base, folder_name(job))
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if find_session(job) != os.path.join(path, SOCKET):
                continue
            remove_dead(os.path.join(path, SOCKET))
        except OSError as error:
            refused = error
            continue
        return path
    raise refused


def remove_dead(path: str) -> None:
    """Remove a socket that nothing listens at any more."""
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.connect(path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(path)


def remove_folder(path: str) -> None:
    """Remove a session's socket, the folder that it stands in, and what ranks that were killed left there."""
    with contextlib.suppress(OSError):
        remove_tree(os.path.dirname(path))
