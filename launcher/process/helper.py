"""Runs slow queries in a fork of the launcher, so that its loop forwards signals and never blocks.

If a name server is down, each name takes ten seconds; a network drive that is down blocks forever. A thread
would share locks with the processes that the launcher forks; a fork shares nothing. The fork writes its
answer to a pipe.
"""

from __future__ import annotations

import os
import time

from launcher.core.errors import attempt
from launcher.core.signal import signal
from launcher.machine.process import find_descendants
from launcher.process.kernel import collect, die_with_parent, fork_apart, set_name
from launcher.process.signal_file import send
from launcher.process.watchdog import close_others

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from launcher.process.loop import Loop

    Work = Callable[[], Iterable[str]]
    Take = Callable[[Sequence[str]], None]
    TakeLine = Callable[[str | None], None]

NAME = "launcher-ask"
LIMIT_BYTES = 1 << 14
REAP_S = 0.02
"""Seconds that killed processes may take to end."""


class Helper:
    """The launcher's view of a process that works for it.

    Attributes:
        pid: A child of ours that does not belong to the job; None once it was reaped.
    """

    def __init__(
        self, pid: int, fd: int, loop: Loop, take: Take, on_end: Callable[[], None] | None, limit_bytes: int
    ) -> None:
        self.pid: int | None = pid
        self._limit_bytes = limit_bytes
        self._fd: int | None = fd
        self._loop, self._take, self._on_end = loop, take, on_end
        self._text = b""
        loop.add(fd, self._hear)

    def finish(self) -> None:
        """Take the answer so far, and stop waiting."""
        if self._fd is not None:
            self._read()
            self._answer()

    def close(self) -> None:
        """Kill the process, and discard its answer."""
        self._hang_up()
        if self.pid is not None:
            started = find_descendants([self.pid])  # also in groups of their own
            os.kill(self.pid, signal.SIGKILL)  # a child that was not reaped: the pid is still its own
            for one in (-self.pid, *started):  # it leads a group once it has settled
                send(one, signal.SIGKILL)

    def note_end(self) -> None:
        """Note that the process was reaped: its pid can be reused."""
        self.pid = None
        if self._on_end is not None:
            self._on_end()

    def _hear(self) -> None:
        if self._read():
            self._answer()

    def _read(self) -> bool:
        """Read what is available; return whether the answer is complete."""
        assert self._fd is not None  # noqa: S101 - the loop watches it
        try:
            data = os.read(self._fd, self._limit_bytes)
        except BlockingIOError:
            return False
        self._text = (self._text + data)[: self._limit_bytes]
        return not data or len(self._text) == self._limit_bytes

    def _answer(self) -> None:
        self._hang_up()
        self._take(self._text.decode("utf-8", "replace").splitlines())

    def _hang_up(self) -> None:
        if self._fd is not None:
            self._loop.remove(self._fd)
            os.close(self._fd)
            self._fd = None


