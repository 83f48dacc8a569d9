"""Reads what /proc shows of a process."""

from __future__ import annotations

import os
import re

from launcher.core.redact import printable, quote_command
from launcher.hang.stacks import Answer
from launcher.machine.calls import read_call
from launcher.machine.process import (
    read_command,
    read_environ,
    read_file,
    read_link,
    read_name,
    read_stat,
)

COMMAND_LIMIT = 200
_OPTIONS = re.compile(r"-([a-zA-Z?]+)$")


def look_at(rank: int, pid: int) -> Answer | None:
    """Return what is known about a process without its help; None if it is gone."""
    found = read_stat(pid)
    if found is None:
        return None
    words = read_command(pid)
    kernel = read_file(f"/proc/{pid}/wchan").decode("ascii", "replace").strip()
    return Answer(
        rank,
        pid,
        command=quote_command(words or [f"[{read_name(pid)}]"], COMMAND_LIMIT),
        state=found.state,
        call=read_call(pid),
        kernel=printable(kernel) if kernel != "0" else "",
        folder=read_link(f"/proc/{pid}/cwd"),
        is_python=_is_python(pid),
    )


def explain_unarmed(pid: int, site: str) -> str:
    """Return why a Python has not run our ``sitecustomize``; empty if unknown.

    Args:
        pid: Its PID.
        site: Directory that the launcher has put into its PYTHONPATH.
    """
    environ = read_environ(pid)
    if site not in environ.get("PYTHONPATH", "").split(os.pathsep):
        if "LAUNCHER_STACKS_FILE" not in environ:
            return "it does not have the job's environment"
        return "a script has set PYTHONPATH anew (PYTHONPATH=DIR:$PYTHONPATH keeps the launcher's)"
    for word in read_command(pid)[1:]:
        options = _OPTIONS.match(word)
        if options is None:
            break
        if set(options[1]) & set("EIS"):
            return f"python {word} leaves the launcher's sitecustomize out"
    return "" if _is_interpreter(pid) else "a program with Python inside may not read PYTHONPATH"


def _is_python(pid: int) -> bool:
    # Or a program with another name that embeds Python.
    return _is_interpreter(pid) or b"/libpython3" in read_file(f"/proc/{pid}/maps")


def _is_interpreter(pid: int) -> bool:
    return os.path.basename(read_link(f"/proc/{pid}/exe")).startswith(("python", "pypy"))
