"""Standard output, byte for byte."""

from __future__ import annotations

import os
import sys

from launcher.core.errors import NotReady, Problem


def write(text: str) -> None:
    """Write all of a text, whose values may hold bytes that are not UTF-8.

    Raises:
        BrokenPipeError: It has no reader.
        NotReady: It cannot be written, to a full disk for example.
    """
    sys.stdout.flush()
    data = text.encode("utf-8", "surrogateescape")
    try:
        while data:
            data = data[_write_some(data) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        what = f"standard output: {error.strerror}"
        raise NotReady(
            Problem("cannot-write", what, "command line", "free the disk, or name another file")
        ) from error


def _write_some(data: bytes) -> int:
    """Write what goes out at once; wait for a slow reader, also of a pipe that does not block."""
    import select

    while True:
        try:
            return os.write(1, data)
        except BlockingIOError:
            select.select([], [1], [])
