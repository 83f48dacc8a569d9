"""What head, sessions and ranks say to each other: JSON objects, one per line.

They speak through pipes of ssh and sockets that only our own user can reach; still nothing that
arrives is believed to be well-formed, small, or printable.
"""

from __future__ import annotations

import json

from launcher.core.messages import DEPTH_MAX, Garbled, is_shallow
from launcher.core.redact import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LINE_LIMIT_BYTES = 1 << 20
"""A verdict with a long traceback has 100 KB; a variable that mpirun cannot carry may have as much."""
WELCOME_LIMIT_BYTES = 1 << 26
"""What a rank is told first holds its variables: 2 MB at most, and JSON makes six times of some of them."""
READ_BYTES = 1 << 16
QUOTED_LENGTH = 80


class Lines:
    """One JSON object per line."""

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self._rest, self._limit = bytearray(), limit_bytes

    def pack(self, message: Mapping[str, object]) -> bytes:
        """Return one line."""
        return pack(message)

    def feed(self, data: bytes) -> Iterator[dict[str, object]]:
        """Yield the messages that are complete now.

        Raises:
            Garbled: A line that is no JSON object, or is too long.
        """
        for line in self.cut(data):
            if line:
                yield parse(line)

    def cut(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that are complete now; what is kept is less than a line may have.

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
    """Return a message.

    Raises:
        Garbled: It is no JSON object, or one that is too deep.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Garbled(f"no JSON: {_quote(line)}") from error
    if not isinstance(message, dict):
        raise Garbled(f"no JSON object: {_quote(line)}")
    if line.count(b"[") + line.count(b"{") > DEPTH_MAX and not is_shallow(message):
        raise Garbled(f"more than {DEPTH_MAX} lists and objects in each other: {_quote(line)}")
    return message


def _quote(line: bytes) -> str:
    return repr(quote(line.decode("utf-8", "replace"), QUOTED_LENGTH))


def pack(message: Mapping[str, object]) -> bytes:
    """Return one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
