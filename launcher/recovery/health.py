"""Health command: the user's own check of a node, run before an attempt.

Exit status 0 means healthy. Otherwise the first line of its output is the reason.
"""

from __future__ import annotations

from launcher.core.redact import printable, redact

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from launcher.process.helper import Helpers

LIMIT_S = 120.0
"""Seconds that the command may take; NVIDIA's quick diagnosis (``dcgmi diag -r 1``) takes some ten."""
MARGIN_S = 5.0
HEALTHY = "healthy"


def ask_health(argv: Sequence[str], helpers: Helpers, take: Callable[[str], None]) -> None:
    """Run the command beside the loop, and pass on what is wrong with this node; empty if nothing is.

    Args:
        argv: The command.
        helpers: Run slow work in a fork.
        take: Called once, later.
    """

    def read(lines: Sequence[str]) -> None:
        found = lines[0] if lines else f"{argv[0]} gave no answer within {LIMIT_S:g} s"
        take("" if found == HEALTHY else printable(redact(found)))

    try:
        helpers.ask(lambda: run_health(argv), read, LIMIT_S + MARGIN_S, name="launcher-health")
    except OSError as error:
        take(printable(redact(f"{argv[0]} could not be started: {error.strerror}")))


def run_health(argv: Sequence[str]) -> Iterator[str]:
    """Yield `HEALTHY`, or what is wrong; runs in a fork of the launcher, whose signals are blocked."""
    import signal
    import subprocess

    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        yield f"{argv[0]} gave no answer within {LIMIT_S:g} s"
        return
    except OSError as error:
        yield f"{argv[0]} could not be started: {error.strerror}"
        return
    if not done.returncode:
        yield HEALTHY
        return
    text = done.stdout.decode("utf-8", "replace")
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    status = done.returncode if done.returncode > 0 else 128 - done.returncode
    yield line[:400] or f"{argv[0]} ended with status {status}"
