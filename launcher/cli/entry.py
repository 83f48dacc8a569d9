"""Entry point of ``launcher`` and ``python -m launcher``: the only place that maps errors to statuses."""

from __future__ import annotations

import gc
import os
import sys
from errno import EMFILE, ENFILE

from launcher.core.errors import (
    BROKEN_PIPE,
    EXIT_BUG,
    LauncherError,
    NotReady,
    Problem,
    make_error,
    print_problems,
)
from launcher.core.log import STYLE, guess_style
from launcher.core.signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    Result = TypeVar("Result")

MEMORY = "this node; ulimit -v and -d; 512 MiB for the answer of another user's launcher"
"""Where the limit may be."""
HIGHEST = 1 << 16
"""Descriptors up to this one are closed where none is left."""


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run one command of the launcher and return its exit status.

    Args:
        argv: Words after the program's name; default: those of this process.
        environ: The environment to work from; default: that of this process.
    """
    if argv is None:
        _open_closed_descriptors()
        _default_sigchld()
    from launcher.cli.main import dispatch

    words = sys.argv[1:] if argv is None else argv
    given = dict(os.environ) if environ is None else environ  # each os.environ lookup encodes the name
    try:
        return dispatch(words, given)
    except LauncherError as error:
        _with_descriptors(_report, error, words, given)
        return error.exit_status
    except BrokenPipeError:
        # The reader of our output has exited (launcher plan | head): discard the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return 130
    except MemoryError:
        pass  # what its frames hold is free after this block
    except Exception as error:
        known = _with_descriptors(_explain, error)
        if known is None:
            _print_bug()
            return EXIT_BUG
        _with_descriptors(print_problems, known)
        return known.exit_status
    full = NotReady(
        Problem("no-memory", "no memory is left for this command", MEMORY, "free some, or raise the limit")
    )
    _report(full, words, given)
    return full.exit_status


def _default_sigchld() -> None:
    """Take back what a parent may have ignored: exit statuses would be lost."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    except OSError:  # refused by a seccomp profile: a command that needs it says so
        return


def _report(error: LauncherError, words: Sequence[str], environ: Mapping[str, str]) -> None:
    if not STYLE.as_json:
        guess_style(words, environ)
    print_problems(error)


def _with_descriptors(action: Callable[..., Result], *given: object) -> Result:
    """Do what is left to do; if no descriptor is left to load its modules, first close those in use."""
    try:
        return action(*given)
    except OSError as error:
        if error.errno not in (EMFILE, ENFILE):
            raise
    os.closerange(3, HIGHEST)
    return action(*given)


def _explain(error: Exception) -> LauncherError | None:
    """Return the system failure behind an exception; None for our own bug."""
    if not isinstance(error, OSError):
        return None
    if isinstance(error, FileNotFoundError) and error.filename is None and _has_no_folder():
        return make_error("no-working-directory")
    from launcher.process.kernel import FULL

    if error.errno in FULL:
        from launcher.process.spawn import cannot_start

        return cannot_start(error)
    from launcher.process.refused import explain

    return explain(error)


def _has_no_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _open_closed_descriptors() -> None:
    """Open /dev/null at each of 0, 1 and 2 that is closed, so that no later file gets that number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - for the process's life
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _print_bug() -> None:
    import traceback

    from launcher.core.log import say
    from launcher.core.redact import printable, redact

    lines = redact(traceback.format_exc()).splitlines()
    if STYLE.as_json:
        say("\n".join(lines), "bug")
    else:
        sys.stderr.write("".join(f"{printable(line)}\n" for line in lines))
    say(
        "error: [bug] the launcher itself failed; nothing was started\n"
        "  fix:  report the lines above with the output of: launcher snapshot",
        "bug",
    )
    say("note: LAUNCHER_DISABLE=1 runs the command as it is, without the launcher", "note")


def run_and_exit() -> None:
    """Run the program and exit without finalizing the interpreter, which saves 3 ms."""
    gc.disable()  # a start leaves no garbage: a collection costs 1 ms and finds none
    status = main()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        status = status or BROKEN_PIPE
    os._exit(status)
