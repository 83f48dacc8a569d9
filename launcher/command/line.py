"""The user's command line: adds Python to the front of a script, and opens a shell that only starts it."""

from __future__ import annotations

import os

from launcher.command.fronts import find_front
from launcher.command.launchers import find_launcher
from launcher.command.words import STDIN, is_python, is_shell, part_module, read_interpreter, read_python
from launcher.core.errors import LauncherError, make_error
from launcher.machine.pythons import PYTHON_VARIABLE, find_program, own_python

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.options.reading import Options

PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 -_./=:,@%+")
"""Characters that a shell passes on as they are."""
SCRIPTS = (".py", ".pyc", ".pyz")
"""Ends of the names of files that run under Python."""
OF_PYTHON = ("-u", "-O", "-B", "-X", "-W", "-c", "-I", "-E", "-S")
"""Python's flags that people type without ``python``; none is a flag of ours."""


def plan_argv(command: Sequence[str], options: Options, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the full command line: a ``.py`` file, ``-m module``, ``-`` or a directory runs under Python.

    A file that is not executable and names Python in its first line runs under Python too. A shell with a
    text that only starts a Python or a launcher (an image's ``CMD python train.py``) is replaced by it, so
    that signals reach it directly. In a Python's command line ``-m`` and the module become separate words.

    Raises:
        UsageError: No command, or ``-m`` without a module.
    """
    front = find_front(tuple(command))
    if front.count and front.runs_next:
        return front.argv
    argv = add_python(front.argv[front.count :], options, environ)
    if not front.count and argv[0].startswith("-"):
        raise _flag_first(argv)
    if not front.count and not options.switch("no_python"):
        argv = open_shell(argv)
    return (*front.argv[: front.count], *part_module(argv))


def open_shell(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the Python or launcher that ``sh -c "python train.py"`` only starts; else the command itself."""
    if len(argv) != 3 or not is_shell(argv[0]) or argv[1] not in ("-c", "-ec"):
        return argv
    words = tuple(argv[2].split())
    words = words[1:] if words[:1] == ("exec",) else words
    is_only = words and PLAIN.issuperset(argv[2].strip())
    return words if is_only and (is_python(words[0]) or find_launcher(words)) else argv


def add_python(command: Sequence[str], options: Options, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command, with Python in front of it if it needs one.

    Raises:
        UsageError: No command, or ``-m`` without a module.
    """
    if not command or (len(command) == 1 and command[0] == "-m"):
        raise make_error("no-command")
    if options.switch("no_python"):
        return tuple(command)
    python = own_python(environ)
    if options.switch("module"):
        return (python, "-m", *command)
    if options.switch("run_path") or command[0] == "-m":
        return (python, *command)
    if not command[0].endswith(SCRIPTS) and command[0] not in STDIN and not _is_script(command[0]):
        return tuple(command)
    named = () if environ.get(PYTHON_VARIABLE) else read_python(command[0])
    return (*named, *command) if named and find_program(named[0], environ) else (python, *command)


def _flag_first(command: Sequence[str]) -> LauncherError:
    """Return the error of a flag where the command's program is expected."""
    import shlex

    if command[0][:2] in OF_PYTHON:
        return make_error("python-flag-first", word=command[0], line=shlex.join(command))
    place = next((place for place, word in enumerate(command) if word.endswith(".py") or is_python(word)), 0)
    line = f"{shlex.join(command[:place])} -- {shlex.join(command[place:])}" if place else "FLAGS -- COMMAND"
    return make_error("flag-first", word=command[0], line=line)


def _is_script(path: str) -> bool:
    """Whether Python runs it: a file that is not executable and begins with ``#!...python``, or a directory.

    A folder's name has a slash: a program may have the name of the package that it comes from.
    """
    if "/" in path and os.path.isfile(os.path.join(path, "__main__.py")):
        return True
    words = () if os.access(path, os.X_OK) else read_interpreter(os.path.join(".", path))
    return any("python" in word for word in words)
