"""The plain engine: the command line of a process as the user wrote it, Python put in front if needed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from launcher.errors import Problem, UsageError
from launcher.options import Options

PYTHON_VARIABLE = "PYTHON_EXEC"
"""torchrun's name for the Python that runs scripts; without it, the one that runs the launcher."""


def plan_argv(command: Sequence[str], options: Options, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the full command line: a ``.py`` file or ``-m module`` runs under Python.

    Raises:
        UsageError: No command, or ``-m`` without a module.
    """
    if not command:
        raise UsageError(_no_command())
    python = environ.get(PYTHON_VARIABLE) or sys.executable
    if options.switch("no_python"):
        return tuple(command)
    if options.switch("module"):
        return (python, "-m", *command)
    if command[0] == "-m":
        if len(command) < 2:
            raise UsageError(_no_command())
        return (python, *command)
    if command[0].endswith(".py"):
        return (python, *command)
    return tuple(command)


def _no_command() -> Problem:
    return Problem(
        "no-command",
        "nothing to run: expected a .py file, -m MODULE, or a program",
        "command line",
        "launcher run [options] -- python train.py",
    )
