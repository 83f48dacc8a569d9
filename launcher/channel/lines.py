"""Framing of local connections: JSON objects, one per line.

The ranks of an mpirun job and the launchers of their nodes talk through sockets that only our own user can
reach. Even so, no message is trusted to be well-formed, small or printable.
"""

from __future__ import annotations

import json

from launcher.core.redact import quote
from launcher.core.wire import DEPTH_MAX, Garbled, is_shallow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LINE_LIMIT_BYTES = 1 << 20
"""A verdict with a long traceback has 100 KB; a variable that mpirun cannot carry may be as long."""
WELCOME_LIMIT_BYTES = 1 << 26
"""A rank's first message has its variables: 2 MB at most, of which JSON may make six times as much."""
READ_BYTES = 1 << 16
QUOTED_LENGTH = 80


class Lines:
    """Framing with one JSON object per line."""

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self._rest, self._limit = bytearray(), limit_bytes

    def frame(self, encoded: bytes) -> bytes:
        """Return an encoded message as one line."""
        return encoded + b"\n"

    def feed(self, data: bytes) -> Iterator[dict[str, object]]:
        """Yield the messages that are now complete.

        Raises:
            Garbled: A line is not a JSON object, or is too long.
        """
        for line in self.cut(data):
            if line:
                yield parse(line)

    def cut(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that are now complete; keeps at most the limit of one line.

        Raises:
            Garbled: A line is too long.
        """
        first, *others = data.split(b"\n")
        self._take(first)
        for part in others:
            line = bytes(self._rest)
            self._rest.clear()
            yield line
            self._take(part)

    def _take(self, part: bytes) -> None:
        if len(self._rest) + len(part) > self._limit:
            raise Garbled(f"a line of more than {self._limit} bytes")
        self._rest += part


def parse(line: bytes) -> dict[str, object]:
    """Return the message of a line.

    Raises:
        Garbled: It is not a JSON object, or is nested too deeply.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Garbled(f"not JSON: {_quote(line)}") from error
    if not isinstance(message, dict):
        raise Garbled(f"not a JSON object: {_quote(line)}")
    if line.count(b"[") + line.count(b"{") > DEPTH_MAX and not is_shallow(message):
        raise Garbled(f"nested more than {DEPTH_MAX} levels deep: {_quote(line)}")
    return message


def _quote(line: bytes) -> str:
    return repr(quote(line.decode("utf-8", "replace"), QUOTED_LENGTH))


def encode(message: Mapping[str, object]) -> bytes:
    """Return a message as JSON on one line, without its end."""
    return json.dumps(message, separators=(",", ":")).encode()


def pack(message: Mapping[str, object]) -> bytes:
    """Return a message as one line."""
    return encode(message) + b"\n"
