"""Merges the output of several processes on one terminal or log without mixing their lines.

A `Stream` reads one pipe and forwards whole lines to a `Screen`, in the format that its process has there
(`launcher.output.formats`). As text it does not change bytes: without the prefixes, and the newlines that
`Screen.inserted_newlines` counts, the output is what each process wrote.

Nothing here loops over lines: a chunk of output takes a few operations on bytes, however many lines it has.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from launcher.output.console import LogFile, Screen
    from launcher.output.dedupe import Deduped
    from launcher.output.formats import JsonLines, PlainLines
    from launcher.output.tracebacks import Tracebacks

    LineFormat = PlainLines | JsonLines | Deduped | Tracebacks

    class StreamSearch(Protocol):
        """Searches the output of one stream: `launcher.recovery.progress.LineSearch`."""

        def read(self, data: bytes) -> None:
            """Take the next bytes of the output."""

        def finish(self) -> None:
            """Note that the output has ended."""


PARTIAL_LIMIT_BYTES = 1 << 16
"""A longer line is forwarded in pieces."""
TAIL_BYTES = 1 << 15
READ_BYTES = 24 << 10
"""Size of one read.

With larger reads the buffers for a chunk exceed the memory that the C library keeps between
two chunks (M_TRIM_THRESHOLD, 128 KiB), and page faults take two thirds of the throughput. Pipes keep the
kernel's 64 KiB: larger ones were not faster, and an unprivileged user has only 64 MiB of pipe buffers.
"""
FINISH_BYTES = 1 << 20
"""Capacity of a pipe that a process has enlarged as far as possible (/proc/sys/fs/pipe-max-size)."""

_UNTOUCHED = object()
"""The writer of all streams without whole lines: nothing is inserted between their bytes."""


class Stream:
    """One pipe from one process.

    Attributes:
        fd: The reading end, non-blocking from now on; the caller must close it.
        last_ns: ``time.monotonic_ns()`` of its last output, or of its creation.
        hold_until_s: ``time.monotonic()`` at which to call `flush_partial`; None for never.
    """

    def __init__(
        self,
        fd: int,
        screen: Screen | None,
        form: LineFormat | None,
        file: LogFile | None,
        *,
        search: StreamSearch | None = None,
    ) -> None:
        """Read from a pipe.

        Args:
            fd: Reading end of the pipe, with no other reader.
            screen: Destination of its lines; None for none.
            form: How its lines look there, which are kept whole. None: bytes are forwarded at once and
                unchanged, and streams that share a screen can tear each other's lines.
            file: Destination of its unchanged bytes; None for none.
            search: Takes its unchanged bytes too, and learns of their end; None for none.
        """
        self.fd = fd
        self.last_ns = time.monotonic_ns()
        self.hold_until_s: float | None = None
        self._screen = screen
        self._form = form
        self._file = file
        self._search = search
        self._partial = bytearray()
        self._recent = bytearray()
        self._ended = False
        self._shown_at: int | None = None
        os.set_blocking(fd, False)

    @property
    def tail(self) -> bytes:
        """The last `TAIL_BYTES` that were read."""
        return bytes(self._recent[-TAIL_BYTES:])

    @property
    def shown_since(self) -> int | None:
        """Number of bytes written to its screen since its own last ones; None if it has shown none."""
        if self._screen is None or self._shown_at is None:
            return None
        return self._screen.written - self._shown_at

    def _show(self, screen: Screen, text: bytes) -> None:
        if self._form is None:
            screen.put(_UNTOUCHED, b"", text)
        else:
            self._form.show(screen, self, text)
        self._shown_at = screen.written

    def read(self) -> bool:
        """Read once and forward the data; return whether more can come (False: the end)."""
        return self._read() is not None

    def flush_partial(self, now_s: float) -> None:
        """Forward an unfinished line that has waited long enough at ``time.monotonic()`` = ``now_s``."""
        if self.hold_until_s is not None and now_s >= self.hold_until_s:
            self._pass_on_partial(_whole_characters(self._partial))

    def catch_up(self) -> None:
        """Read everything that was written before this call."""
        left = 0 if self._ended else FINISH_BYTES  # a process that keeps writing must not keep us here
        while left > 0:
            count = self._read()
            if not count:
                break
            left -= count

    def finish(self) -> None:
        """Forward everything that was written before this call, including an unfinished line."""
        self.catch_up()
        self._pass_on_partial(len(self._partial))
        if self._search is not None:
            self._search.finish()

    def _read(self) -> int | None:
        """Return the number of bytes read, 0 if none are available, None at the end."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:  # EIO, from the master of a terminal whose other side was closed
            return None
        if not data:
            self._ended = True
            return None
        self.last_ns = time.monotonic_ns()
        self._recent += data[-TAIL_BYTES:]
        if len(self._recent) > 2 * TAIL_BYTES:
            del self._recent[:-TAIL_BYTES]
        if self._file is not None:
            self._file.write(data)
        if self._search is not None:
            self._search.read(data)
        if self._screen is not None:
            if self._form is None:
                self._show(self._screen, data)
            else:
                self._pass_on_lines(self._screen, self._form, data)
        return len(data)

    def _pass_on_lines(self, screen: Screen, form: LineFormat, data: bytes) -> None:
        """Forward the finished lines; hold the beginning of the next one, or forward it if possible."""
        end = form.find_end(data)
        if end:
            lines = b"".join((self._partial, data[:end])) if self._partial else data[:end]
            self._partial.clear()
            self.hold_until_s = None
            self._show(screen, lines)
        self._partial += data[end:]
        if not self._partial:
            return
        hold_s = form.hold_s(self._partial)
        if len(self._partial) > PARTIAL_LIMIT_BYTES or (hold_s and screen.is_open_for(self)):
            self._pass_on_partial(_whole_characters(self._partial))
        elif hold_s is None:
            self.hold_until_s = None
        elif self.hold_until_s is None:
            self.hold_until_s = self.last_ns / 1e9 + hold_s

    def _pass_on_partial(self, count: int) -> None:
        """Forward the first bytes of an unfinished line."""
        self.hold_until_s = None
        if count and self._screen is not None:
            self._show(self._screen, bytes(self._partial[:count]))
            del self._partial[:count]


def _whole_characters(text: bytearray) -> int:
    """Return the length of the text without a UTF-8 character that is incomplete at its end."""
    for back in range(1, min(3, len(text)) + 1):
        byte = text[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(text) - back if back < needed else len(text)
    return len(text)
