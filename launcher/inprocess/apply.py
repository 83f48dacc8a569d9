"""Applies the hook's answer to this process: its variables, files and CPUs.

Python 3.8 and newer.
"""

from __future__ import annotations

import os
import sys

from launcher.inprocess.marker import HOOKED, REFUSED, SWITCH, list_set, render_marker, undo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def apply_answer(answer: dict[str, Any]) -> None:
    """Set the variables, files and CPUs of an answer (see `launcher.hook.answer`), and a marker.

    Children inherit the marker. So they do not ask again, and do not print a refusal again.
    """
    before = dict(os.environ)
    if answer.get("refused"):
        sys.stderr.write(
            f"launcher: hook: no variables set: {answer['refused']} "
            f"(run launcher plan for details; {SWITCH}=0 switches the hook off)\n"
        )
        for name in list_set(before):  # set by the hook in an outer process, for that process
            del os.environ[name]
        os.environ[HOOKED] = render_marker(REFUSED, before, undo(before))
        return
    paths = {word: _name_file(text) for word, text in answer["files"].items()}
    for name in answer["unset"]:
        os.environ.pop(name, None)
    for name, value in answer["set"].items():
        path = paths.get(value, value)
        if path:  # if the file cannot be made, its variable is not set
            os.environ[name] = path
    os.environ[HOOKED] = render_marker(answer["scope"], before, dict(os.environ))
    if answer["cpus"]:
        try:  # noqa: SIM105 - avoids an import in the user's process
            os.sched_setaffinity(0, answer["cpus"])
        except OSError:  # the cpuset has changed: an unbound process is better than a failed one
            pass


def _name_file(text: str) -> str:
    """Return the path of a memory file that lives as long as this process; empty if it can't be made."""
    try:
        fd = os.memfd_create("launcher", 0)
        os.write(fd, text.encode())
    except OSError:
        return ""
    return f"/proc/{os.getpid()}/fd/{fd}"
