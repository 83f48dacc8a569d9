"""Makes a process write its stacks at a signal, and the exception that ends it to an error file.

faulthandler writes the stacks in C from the signal handler, so it works even if the process waits in a
collective, holds the interpreter's lock or runs deep inside a library. Restartable system calls are
restarted. The others (poll, epoll_wait) fail with EINTR, which every program must expect.

The exception is written as torch's ``@record`` writes it, for scripts without ``@record``. Exceptions of
threads are not written: they do not end the process, ``@record`` does not see them either, and an error file
would blame the thread for whatever ends the process later.

Python 3.8 and newer.
"""

from __future__ import annotations

import os
import sys

from launcher.core.files import open_own, replace_file
from launcher.inprocess.site.sitecustomize import answer_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

WRITER = "launcher"
"""Value of ``extraInfo.writer`` in our error files; torch's own files have no such key."""
TEXT_LIMIT = 1 << 14
"""Characters kept from each end of a message or traceback."""
READ_LIMIT_BYTES = 1 << 20


class _Recorder:
    """An excepthook that writes the exception to the error file and then calls the previous excepthook."""

    def __init__(self, path: str, previous: ExceptHook) -> None:
        self.path = path
        self.previous = previous
        self.pid = os.getpid()

    def __call__(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        # Ctrl-C and sys.exit() are not errors, and the end of a forked child is not that of this process.
        if not issubclass(kind, (KeyboardInterrupt, SystemExit)) and os.getpid() == self.pid:
            try:  # noqa: SIM105 - avoids an import in the user's process
                write_error_file(self.path, kind, value, trace)
            except Exception:  # noqa: S110 - the traceback below matters more
                pass
        self.previous(kind, value, trace)


_recorder: _Recorder | None = None


def arm_process(stacks_path: str | None, error_path: str | None) -> None:
    """Write stacks to a file at `STACK_SIGNAL`, and an uncaught exception to another file.

    Args:
        stacks_path: Path of the file for stacks; None or empty for no stacks.
        error_path: Path of the error file of torch's protocol; None or empty for no error file.

    Raises:
        OSError: The file for stacks cannot be made or is not a regular file. The excepthook is installed
            nevertheless.
    """
    global _recorder
    # The hook and launcher.setup() may use two copies of this module
    if error_path and _recorder is None and getattr(sys.excepthook, "path", None) != error_path:
        sys.excepthook = _recorder = _Recorder(error_path, sys.excepthook)
    if stacks_path:
        answer_signal(stacks_path)


def write_error_file(
    path: str, kind: type[BaseException], value: BaseException, trace: TracebackType | None
) -> None:
    """Write an exception to the error file as torch's ErrorHandler does, unless torch has written one.

    If several processes share the variable (a script and the Python that it starts), the last one to fail
    overwrites the file; the parent of the others ends last. ``extraInfo`` has the PID.

    Raises:
        OSError: The file cannot be written, or another user has planted it or a part of its path.

    Source:
        torch/distributed/elastic/multiprocessing/errors/error_handler.py, PyTorch 2.13.
    """
    import json
    import time
    import traceback

    if not _is_ours_to_write(path):
        return
    extra = {
        "py_callstack": _shorten("".join(traceback.format_exception(kind, value, trace))),
        "timestamp": str(int(time.time())),
        "pid": str(os.getpid()),
        "writer": WRITER,
    }
    message = _shorten(f"{kind.__name__}: {value}")
    # No reader sees half a file, not even after a SIGKILL
    replace_file(json.dumps({"message": {"message": message, "extraInfo": extra}}), path)


def _is_ours_to_write(path: str) -> bool:
    """Whether the file does not exist, is empty, or was written by this module.

    Raises:
        OSError: It is a link, a pipe, or a file of another user.
    """
    import json

    try:
        fd = open_own(path)
    except FileNotFoundError:
        return True
    with open(fd, encoding="utf-8") as file:
        text = file.read(READ_LIMIT_BYTES)
    try:
        return not text or json.loads(text)["message"]["extraInfo"].get("writer") == WRITER
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _shorten(text: str) -> str:
    if len(text) <= 2 * TEXT_LIMIT:
        return text
    # Cut at whole lines or words: half a secret would not be recognized as a secret later
    first, last = text[:TEXT_LIMIT], text[-TEXT_LIMIT:]
    edge = "\n" if "\n" in first and "\n" in last else " "
    first, last = first.rpartition(edge)[0], last.partition(edge)[2]
    left_out = len(text) - len(first) - len(last)
    return f"{first}\n... {left_out} characters left out ...\n{last}"
