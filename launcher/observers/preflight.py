"""Look at the node while the job runs: in a fork of the launcher, when nobody else wants the CPU.

The quick checks cost more than the whole start of a job, most of it for loading them. So they are
made beside the job, and nothing depends on them: what they find out is a few lines on standard error,
and a check that hangs (a dead network drive), dies, or comes too late is not heard of.
"""

from __future__ import annotations

import os
import select
import time

from launcher.core.signal import signal
from launcher.process.kernel import die_with_parent, set_name
from launcher.process.watchdog import close_others

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.process.loop import Loop

NAME = "launcher-check"
NICE = 19
LIMIT_S = 30.0
"""Below all others, on CPUs that are all taken, 0.1 s of work is a matter of seconds."""
LIMIT_BYTES = 1 << 14
REAP_MS = 20
"""What a process may take to be gone that was killed long before."""


class Preflight:
    """The process that looks, as the launcher sees it.

    Attributes:
        pid: A child of ours that is none of the job; None once somebody has waited for it.
        due: When it has had its time (monotonic seconds), None once it has ended.
    """

    def __init__(self, look: Callable[[], Sequence[str]], loop: Loop, say: Callable[[str], None]) -> None:
        """Fork it.

        Args:
            look: Called there; returns lines to be said.
            loop: Hears of its end.
            say: Says several lines, one below the other.

        Raises:
            OSError: No more processes or descriptors, or a kernel without pidfds.
        """
        self._loop, self._say, self._text = loop, say, b""
        self._fd, writing = os.pipe()
        self.pid: int | None
        try:
            self.pid, self._pidfd = _fork(look, writing)
        except OSError:
            os.close(self._fd)
            raise
        finally:
            os.close(writing)
        self.due: float | None = time.monotonic() + LIMIT_S
        os.set_blocking(self._fd, False)
        loop.add(self._fd, self._hear)

    def fire(self, now: float) -> None:
        """Its time is up."""
        self.close()

    def end(self) -> None:
        """The job has ended: say what is there to be said, and look no longer."""
        if self.due is not None:
            self._take()
            self._tell()

    def close(self) -> None:
        """Look no longer, and say nothing."""
        if self.due is not None:
            self.due = None
            self._loop.remove(self._fd)
            os.close(self._fd)
            _kill(self._pidfd)

    def reap(self) -> None:
        """Collect it, at the end of the launcher; one that the kernel holds is not waited for."""
        self.close()
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        poll.poll(REAP_MS)
        try:  # noqa: SIM105 - contextlib would be one more module
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            pass  # whoever collects orphans was quicker
        os.close(self._pidfd)

    def _hear(self) -> None:
        if self._take():
            self._tell()

    def _take(self) -> bool:
        """Read what is there; return whether that is all that there will be."""
        try:
            data = os.read(self._fd, LIMIT_BYTES)
        except BlockingIOError:
            return False
        self._text = (self._text + data)[:LIMIT_BYTES]
        return not data or len(self._text) == LIMIT_BYTES

    def _tell(self) -> None:
        self.close()
        lines = self._text.decode("utf-8", "replace").splitlines()
        if lines:
            self._say("\n".join(lines))


def _fork(look: Callable[[], Sequence[str]], writing: int) -> tuple[int, int]:
    """Return pid and pidfd of a process that looks, and writes its lines to a pipe."""
    launcher = os.getpid()
    os.close(os.pidfd_open(launcher))  # a kernel without them says so before there is a process
    pid = os.fork()
    if pid == 0:
        try:
            _look(look, writing, launcher)
        finally:
            os._exit(0)
    try:
        return pid, os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _look(look: Callable[[], Sequence[str]], writing: int, launcher: int) -> None:
    """Be that process: all signals are blocked already, and all we share with the job are the CPUs.

    No session of our own: where the kernel shares CPUs out by sessions (autogroup), we would have as much as
    the job.
    """
    die_with_parent(signal.SIGKILL)
    if os.getppid() != launcher:  # it was killed before the line above
        return
    os.nice(NICE)
    os.setpgid(0, 0)
    set_name(NAME)
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    close_others((0, 1, 2, writing))
    data = "\n".join(look()).encode("utf-8", "replace")
    while data:
        data = data[os.write(writing, data) :]


def _kill(pidfd: int) -> None:
    try:  # noqa: SIM105
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        pass  # it has ended
