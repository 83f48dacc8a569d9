"""The plain engine: the command line of a process as the user wrote it, Python put in front if needed."""

from __future__ import annotations

import os
import sys

from launcher.errors import Problem, UsageError
from launcher.options import Options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PYTHON_VARIABLE = "PYTHON_EXEC"
"""torchrun's name for the Python that runs scripts; without it, the one that runs the launcher."""


def is_python(word: str) -> bool:
    """Whether a command's first word is a Python: ``python``, ``/usr/bin/python3.11``, ``pypy3``."""
    name = word.rpartition("/")[2]
    kind = next((kind for kind in ("python", "pypy") if name.startswith(kind)), None)
    return kind is not None and not name[len(kind) :].strip("0123456789.")


def find_script(argv: Sequence[str]) -> int | None:
    """Return where ``-m`` or the script stands in a Python's command line, None if there is neither."""
    place = 1
    while place < len(argv):
        word = argv[place]
        if word == "-m" or not word.startswith("-"):
            return place
        if word == "-c":
            return None
        place += 2 if word in ("-W", "-X", "--check-hash-based-pycs") else 1
    return None


def plan_argv(command: Sequence[str], options: Options, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the full command line: a ``.py`` file or ``-m module`` runs under Python.

    So does a file that cannot be executed and says in its first line that it is Python's.

    Raises:
        UsageError: No command, or ``-m`` without a module.
    """
    if not command:
        raise UsageError(_no_command())
    python = environ.get(PYTHON_VARIABLE) or sys.executable
    if options.switch("run_path"):
        return (python, *command)
    if options.switch("no_python"):
        return tuple(command)
    if options.switch("module"):
        return (python, "-m", *command)
    if command[0] == "-m":
        if len(command) < 2:
            raise UsageError(_no_command())
        return (python, *command)
    if command[0].endswith(".py") or _is_script(command[0]):
        return (python, *command)
    return tuple(command)


def _is_script(path: str) -> bool:
    """Whether a file without the right to be executed begins with ``#!...python``."""
    if not os.path.isfile(path) or os.access(path, os.X_OK):
        return False
    try:
        with open(path, "rb") as file:
            first = file.readline(256)
    except OSError:
        return False
    return first.startswith(b"#!") and b"python" in first


def _no_command() -> Problem:
    return Problem(
        "no-command",
        "nothing to run: expected a .py file, -m MODULE, or a program",
        "command line",
        "launcher run [options] -- python train.py",
    )
