"""Progress of an attempt: a file that changes, or a line of output."""

from __future__ import annotations

import os
import time

from launcher.core.redact import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.log import Say
    from launcher.core.supervision import Restarts
    from launcher.recovery.search import Search

    Version = tuple[int, int, int] | None

PATH_CHARS = 200
LINE_BYTES = 1 << 14
"""A longer line is searched in pieces; a match of at most this length is found wherever it is."""


class ProgressGate:
    """Tells whether an attempt made progress, and when."""

    def __init__(self, rule: Restarts, search: Search | None, say: Say) -> None:
        """Watch the file of the user's rule, and the output; ``search``: None without a pattern."""
        self._path = rule.progress_file
        self._search, self._say = search, say
        self._before: Version = None

    def begin(self) -> None:
        """Begin an attempt."""
        self._before = self._read_version()
        if self._search is not None:
            self._search.begin()

    def finish(self) -> None:
        """Wait for the search of the output of an attempt that has ended."""
        if self._search is not None:
            self._search.finish()

    @property
    def first_s(self) -> float | None:
        """When the pattern was found, monotonic seconds; None before, and without a pattern."""
        return None if self._search is None else self._search.found_s

    def read_last_s(self) -> float | None:
        """Return when the file changed last in this attempt, monotonic seconds; None if it has not."""
        version = self._read_version()
        if version is None or version == self._before:
            return None
        return time.monotonic() - max(0.0, time.time() - version[2] / 1e9)

    def follow(self) -> LineSearch | None:
        """Return what searches one stream of output; None without a pattern."""
        return None if self._search is None else LineSearch(self._search)

    def has_progressed(self) -> bool | None:
        """Whether the attempt has made progress so far; None if that is not known.

        It is not if neither a file nor a pattern was given, or if the search of the output was given up.
        """
        search, version = self._search, self._read_version()  # which may end that there is a file
        if (self._path and version != self._before) or (search and search.has_found):
            return True
        return None if (search is None and not self._path) or (search and search.is_over) else False

    def _read_version(self) -> Version:
        """Return what changes when the file is written or replaced; None if there is none.

        A file of another user, except root, no longer counts: it could keep a job alive that leads nowhere.
        """
        if not self._path:
            return None
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        if found.st_uid not in (0, os.geteuid()):
            path, self._path = quote(self._path, PATH_CHARS), ""
            self._say(f"{path} shows no progress: another user owns it", "no-progress-file")
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


class LineSearch:
    """Searches one stream of output, each byte of it once: whole lines, and the last one at its end.

    A line ends with a newline or a carriage return. Of a line that is longer than two pieces, each piece is
    searched with the one before it.
    """

    def __init__(self, search: Search) -> None:
        self._search = search
        self._rest = bytearray()

    def read(self, data: bytes) -> None:
        """Take the next bytes of the output."""
        if self._search.is_over:
            return
        data = data.replace(b"\r", b"\n")
        end = data.rfind(b"\n") + 1
        if end:
            self._search.put(self._rest + data[:end])
            self._rest.clear()
        self._rest += data[end:]
        if len(self._rest) > 2 * LINE_BYTES:
            self._search.put(self._rest)
            del self._rest[:-LINE_BYTES]

    def finish(self) -> None:
        """Search the rest: the output has ended."""
        self._search.put(self._rest)
        self._rest.clear()
