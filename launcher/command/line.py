"""A command line as the user wrote it: is it a Python's, and must Python be put in front of it?"""

from __future__ import annotations

import os

from launcher.errors import Problem, UsageError
from launcher.options import Options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHELLS = ("sh", "bash", "dash", "ash")
"""Programs whose ``-c STRING`` may be nothing but one command (`launcher.command.shell`)."""
STARTERS = frozenset(
    (
        *("torchrun", "accelerate", "accelerate-launch", "deepspeed", "deepspeed.pt", "ds", "fabric"),
        *("lightning", "composer", "horovodrun", "mpirun", "mpiexec", "orterun", "prterun"),
        *("mpiexec.hydra", "mpiexec.mpich", "mpirun.openmpi", "torch.distributed.run"),
        *("torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner"),
        *("lightning_fabric.cli", "composer.cli.launcher", "horovod.runner.launch"),
    )
)
"""Words that may make a command a launcher: what `launcher.command.launchers` need not be loaded for."""


def is_python(word: str) -> bool:
    """Whether a command's first word is a Python: ``python``, ``/usr/bin/python3.11``, ``pypy3``."""
    name = word.rpartition("/")[2]
    kind = next((kind for kind in ("python", "pypy") if name.startswith(kind)), None)
    return kind is not None and not name[len(kind) :].strip("0123456789.")


def may_be_launcher(argv: tuple[str, ...]) -> bool:
    """Whether it is worth a look: a known program, or one of the first words of a Python's line."""
    if not argv:
        return False
    words = argv[:8] if is_python(argv[0]) else argv[:1]
    return any(word.rpartition("/")[2] in STARTERS for word in words)


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
        raise UsageError(no_command())
    if options.switch("run_path"):
        return (_python(environ), *command)
    if options.switch("no_python"):
        return tuple(command)
    if options.switch("module"):
        return (_python(environ), "-m", *command)
    if command[0] == "-m":
        if len(command) < 2:
            raise UsageError(no_command())
        return (_python(environ), *command)
    if command[0].endswith(".py") or _is_script(command[0]):
        return (_python(environ), *command)
    if command[0].rpartition("/")[2] in SHELLS:
        from launcher.command.shell import open_shell

        return open_shell(command)
    return tuple(command)


def _python(environ: Mapping[str, str]) -> str:
    from launcher.machine.pythons import own_python

    return own_python(environ)


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


def no_command() -> Problem:
    """Return that there is nothing to run."""
    return Problem(
        "no-command",
        "nothing to run: expected a .py file, -m MODULE, or a program",
        "command line",
        "launcher run [options] -- python train.py",
    )
