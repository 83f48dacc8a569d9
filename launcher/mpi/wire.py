"""What head, sessions and ranks say to each other: JSON objects, one per line.

They speak through pipes of ssh and sockets that only our own user can reach; still nothing that
arrives is believed to be well-formed, small, or printable.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct

from launcher.run.folder import remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

LINE_LIMIT_BYTES = 1 << 20
"""A verdict with a long traceback has 100 KB; a variable that mpirun cannot carry may have as much."""
WELCOME_LIMIT_BYTES = 1 << 26
"""What a rank is told first holds its variables: 2 MB at most, and JSON makes six times of some of them."""
READ_BYTES = 1 << 16
SOCKET = "session"
FOLDERS = ("/dev/shm", "/tmp", "/var/tmp")  # noqa: S108 - mode 700, and its owner is looked at
"""Where a session may have its folder, in this order; ranks look for it in the same."""


class Garbled(ValueError):
    """What came is no line of ours."""


class Lines:
    """Puts pieces of bytes together to messages."""

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self._parts: list[bytes] = []
        self._size, self._limit = 0, limit_bytes

    def feed(self, data: bytes) -> list[dict[str, object]]:
        """Return the messages that are complete now.

        Raises:
            Garbled: A line that is no JSON object, or is too long.
        """
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._parts, lines[0]))
            self._parts, self._size = [], 0
        self._parts.append(rest)
        self._size += len(rest)
        if self._size > self._limit:
            raise Garbled(f"a line of more than {self._limit} bytes")
        return [_parse(line) for line in lines if line]


def _parse(line: bytes) -> dict[str, object]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Garbled(f"no JSON: {line[:80]!r}") from error
    if not isinstance(message, dict):
        raise Garbled(f"no JSON object: {line[:80]!r}")
    return message


def pack(message: Mapping[str, object]) -> bytes:
    """Return one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def number(message: Mapping[str, object], key: str) -> int:
    """Return a number of a message.

    Raises:
        Garbled: It has none of that name.
    """
    value = message.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Garbled(f"no number {key}")
    return value


def text(message: Mapping[str, object], key: str) -> str:
    """Return a text of a message; empty if it has none."""
    value = message.get(key)
    return value if isinstance(value, str) else ""


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

    Only one in a folder of our own user counts: in /tmp anybody can make one.
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


def remove_folder(path: str) -> None:
    """Remove a session's socket, the folder that it stands in, and what ranks that were killed left there."""
    with contextlib.suppress(OSError):
        remove_tree(os.path.dirname(path))


def read_peer(connection: socket.socket) -> tuple[int, int]:
    """Return (pid, uid) of who is at the other end, as the kernel says."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid
