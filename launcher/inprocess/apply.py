"""What an answer of the hook's planner changes: in this process, or in the shell that asked.

Python 3.8 and newer.
"""

from __future__ import annotations

import os
import sys

from launcher.inprocess.marker import HOOKED, REFUSED, SWITCH, list_set, render_marker, undo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


def plan_change(
    answer: Mapping[str, Any], environ: Mapping[str, str], files: Mapping[str, str | None]
) -> tuple[dict[str, str], Sequence[str]]:
    """Return the variables that an answer sets, with a marker, and the names of those that it removes.

    Children inherit the marker. So they do not ask again, and do not print a refusal again. After a refusal,
    what the hook has set in an outer process goes: it was for that process.

    Args:
        answer: See `launcher.hook.answer`.
        environ: The environment before the change.
        files: The path of each of the answer's files; None if there is none, and its variable is not set.
    """
    if answer.get("refused"):
        return {HOOKED: render_marker(REFUSED, environ, undo(environ))}, list_set(environ)
    paths = {name: files.get(value, value) for name, value in answer["set"].items()}
    wanted = {name: path for name, path in paths.items() if path is not None}
    after = {**{name: value for name, value in environ.items() if name not in answer["unset"]}, **wanted}
    return {**wanted, HOOKED: render_marker(answer["scope"], environ, after)}, answer["unset"]


def render_refusal(answer: Mapping[str, Any]) -> str:
    """Return the message of a refusal; empty if the answer is none."""
    if not answer.get("refused"):
        return ""
    return (
        f"launcher: hook: no variables set: {answer['refused']} "
        f"(run launcher plan for details; {SWITCH}=0 switches the hook off)\n"
    )


def apply_answer(answer: Mapping[str, Any]) -> None:
    """Set the variables, files and CPUs of an answer in this process."""
    sys.stderr.write(render_refusal(answer))
    files = {word: _name_file(text) for word, text in answer.get("files", {}).items()}
    wanted, gone = plan_change(answer, dict(os.environ), files)
    for name in gone:
        os.environ.pop(name, None)
    os.environ.update(wanted)
    if answer.get("cpus"):
        try:  # noqa: SIM105 - avoids an import in the user's process
            os.sched_setaffinity(0, answer["cpus"])
        except OSError:  # the cpuset has changed: an unbound process is better than a failed one
            pass


def _name_file(text: str) -> str | None:
    """Return the path of a memory file that lives as long as this process; None if it can't be made."""
    try:
        fd = os.memfd_create("launcher", 0)
        os.write(fd, text.encode())
    except OSError:
        return None
    return f"/proc/{os.getpid()}/fd/{fd}"
