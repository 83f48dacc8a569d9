"""Standard output, byte for byte."""

from __future__ import annotations

import os
import sys

from launcher.errors import NotReady, Problem


def write(text: str) -> None:
    """Write all of a text, whose values may hold bytes that are not UTF-8.

    Raises:
        BrokenPipeError: Nobody reads it.
        NotReady: It cannot be written, to a full disk for example.
    """
    sys.stdout.flush()
    data = text.encode("utf-8", "surrogateescape")
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        what = f"standard output: {error.strerror}"
        raise NotReady(
            Problem("cannot-write", what, "command line", "free the disk, or name another file")
        ) from error
