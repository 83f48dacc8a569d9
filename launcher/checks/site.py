"""The site's own checks: health commands, as `launcher run` runs one before each attempt."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Sequence

from launcher.checks.case import CheckedNode
from launcher.checks.finding import Findings, fail, ok
from launcher.core.redact import quote_command
from launcher.process.helper import Helpers
from launcher.process.loop import Loop
from launcher.recovery.health import ask_health

COMMAND_LENGTH = 120


def check_site(case: CheckedNode) -> Findings:
    """Run each command, one after the other.

    Exit status 0 means healthy. Otherwise the first line of the output is the reason; see
    `launcher.recovery.health`.
    """
    for argv in case.health_commands:
        shown = quote_command(argv, COMMAND_LENGTH, shlex.join)
        what, found = f"the health command, {shown}", _ask(argv)
        fix = f"use another node, and run this here: {shown}"
        yield fail(what, "status 0", found, fix) if found else ok(what, "healthy")


def _ask(argv: Sequence[str]) -> str:
    """Run a command, and return what is wrong with this node; empty if nothing is."""
    faults: list[str] = []
    loop = Loop(lambda text, event: faults.append(text))
    helpers, answers = Helpers(loop), list[str]()
    helper, held = None, signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        helper = ask_health(argv, helpers, answers.append)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)  # Ctrl-C, also one that has come meanwhile
        while not answers:
            loop.turn()  # the helper has a time limit
    except BaseException:
        if helper is not None:
            helper.close()  # what the command has started ends with it
        raise
    if helper is not None and helper.pid is not None:
        os.waitpid(helper.pid, 0)
    return answers[0]