class Served:
    """A process that answers while it runs; its pid is None once reaped."""

    def __init__(self, pid: int) -> None:
        self.pid: int | None = pid

    def close(self) -> None:
        """Kill the process."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)  # a child that was not reaped: the pid is still its own

    def note_end(self) -> None:
        """Note that the process was reaped: its pid can be reused."""
        self.pid = None


class HelperLines:
    """The lines that a process of ours writes while it runs; the loop only reads a pipe."""

    def __init__(self, server: Served, fd: int, loop: Loop, take: TakeLine) -> None:
        self._server = server
        self._fd: int | None = fd
        self._loop, self._take, self._rest = loop, take, b""
        loop.add(fd, self.read)

    def read(self) -> None:
        """Pass on the lines that have come, and None once at the end of the process."""
        while self._fd is not None:
            try:
                data = os.read(self._fd, LIMIT_BYTES)
            except BlockingIOError:
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                if self._fd is not None:
                    self._take(line.decode("utf-8", "replace"))
            if not data and self._fd is not None:
                self.close()
                self._take(None)

    def close(self) -> None:
        """Stop reading, and kill the process."""
        if self._fd is not None:
            self._loop.remove(self._fd)
            os.close(self._fd)
            self._fd = None
            self._server.close()


class Helpers:
    """The helpers of a launcher."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._running: dict[int, Helper | Served] = {}

    @property
    def pids(self) -> Iterable[int]:
        """The pids of the helpers that were not reaped."""
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
        limit_bytes: int = LIMIT_BYTES,
    ) -> Helper:
        """Run a function in a fork, without waiting for it.

        Args:
            work: Runs in the fork; returns the lines of the answer one by one.
            take: Called once, in a later turn of the loop, with the lines so far. Lines are missing if the
                work fails or its time is up.
            limit_s: Seconds that the work may take.
            name: The name that ps shows.
            nice: Niceness: 19 for CPU time that is left over; 0 keeps the launcher's own.
            then: Runs in the fork after the work, without a time limit.
            on_end: Called when the fork was reaped.
            limit_bytes: Size of an answer; a longer one is cut.

        Raises:
            OSError: No more processes or descriptors.
        """
        reading, writing = os.pipe()

        def run() -> None:
            _work(work, writing, limit_s)
            if then is not None:
                then()

        pid = self._fork(run, reading, writing, name, nice)
        self._running[pid] = helper = Helper(pid, reading, self._loop, take, on_end, limit_bytes)
        return helper

    def serve(self, work: Callable[[], None], ours: int, theirs: int, *, name: str, nice: int = 0) -> Served:
        """Run a function in a fork that exchanges messages with us while it runs.

        Args:
            work: Runs in the fork; of the descriptors above 2 it has ``theirs`` only.
            ours: Our end of a connection; non-blocking from now on, and the caller's to close.
            theirs: The end of the fork, which is closed here. Both are closed if there is no fork.
            name: The name that ps shows.
            nice: Niceness, as for `ask`.

        Raises:
            OSError: No more processes.
        """
        pid = self._fork(work, ours, theirs, name, nice)
        self._running[pid] = server = Served(pid)
        return server

    def follow(self, work: Work, take: TakeLine, *, name: str, nice: int = 0) -> HelperLines:
        """Run a function in a fork that reports lines while it runs.

        Args:
            work: Runs in the fork; yields the lines.
            take: Called with each line, and with None if the process ends.
            name: The name that ps shows.
            nice: Niceness, as for `ask`.

        Raises:
            OSError: No more processes or descriptors.
        """
        reading, writing = os.pipe()

        def run() -> None:
            for line in work():
                os.write(writing, f"{line}\n".encode("utf-8", "replace"))

        server = self.serve(run, reading, writing, name=name, nice=nice)
        return HelperLines(server, reading, self._loop, take)

    def adopt(self, pid: int) -> Served:
        """Adopt one of our children, started elsewhere, until it is closed."""
        self._running[pid] = server = Served(pid)
        return server

    def _fork(self, run: Callable[[], None], ours: int, theirs: int, name: str, nice: int) -> int:
        """Run a function in a fork that was set up for it: see `fork_apart`."""
        launcher = os.getpid()

        def settle_and_run() -> None:
            if _settle(launcher, theirs, name, nice):
                run()

        return fork_apart(settle_and_run, ours, theirs)

    def forget(self, pid: int) -> None:
        """Note that one of our children was reaped."""
        helper = self._running.pop(pid, None)
        if helper is not None:
            helper.note_end()

    def close(self) -> None:
        """Kill and reap all helpers; one that the kernel holds is not waited for."""
        for helper in self._running.values():
            helper.close()
        until = time.monotonic() + REAP_S
        for pid in list(self._running):
            try:
                while collect(pid) is None and time.monotonic() < until:
                    time.sleep(REAP_S / 20)  # no output or signal is left to forward
            except ChildProcessError:
                pass  # another program has taken its status
            del self._running[pid]


def _settle(launcher: int, writing: int, name: str, nice: int) -> bool:
    """Set up the fork: its signals are blocked already, and it shares only the CPUs with the job.

    It stays in our session: if the kernel divides the CPUs by session (autogroup), a session of its own would
    get as much CPU time as the job.
    """
    die_with_parent(signal.SIGKILL)
    if 0 < os.getppid() != launcher:  # the launcher was killed before the line above
        return False
    if nice:
        # Whatever the launcher's own niceness; if refused, it gets a normal share of the CPUs
        attempt(os.setpriority, os.PRIO_PROCESS, 0, nice)
    os.setpgid(0, 0)
    set_name(name)
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    close_others((0, 1, 2, writing))
    return True


def _work(work: Work, writing: int, limit_s: float) -> None:
    """Write the lines that the work returns; the kernel kills us (SIGALRM) if that takes too long."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))
    for line in work():
        data = f"{line}\n".encode("utf-8", "replace")
        while data:
            data = data[os.write(writing, data) :]
    signal.setitimer(signal.ITIMER_REAL, 0)
    os.close(writing)
