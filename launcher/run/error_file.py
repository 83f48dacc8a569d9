"""The file in which a process says why it fails: of torch's ``@record``, or of our hook.

Source: torch/distributed/elastic/multiprocessing/errors/error_handler.py.
"""

from __future__ import annotations

import json
import os
import stat

from launcher.hook import WRITER
from launcher.run.presentable import clean_lines
from launcher.run.tracebacks import HEADER

ERROR_FILE_BYTES = 1 << 20


def read_error_file(path: str | None) -> tuple[tuple[str, str] | None, str, str]:
    """Return ((message, traceback), pid of the writer, "") of an error file, or (None, "", why not).

    Of the writer nothing is known where it is torch.
    """
    try:
        data = _read_regular_file(path) if path else None
    except FileNotFoundError:
        data = None
    except (OSError, ValueError) as error:
        return None, "", f"its error file cannot be read: {getattr(error, 'strerror', None) or error}"
    if data is None:
        return None, "", ""
    try:
        recorded = json.loads(data)["message"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None, "", "its error file is not what torch writes: " + _describe(data)
    if isinstance(recorded, str):
        return (_first_line(recorded), recorded if HEADER.search(recorded) else ""), "", ""
    message = recorded.get("message") if isinstance(recorded, dict) else None
    extra = recorded.get("extraInfo") if isinstance(recorded, dict) else None
    extra = extra if isinstance(extra, dict) else {}
    stack = extra.get("py_callstack")
    if not isinstance(message, str) and not isinstance(stack, str):
        return None, "", "its error file is not what torch writes: no message"
    told = (_first_line(message), stack if isinstance(stack, str) else "")
    return told, _read_pid(extra) if extra.get("writer") == WRITER else "", ""


def _read_pid(extra: dict[str, object]) -> str:
    """Return the process id that our hook has written; empty if it is none."""
    pid = str(extra.get("pid", ""))
    return pid if pid.isdecimal() else ""


def _first_line(message: object) -> str:
    lines = clean_lines(message) if isinstance(message, str) else []
    return lines[0] if lines else ""


def _describe(data: bytes) -> str:
    return "not JSON with a message" if data.strip() else "empty"


def _read_regular_file(path: str) -> bytes:
    """Return a file's content; a pipe in its place is not waited for.

    Raises:
        OSError, ValueError: It cannot be opened, is no regular file, or is too large.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no regular file")
        data = file.read(ERROR_FILE_BYTES + 1)
    if len(data) > ERROR_FILE_BYTES:
        raise ValueError(f"it is larger than {ERROR_FILE_BYTES >> 20} MiB")
    return data
