"""Standard output, byte for byte."""

from __future__ import annotations

import os
import select
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
    while data:
        try:
            data = data[os.write(1, data) :]
        except BlockingIOError:  # a slow reader of a non-blocking pipe
            select.select([], [1], [])
        except BrokenPipeError:
            raise
        except OSError as error:
            raise make_error("full-output", reason=error.strerror) from error
