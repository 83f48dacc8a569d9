"""Runs a program in a helper, with limits of time and output: the health command, `launcher exec`."""

from __future__ import annotations

import os

from launcher.core.frozen import frozen
from launcher.core.signal import signal
from launcher.machine.process import find_descendants
from launcher.process.kernel import become_subreaper, die_with_parent
from launcher.process.signal_file import send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REST_S = 0.2
"""Seconds for the last output of a program that has ended; a daemon that it has started may keep the pipe."""
PASSES = 20
"""Number of searches for descendants: one may miss a process that forks meanwhile."""


@frozen
class ProgramRun:
    """How a program ran.

    Attributes:
        status: Its exit status, as in a shell; None if its time was up.
        output: The first bytes of its standard output and error, in order.
        size: Number of all bytes.
    """

    status: int | None
    output: bytes
    size: int


def run_program(
    argv: Sequence[str], limit_s: float, kept_bytes: int, environ: Mapping[str, str] | None = None
) -> ProgramRun:
    """Run a program without input; to be called in a fork of the launcher, whose signals are blocked.

    Args:
        argv: Its command line.
        limit_s: Seconds that it may take; the caller ends what still runs then.
        kept_bytes: Number of bytes of output that are kept.
        environ: Its environment; None for ours.

    Raises:
        OSError: It cannot be started.
        ValueError: Its command line has a null byte.
    """
    import subprocess
    import threading

    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    become_subreaper()  # for `end_family`
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ,
        preexec_fn=lambda: die_with_parent(signal.SIGKILL),
    )
    assert process.stdout is not None  # noqa: S101 - a pipe
    kept, size, fd = bytearray(), 0, process.stdout.fileno()

    def drain() -> None:
        nonlocal size
        while data := os.read(fd, 1 << 16):
            size += len(data)
            kept.extend(data[: kept_bytes - len(kept)])

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    try:
        status = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return ProgramRun(None, bytes(kept), size)
    reader.join(REST_S)
    return ProgramRun(status if status >= 0 else 128 - status, bytes(kept), size)


def end_group() -> None:
    """End this helper, and what its program has left in its process group."""
    os.killpg(0, signal.SIGKILL)


def end_family() -> None:
    """End this helper, and all that its program has started, in whatever group or session."""
    for _ in range(PASSES):
        found = find_descendants([os.getpid()])
        for pid in found:
            send(pid, signal.SIGKILL)
        if not found:
            break
    end_group()
