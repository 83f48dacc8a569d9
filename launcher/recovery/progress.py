"""Progress of an attempt: a file that changes, or a line of output."""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.model import Restarts

    Version = tuple[int, int, int] | None


LINE_BYTES = 1 << 14
"""A longer line is searched in pieces; a match of at most this length is found wherever it is."""


class ProgressGate:
    """Tells whether an attempt made progress.

    Attributes:
        wants_output: Whether output still has to be searched in this attempt.
    """

    def __init__(self, rule: Restarts) -> None:
        self._path = rule.progress_file
        self._pattern = (
            re.compile(os.fsencode(rule.progress_pattern), re.MULTILINE) if rule.progress_pattern else None
        )
        self._before: Version = None
        self.wants_output = self._has_matched = False

    def begin(self) -> None:
        """Begin an attempt."""
        self._before = _read_version(self._path)
        self._has_matched, self.wants_output = False, self._pattern is not None

    def follow(self) -> Lines | None:
        """Return what searches one stream of output; None without a pattern."""
        return None if self._pattern is None else Lines(self)

    def search(self, lines: bytes | bytearray) -> None:
        """Search a part of the output."""
        if self.wants_output and self._pattern is not None and self._pattern.search(lines):
            self._has_matched, self.wants_output = True, False

    def has_progressed(self) -> bool | None:
        """Whether the attempt has made progress so far; None if neither a file nor a pattern was given."""
        if not self._path and self._pattern is None:
            return None
        return self._has_matched or _read_version(self._path) != self._before


class Lines:
    """Searches one stream of output, each byte of it once: whole lines, and the last one at its end.

    A line ends with a newline or a carriage return. Of a line that is longer than two pieces, each piece is
    searched with the one before it.
    """

    def __init__(self, gate: ProgressGate) -> None:
        self._gate = gate
        self._rest = bytearray()

    def read(self, data: bytes) -> None:
        """Take the next bytes of the output."""
        if not self._gate.wants_output:
            return
        data = data.replace(b"\r", b"\n")
        end = data.rfind(b"\n") + 1
        if end:
            self._gate.search(self._rest + data[:end])
            self._rest.clear()
        self._rest += data[end:]
        if len(self._rest) > 2 * LINE_BYTES:
            self._gate.search(self._rest)
            del self._rest[:-LINE_BYTES]

    def finish(self) -> None:
        """Search the rest: the output has ended."""
        self._gate.search(self._rest)
        self._rest.clear()


def _read_version(path: str) -> Version:
    """Return what changes when a file is written or replaced; None if there is no file."""
    if not path:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
