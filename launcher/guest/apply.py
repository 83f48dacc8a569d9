"""Take over what was planned for this process: its variables, files and CPUs.

Python 3.8 and newer.
"""

from __future__ import annotations

import os
import sys

from launcher.guest.marker import HOOKED, REFUSED, SWITCH, list_set, render_marker, undo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def apply_answer(answer: dict[str, Any]) -> None:
    """Make this process what an answer says (see `launcher.hook.answer`), and mark that.

    Children inherit the mark, so that they do not ask again; nor do they repeat a refusal.
    """
    before = dict(os.environ)
    if answer.get("refused"):
        sys.stderr.write(
            f"launcher: hook: no variables set: {answer['refused']} "
            f"(launcher plan tells more; {SWITCH}=0 switches the hook off)\n"
        )
        for name in list_set(before):  # by a hook around this one, for another process
            del os.environ[name]
        os.environ[HOOKED] = render_marker(REFUSED, before, undo(before))
        return
    paths = {word: _name_file(text) for word, text in answer["files"].items()}
    for name in answer["unset"]:
        os.environ.pop(name, None)
    for name, value in answer["set"].items():
        path = paths.get(value, value)
        if path:  # a file that cannot be made is better not named
            os.environ[name] = path
    os.environ[HOOKED] = render_marker(answer["scope"], before, dict(os.environ))
    if answer["cpus"]:
        try:  # noqa: SIM105 - one import less in the user's process
            os.sched_setaffinity(0, answer["cpus"])
        except OSError:  # the cpuset has changed since: to run anywhere is better than not
            pass


def _name_file(text: str) -> str:
    """Return the path of a file in memory that lives as long as this process; empty if there is none."""
    try:
        fd = os.memfd_create("launcher", 0)
        os.write(fd, text.encode())
    except OSError:
        return ""
    return f"/proc/{os.getpid()}/fd/{fd}"
