"""What may take long, asked in a fork of the launcher: its loop passes signals on, and waits for nothing.

A name server that is down takes ten seconds for each name, a dead network drive forever. A thread would share
locks with what the launcher forks beside it; a fork shares nothing. What it writes is the answer.
"""

from __future__ import annotations

import os
import time

from launcher.core.signal import signal
from launcher.process.kernel import die_with_parent, set_name
from launcher.process.watchdog import close_others

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from launcher.process.loop import Loop

    Work = Callable[[], Iterable[str]]
    Take = Callable[[Sequence[str]], None]

NAME = "launcher-ask"
LIMIT_BYTES = 1 << 14
REAP_S = 0.02
"""What processes may take to be gone that were killed."""


class Helper:
    """A process that works for the launcher, as the launcher sees it.

    Attributes:
        pid: A child of ours that is none of the job; None once it was waited for.
    """

    def __init__(self, pid: int, fd: int, loop: Loop, take: Take, on_end: Callable[[], None] | None) -> None:
        self.pid: int | None = pid
        self._fd: int | None = fd
        self._loop, self._take, self._on_end = loop, take, on_end
        self._text = b""
        loop.add(fd, self._hear)

    def finish(self) -> None:
        """Take what is there of the answer, and wait for no more."""
        if self._fd is not None:
            self._read()
            self._answer()

    def close(self) -> None:
        """End it; what it says is not heard."""
        self._hang_up()
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)  # a child that was not waited for: the pid is its own

    def note_end(self) -> None:
        """It was waited for: its pid is free for others."""
        self.pid = None
        if self._on_end is not None:
            self._on_end()

    def _hear(self) -> None:
        if self._read():
            self._answer()

    def _read(self) -> bool:
        """Read what is there; return whether that is all that there will be."""
        assert self._fd is not None  # noqa: S101 - it is heard
        try:
            data = os.read(self._fd, LIMIT_BYTES)
        except BlockingIOError:
            return False
        self._text = (self._text + data)[:LIMIT_BYTES]
        return not data or len(self._text) == LIMIT_BYTES

    def _answer(self) -> None:
        self._hang_up()
        self._take(self._text.decode("utf-8", "replace").splitlines())

    def _hang_up(self) -> None:
        if self._fd is not None:
            self._loop.remove(self._fd)
            os.close(self._fd)
            self._fd = None


class Helpers:
    """The helpers of a launcher."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._running: dict[int, Helper] = {}

    @property
    def pids(self) -> Iterable[int]:
        """Of those that were not waited for."""
        return self._running

    def ask(
        self,
        work: Work,
        take: Take,
        limit_s: float,
        *,
        name: str = NAME,
        nice: int = 0,
        then: Callable[[], None] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> Helper:
        """Have something done, without waiting for it.

        Args:
            work: Done there; returns lines, one after the other.
            take: Called once, in a later turn of the loop, with the lines that there are: not all where the
                work has failed or its time was up.
            limit_s: How long the work may take.
            name: What ps shows.
            nice: Its niceness, 19 for what is left of the CPUs; 0 for the launcher's.
            then: Done there after the work, for as long as it takes.
            on_end: Called when the process was waited for.

        Raises:
            OSError: No more processes or descriptors.
        """
        launcher = os.getpid()
        reading, writing = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(reading)
            os.close(writing)
            raise
        if pid == 0:
            try:
                if _settle(launcher, writing, name, nice):
                    _work(work, writing, limit_s)
                    if then is not None:
                        then()
            finally:
                os._exit(0)
        os.close(writing)
        os.set_blocking(reading, False)
        self._running[pid] = Helper(pid, reading, self._loop, take, on_end)
        return self._running[pid]

    def forget(self, pid: int) -> None:
        """A child of ours was waited for."""
        helper = self._running.pop(pid, None)
        if helper is not None:
            helper.note_end()

    def close(self) -> None:
        """End all, and collect them; one that the kernel holds is not waited for."""
        for helper in self._running.values():
            helper.close()
        until = time.monotonic() + REAP_S
        for pid in list(self._running):
            try:
                while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < until:
                    time.sleep(REAP_S / 20)  # nothing is left to be passed on
            except ChildProcessError:
                pass  # another program has taken its status
            del self._running[pid]


def _settle(launcher: int, writing: int, name: str, nice: int) -> bool:
    """Be that process: all signals are blocked already, and all we share with the job are the CPUs.

    No session of our own: where the kernel shares CPUs out by sessions (autogroup), we would have as much as
    the job.
    """
    die_with_parent(signal.SIGKILL)
    if os.getppid() != launcher:  # it was killed before the line above
        return False
    if nice:
        try:  # noqa: SIM105
            os.setpriority(os.PRIO_PROCESS, 0, nice)  # however the launcher itself was started
        except OSError:
            pass  # refused: it takes its share of the CPUs
    os.setpgid(0, 0)
    set_name(name)
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    close_others((0, 1, 2, writing))
    return True


def _work(work: Work, writing: int, limit_s: float) -> None:
    """Write down what the work returns; the kernel ends us when that takes too long."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))
    for line in work():
        data = f"{line}\n".encode("utf-8", "replace")
        while data:
            data = data[os.write(writing, data) :]
    signal.setitimer(signal.ITIMER_REAL, 0)
    os.close(writing)
