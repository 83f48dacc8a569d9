"""The hook for shells: a file for ``/etc/profile.d`` (login shells) and ``BASH_ENV`` (bash scripts).

It asks the launcher's own Python once, if the environment shows a job and no hook has acted yet. The file is
POSIX shell, because a login shell need not be bash.

Source: bash(1), INVOCATION, BASH_ENV; Debian's /etc/profile.
"""

from __future__ import annotations

import os
import shlex
import sys

from launcher.core.redact import printable
from launcher.hook.line import MARKERS, render_head
from launcher.inprocess import ERROR_FILE, STACKS_FILE
from launcher.inprocess.apply import plan_change, render_refusal
from launcher.inprocess.marker import AGENT, DISABLE, HOOKED, LAUNCHED, NEARER, OF_AGENT, SWITCH
from launcher.machine.pythons import own_program
from launcher.views.environment import render_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

OF_PROCESSES = (STACKS_FILE, ERROR_FILE)
"""Variables that ask for a process to be armed; a shell cannot be armed."""
PROFILE = "/etc/profile.d/launcher_hook.sh"
_TEXT = """\
{head}# Login shells read it in /etc/profile.d, scripts of bash by BASH_ENV={path}
if [ -n "{markers}" ] && [ -z "${{{agent}:+${{{of_agent}-}}}}" ] && [ -x {python} ]; then
    case "${{{disable}-}}|${{{switch}-}}|${{{hooked}-}}|${{{launched}-}}" in
        1\\|* | [Tt][Rr][Uu][Ee]\\|*) ;;
        *\\|0\\|*\\|* | *\\|false\\|*\\|* | *\\|*"/{identity}/"*\\|* | *\\|*\\|\\|?*) ;;
        *) eval "$({line} --sh)" ;;
    esac
fi
"""


def render_shell(path: str) -> str:
    """Return the text of the file for a path."""
    child = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child.py")
    return _TEXT.format(
        head=render_head(),
        path=shlex.quote(printable(path)),
        markers="".join(f"${{{name}-}}" for name in MARKERS if name not in OF_PROCESSES),
        identity=",".join(".".join(f"${{{name}-}}" for name in pair) for pair in NEARER),
        python=shlex.quote(sys.executable),
        line=shlex.join(own_program(child)),
        disable=DISABLE,
        switch=SWITCH,
        hooked=HOOKED,
        launched=LAUNCHED,
        agent=AGENT,
        of_agent=OF_AGENT,
    )


def render_answer(answer: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[str, str]:
    """Return an answer (see `launcher.hook.answer`) as text for ``eval``, and a message for standard error.

    Variables that name a file in memory are left out: such a file ends with its process.
    """
    wanted, gone = plan_change(answer, environ, dict.fromkeys(answer.get("files", ())))
    return render_environment(wanted, gone, "sh")[0], render_refusal(answer)
