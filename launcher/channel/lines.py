"""What head, sessions and ranks say to each other: JSON objects, one per line.

They speak through pipes of ssh and sockets that only our own user can reach; still nothing that
arrives is believed to be well-formed, small, or printable.
"""

from __future__ import annotations

import json
import socket
import struct

from launcher.core.messages import NUMBER_BITS, Garbled
from launcher.core.redact import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Garbled", "Lines", "number", "pack", "parse", "read_peer", "text"]

LINE_LIMIT_BYTES = 1 << 20
"""A verdict with a long traceback has 100 KB; a variable that mpirun cannot carry may have as much."""
WELCOME_LIMIT_BYTES = 1 << 26
"""What a rank is told first holds its variables: 2 MB at most, and JSON makes six times of some of them."""
READ_BYTES = 1 << 16
QUOTED_LENGTH = 80


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
        return [parse(line) for line in lines if line]


def parse(line: bytes) -> dict[str, object]:
    """Return a message.

    Raises:
        Garbled: It is no JSON object.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Garbled(f"no JSON: {_quote(line)}") from error
    if not isinstance(message, dict):
        raise Garbled(f"no JSON object: {_quote(line)}")
    return message


def _quote(line: bytes) -> str:
    return repr(quote(line.decode("utf-8", "replace"), QUOTED_LENGTH))


def pack(message: Mapping[str, object]) -> bytes:
    """Return one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def number(message: Mapping[str, object], key: str) -> int:
    """Return a number of a message.

    Raises:
        Garbled: It has none of that name.
    """
    value = message.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >> NUMBER_BITS:
        raise Garbled(f"no number {key}")
    return value


def text(message: Mapping[str, object], key: str) -> str:
    """Return a text of a message; empty if it has none."""
    value = message.get(key)
    return value if isinstance(value, str) else ""


def read_peer(connection: socket.socket) -> tuple[int, int]:
    """Return (pid, uid) of who is at the other end, as the kernel says."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid
