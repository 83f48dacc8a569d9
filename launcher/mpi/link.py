"""One shared ssh connection per node, for our session and for the ssh by which mpirun starts its daemon.

Setting up an ssh connection takes 150 to 220 ms of CPU time, mostly for its key exchange. Another command
over an existing connection takes 10 ms (ssh_config(5), ControlMaster). An ssh that does not find the shared
connection makes one of its own.
"""

from __future__ import annotations

import contextlib
import os

from launcher.core.signal import signal
from launcher.process.kernel import die_with_parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.process.loop import Loop
    from launcher.process.signals import SignalFile

READ_BYTES = 1 << 16
STDERR_BYTES = 4096
NOT_STARTED = 127
UP = b"up"


def plan_link(ssh: Sequence[str], host: str) -> tuple[str, ...]:
    """Return the command that opens and holds a node's shared connection; it prints `UP` once connected."""
    options = ("ControlMaster=yes", "PermitLocalCommand=yes", f"LocalCommand=echo {UP.decode()}")
    return (*ssh, *(word for option in options for word in ("-o", option)), "-N", host)


class Pipes:
    """A child process with a pipe for each of its standard streams."""

    def __init__(
        self, argv: Sequence[str], environ: Mapping[str, str], watched: SignalFile, *, outlives: bool = False
    ) -> None:
        """Start the process.

        Args:
            argv: Its command line.
            environ: Its environment.
            watched: Restores the signal mask in the child.
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
        if self.pid == 0:
            _become(
                argv, environ, 0 if outlives else launcher, (pipes[0][0], pipes[1][1], pipes[2][1]), watched
            )
        for fd in (pipes[0][0], pipes[1][1], pipes[2][1]):
            os.close(fd)
        self.stdin, self.stdout, self.stderr = pipes[0][1], pipes[1][0], pipes[2][0]
        for fd in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(fd, False)

    def send(self, number: int) -> None:
        """Send the process a signal, if it still exists."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, number)

    def close(self) -> None:
        """Close our ends of the pipes."""
        for fd in (self.stdin, self.stdout, self.stderr):
            os.close(fd)


def _become(
    argv: Sequence[str],
    environ: Mapping[str, str],
    launcher: int,
    streams: Sequence[int],
    watched: SignalFile,
) -> None:
    """Replace the forked child by a program.

    Args:
        argv: Its command line.
        environ: Its environment.
        launcher: PID of the launcher with which the child dies; 0 if it outlives the launcher.
        streams: Descriptors of its standard streams.
        watched: Restores the signal mask.
    """
    try:
        if launcher:
            die_with_parent(signal.SIGKILL)
        if launcher in (0, os.getppid()):
            os.setpgid(0, 0)
            for number, fd in enumerate(streams):
                os.dup2(fd, number)
            watched.reset()
            os.execvpe(argv[0], list(argv), dict(environ))
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_STARTED)


class Link:
    """The shared connection of a node.

    Attributes:
        process: The ssh that holds it.
        words: The last `STDERR_BYTES` of what ssh has written to standard error.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        loop: Loop,
        watched: SignalFile,
        when_up: Callable[[], None],
        when_down: Callable[[str], None],
    ) -> None:
        """Begin to connect.

        Args:
            argv: ssh's command line, from `plan_link`.
            environ: ssh's environment.
            loop: The event loop.
            watched: Restores the signal mask in the child.
            when_up: Called once the connection is up.
            when_down: Called with ssh's messages if the connection fails or is lost.

        Raises:
            OSError: No more processes or descriptors.
        """
        self.process = Pipes(argv, environ, watched)
        self._loop, self._when_up, self._when_down = loop, when_up, when_down
        self.words = b""
        self._is_open = True
        loop.add(self.process.stdout, self._on_output)
        loop.add(self.process.stderr, self._on_words)

    @property
    def pid(self) -> int:
        """PID of the process that holds the connection."""
        return self.process.pid

    def _on_output(self) -> None:
        data = _read(self.process.stdout)
        if data == b"":  # ssh closes it early; only its standard error stays open to the end
            self._loop.remove(self.process.stdout)
        elif data and UP in data:
            self._when_up()

    def _on_words(self) -> None:
        data = _read(self.process.stderr)
        self.words = (self.words + (data or b""))[-STDERR_BYTES:]
        if data == b"":
            self.close()
            self._when_down(self.words.decode("utf-8", "replace"))

    def close(self) -> None:
        """End the connection."""
        if self._is_open:
            self._is_open = False
            self.process.send(signal.SIGTERM)  # ssh then removes its socket
            for fd in (self.process.stdout, self.process.stderr):
                self._loop.remove(fd)
            self.process.close()


def _read(fd: int) -> bytes | None:
    """Return the available data, empty at end of file; None if there is none yet."""
    try:
        return os.read(fd, READ_BYTES)
    except BlockingIOError:
        return None
