"""Health command: the user's own check of a node, run before an attempt.

Exit status 0 means healthy. Otherwise the first line of its output is the reason.
"""

from __future__ import annotations

import os
from errno import EACCES, ENOENT

from launcher.core.errors import LauncherError
from launcher.core.frozen import replace
from launcher.core.redact import printable, redact
from launcher.process.execute import find_program, refusal
from launcher.process.program import end_group, run_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from launcher.process.helper import Helper, Helpers

LIMIT_S = 120.0
"""Seconds that the command may take; NVIDIA's quick diagnosis (``dcgmi diag -r 1``) takes some ten."""
MARGIN_S = 5.0
KEPT_BYTES = 1 << 13
"""Number of bytes of output that are kept, the first ones."""
HEALTHY, UNHEALTHY = "healthy", "unhealthy: "
"""What an answer is, or begins with."""


def require_command(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Check that the program of the health command can be started: a mistyped one is no fault of the node.

    Raises:
        CommandNotFound: There is no such program.
        CommandNotExecutable: It cannot be executed.
    """
    name = argv[0]
    try:
        path = find_program(name, environ)
        if not os.path.isfile(path):
            raise refusal(name, FileNotFoundError(ENOENT, "not found"))
        if not os.access(path, os.X_OK):
            raise refusal(name, PermissionError(EACCES, "not executable"))
    except LauncherError as error:
        (problem,) = error.problems
        raise type(error)(replace(problem, where="--health-command")) from None


def ask_health(argv: Sequence[str], helpers: Helpers, take: Callable[[str], None]) -> Helper | None:
    """Run the command beside the loop, and pass on what is wrong with this node; empty if nothing is.

    Args:
        argv: The command.
        helpers: Run slow work in a fork.
        take: Called once: later, or at once if there is no fork.

    Returns:
        The fork; None if there is none.
    """

    def read(lines: Sequence[str]) -> None:
        found = lines[0] if lines else f"{argv[0]} gave no answer: it was killed, or took over {LIMIT_S:g} s"
        take("" if found == HEALTHY else printable(redact(found.removeprefix(UNHEALTHY))))

    try:
        name = "launcher-health"
        return helpers.ask(lambda: answer_health(argv), read, LIMIT_S + MARGIN_S, name=name, then=end_group)
    except OSError as error:
        take(printable(redact(f"{argv[0]} could not be started: {error.strerror}")))
        return None


def answer_health(argv: Sequence[str]) -> Iterator[str]:
    """Yield the answer of a helper; runs in a fork of the launcher, whose signals are blocked."""
    found = run_health(argv)
    yield f"{UNHEALTHY}{found}" if found else HEALTHY


def run_health(argv: Sequence[str]) -> str:
    """Return what is wrong; empty if nothing is."""
    try:
        run = run_program(argv, LIMIT_S, KEPT_BYTES)
    except (OSError, ValueError) as error:
        return f"{argv[0]} could not be started: {getattr(error, 'strerror', None) or error}"
    if run.status is None:
        return f"{argv[0]} gave no answer within {LIMIT_S:g} s"
    if not run.status:
        return ""
    text = redact(run.output.decode("utf-8", "replace"))  # before a line is chosen and cut
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line[:400] or f"{argv[0]} ended with exit code {run.status}"
