"""A child process with a pipe for each of its standard streams."""

from __future__ import annotations

import contextlib
import os

from launcher.core.signal import signal
from launcher.process.kernel import die_with_parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

NOT_STARTED = 127


class Pipes:
    """A child process with a pipe for each of its standard streams."""

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        restore: Callable[[], None] = lambda: None,
        *,
        outlives: bool = False,
    ) -> None:
        """Start the process, as the leader of a process group of its own.

        Args:
            argv: Its command line.
            environ: Its environment.
            restore: Restores the signals in the child, before its program.
            outlives: Whether it survives if we are killed; otherwise the kernel kills it with us.

        Raises:
            OSError: No more processes or descriptors.
        """
        pipes: list[tuple[int, int]] = []
        try:
            for _ in range(3):
                pipes.append(os.pipe())
            launcher, self.pid = os.getpid(), os.fork()
        except OSError:
            for fd in (fd for pair in pipes for fd in pair):
                os.close(fd)
            raise
        theirs = (pipes[0][0], pipes[1][1], pipes[2][1])
        if self.pid == 0:
            _become(argv, environ, 0 if outlives else launcher, theirs, restore)
        for fd in theirs:
            os.close(fd)
        self.stdin, self.stdout, self.stderr = pipes[0][1], pipes[1][0], pipes[2][0]
        for fd in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(fd, False)

    def send(self, number: int) -> None:
        """Send the process a signal, if it still exists."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, number)


def _become(
    argv: Sequence[str],
    environ: Mapping[str, str],
    launcher: int,
    streams: Sequence[int],
    restore: Callable[[], None],
) -> None:
    """Replace the forked child by a program.

    Args:
        argv: Its command line.
        environ: Its environment.
        launcher: PID of the launcher with which the child dies; 0 if it outlives the launcher.
        streams: Descriptors of its standard streams.
        restore: Restores the signals.
    """
    try:
        if launcher:
            die_with_parent(signal.SIGKILL)
        if launcher in (0, os.getppid()):
            os.setpgid(0, 0)
            for number, fd in enumerate(streams):
                os.dup2(fd, number)
            restore()
            os.execvpe(argv[0], list(argv), dict(environ))
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_STARTED)
