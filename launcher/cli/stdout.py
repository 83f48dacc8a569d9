"""Standard output, byte for byte."""

from __future__ import annotations

import os
import sys

from launcher.core.errors import make_error


def write(text: str) -> None:
    """Write all of a text to standard output; it may hold bytes that are not UTF-8.

    Raises:
        BrokenPipeError: Standard output has no reader.
        NotReady: The write fails, e.g. on a full disk.
    """
    sys.stdout.flush()
    data = text.encode("utf-8", "surrogateescape")
    try:
        while data:
            data = data[_write_some(data) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        raise make_error("full-output", reason=error.strerror) from error


def _write_some(data: bytes) -> int:
    """Write once and return the number of bytes written; wait for a slow reader of a non-blocking pipe."""
    import select

    while True:
        try:
            return os.write(1, data)
        except BlockingIOError:
            select.select([], [1], [])
