"""Progress of an attempt: a file that changes, or a line of output."""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.model import Restarts

    Version = tuple[int, int, int] | None


class ProgressGate:
    """Tells whether an attempt made progress.

    Attributes:
        wants_output: Whether output still has to be searched in this attempt.
    """

    def __init__(self, rule: Restarts) -> None:
        self._path = rule.progress_file
        self._pattern = re.compile(os.fsencode(rule.progress_pattern)) if rule.progress_pattern else None
        self._before: Version = None
        self.wants_output = False
        self._has_matched = False

    def begin(self) -> None:
        """Begin an attempt."""
        self._before = _read_version(self._path)
        self._has_matched, self.wants_output = False, self._pattern is not None

    def read(self, output: bytes) -> None:
        """Search the latest output of a process."""
        if self._pattern is not None and self._pattern.search(output):
            self._has_matched, self.wants_output = True, False

    def has_progressed(self) -> bool | None:
        """Whether the attempt has made progress so far; None if neither a file nor a pattern was given."""
        if not self._path and self._pattern is None:
            return None
        return self._has_matched or _read_version(self._path) != self._before


def _read_version(path: str) -> Version:
    """Return what changes when a file is written or replaced; None if there is no file."""
    if not path:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
