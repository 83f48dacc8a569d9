"""Ask a process by py-spy, which reads its memory and needs no help from it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from launcher.core.redact import redact
from launcher.stacks.answer import Answer, parse_py_spy
from launcher.stacks.look import read_all

SPY_S = 10.0
"""How long one py-spy may take."""
WHY_LIMIT = 200


class Spy:
    """One run of py-spy on one process; ``--nonblocking``: it reads, and stops nobody.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, program: str, answer: Answer, now: float) -> None:
        self.answer = answer
        self._deadline = now + SPY_S
        self._killed = False
        argv = [program, "dump", "--nonblocking", "--json", "--pid", str(answer.pid)]
        with contextlib.ExitStack() as opened:
            self._out, self._err = _open_memory(opened), _open_memory(opened)
            actions = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, self._out, 1),
                (os.POSIX_SPAWN_DUP2, self._err, 2),
            ]
            # Nothing of the job's environment, and none of the signals that the launcher blocks.
            self.pid = os.posix_spawn(program, argv, {}, file_actions=actions, setsigmask=())
            opened.callback(os.kill, self.pid, signal.SIGKILL)  # if there is no pidfd
            self._pidfd = os.pidfd_open(self.pid)
            opened.pop_all()

    def is_over(self, now: float) -> bool:
        """Whether it has ended; it is ended when its time is up."""
        try:
            if os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG) is not None:
                return True
        except ChildProcessError:  # whoever collects orphans was quicker
            return True
        if now > self._deadline and not self._killed:
            self._killed = True
            self._kill()
        # What even SIGKILL does not end sits in the kernel, like the process that it looks at.
        return now > self._deadline + 1

    def finish(self) -> Answer:
        """Return what it has found out; to be called once, when it is over."""
        for fd in (self._out, self._err):
            os.lseek(fd, 0, os.SEEK_SET)
        out, err = (read_all(fd).decode("utf-8", "replace") for fd in (self._out, self._err))
        self.close()
        if self._killed:
            return self.answer.without_threads(f"py-spy did not end within {SPY_S:g} s")
        try:
            return self.answer.with_threads(parse_py_spy(out), "py-spy")
        except ValueError:
            return self.answer.without_threads(f"py-spy: {explain_refusal(err)}")

    def close(self) -> None:
        """End it, if it has not ended."""
        self._kill()
        for fd in (self._out, self._err, self._pidfd):
            os.close(fd)

    def _kill(self) -> None:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


def _open_memory(opened: contextlib.ExitStack) -> int:
    fd = os.memfd_create("py-spy")
    opened.callback(os.close, fd)
    return fd


def explain_refusal(error: str) -> str:
    """Return why py-spy failed, in one line, from what it wrote."""
    first = next((line.strip() for line in error.splitlines() if line.strip()), "it wrote nothing")
    if "permission denied" in error.lower() or "not permitted" in error.lower():
        return "it may not read other processes here (in a container: --cap-add SYS_PTRACE)"
    return redact(first)[:WHY_LIMIT]


def find_py_spy() -> str | None:
    """Return the path of py-spy: beside our Python, or on PATH; None if it is not installed."""
    folders = [os.path.dirname(sys.executable), *os.environ.get("PATH", "").split(os.pathsep)]
    for path in [os.path.join(folder, "py-spy") for folder in folders if folder]:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None
