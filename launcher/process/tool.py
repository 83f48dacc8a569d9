"""Runs a helper program of the launcher with a time limit, and keeps its output in memory."""

from __future__ import annotations

import contextlib
import os
import signal

from launcher.machine.process import LIMIT_BYTES, read_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Tool:
    """One run of a program, without the job's environment and without input.

    Attributes:
        pid: A child of ours that does not belong to the job.
        was_killed: Whether its time was up.
    """

    def __init__(self, argv: Sequence[str], until: float, folder: int | None = None) -> None:
        """Start it.

        Args:
            argv: The path of the program, and its arguments.
            until: When it is killed (monotonic seconds).
            folder: A descriptor that it gets as number 3; None for none.

        Raises:
            OSError: It cannot be started.
        """
        self.was_killed = False
        self._until = until
        with contextlib.ExitStack() as opened:
            self._out, self._err = _open_memory(opened), _open_memory(opened)
            actions = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, self._out, 1),
                (os.POSIX_SPAWN_DUP2, self._err, 2),
                *([] if folder is None else [(os.POSIX_SPAWN_DUP2, folder, 3)]),
            ]
            # Without the signals that the launcher blocks
            self.pid = os.posix_spawn(argv[0], list(argv), {}, file_actions=actions, setsigmask=())
            opened.callback(os.kill, self.pid, signal.SIGKILL)  # if there is no pidfd
            self._pidfd = os.pidfd_open(self.pid)
            opened.pop_all()

    def is_over(self, now: float) -> bool:
        """Whether the run has ended; this kills it when its time is up."""
        try:
            if os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG) is not None:
                return True
        except ChildProcessError:  # the collector of orphans was faster
            return True
        if now > self._until and not self.was_killed:
            self.was_killed = True
            self._kill()
        # A run that survives SIGKILL is stuck in the kernel, at a process or a file system that hangs
        return now > self._until + 1

    def finish(self, limit_bytes: int = LIMIT_BYTES) -> tuple[str, str]:
        """Return about so much of its output and of its errors; to be called once, when it is over."""
        for fd in (self._out, self._err):
            os.lseek(fd, 0, os.SEEK_SET)
        out, err = (read_all(fd, limit_bytes).decode("utf-8", "replace") for fd in (self._out, self._err))
        self.close()
        return out, err

    def close(self) -> None:
        """Kill the run if it has not ended, and forget its output."""
        self._kill()
        for fd in (self._out, self._err, self._pidfd):
            os.close(fd)

    def _kill(self) -> None:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


def _open_memory(opened: contextlib.ExitStack) -> int:
    fd = os.memfd_create("tool")
    opened.callback(os.close, fd)
    return fd
