"""Replaces the launcher with the command, which keeps the launcher's pid."""

from __future__ import annotations

import os
import sys
from errno import EACCES, ENOENT, ENOEXEC, ENOSYS, ENOTDIR, EPERM

from launcher.core.errors import LauncherError, attempt, make_error
from launcher.core.signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CPU_LIMIT = 8192
"""More than the kernel's largest CPU number (NR_CPUS). The numbers may have gaps, so a count is no limit."""
RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores from its start; exec would pass that on to the command."""
SHELL_WORDS = (".", "alias", "cd", "eval", "exec", "export", "set", "source", "ulimit", "umask")
"""Shell built-ins that users write as a command and that are not programs."""


def execute(argv: Sequence[str], environ: Mapping[str, str], cpus: tuple[int, ...] | None = None) -> None:
    """Replace this process with the command; returns only by raising.

    Args:
        argv: The command line.
        environ: The command's whole environment.
        cpus: CPUs to bind it to; None or empty for no binding.

    Raises:
        CommandNotFound: There is no such program (127).
        CommandNotExecutable: The program exists but cannot be executed (126).
    """
    path = find_program(argv[0], environ)
    sys.stdout.flush()
    sys.stderr.flush()
    for number in RESTORED:
        signal.signal(number, signal.SIG_DFL)
    if cpus:
        keep_to(cpus)
    if os.getpid() == 1:
        from launcher.process.signal_file import release

        release()
    try:
        os.execve(path, list(argv), dict(environ))
    except (OSError, ValueError) as error:
        raise refusal(argv[0], error) from error


def keep_to(cpus: tuple[int, ...]) -> None:
    """Bind this process to CPUs; if the cpuset has changed since the plan, it runs unbound."""
    attempt(os.sched_setaffinity, 0, cpus)


def find_program(name: str, environ: Mapping[str, str]) -> str:
    """Return the path of a program, found by the PATH that the program itself will see.

    Raises:
        CommandNotFound: There is no file of that name.
        CommandNotExecutable: No file of that name is executable.
    """
    if "/" in name:
        return name
    seen = False
    for folder in environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder or ".", name)
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path
            seen = True
    raise refusal(name, PermissionError(EACCES, "not executable") if seen else OSError(ENOENT, "not found"))


def _find_fix(name: str) -> str:
    """Return the fix for a missing program, guessed from its name."""
    if not name:
        return "a variable of a script may be unset: launcher run -- COMMAND"
    if len(name.split()) > 1:
        return f"write it without quotes, as words: launcher run -- {name}; or sh -c {name!r}"
    if name.partition("=")[0].isidentifier() and "=" in name:
        return f"set it in front of the launcher: {name} launcher run ...; or as a program: env {name} ..."
    if name in SHELL_WORDS:
        return f"it is a shell builtin: launcher run -- sh -c '{name} ...'"
    if "/" not in name and os.path.isfile(name):
        return f"it is in this directory, which is not on PATH: write ./{name}, or sh {name}"
    from launcher.process.missing import fix_missing

    usual = "check the name, the working directory and PATH (a script needs its interpreter, too)"
    return fix_missing(name) or usual


def refusal(name: str, error: Exception) -> LauncherError:
    """Return the error for a command that cannot be started, with the exit status that a shell would use."""
    number = getattr(error, "errno", None)
    if number in (ENOENT, ENOTDIR):
        return make_error("command-not-found", name=name, fix=_find_fix(name))
    if os.path.isdir(name):
        return make_error("command-is-folder", name=name)
    fix = "chmod +x it and give it a #! line, or put its interpreter in front"
    if number not in (EACCES, ENOEXEC):
        fix = "check the file and its arguments"
    if isinstance(error, OSError) and number in (EPERM, ENOSYS):
        from launcher.process.refused import explain

        known = explain(error)
        if known is not None:
            return known
    reason = getattr(error, "strerror", None) or str(error)
    return make_error("command-not-executable", name=name, reason=reason, fix=fix)
