"""MPI's daemons on a node, and what an attempt has left there: waits a moment for its end, then kills it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from launcher.engines.mpirun import WRAPPER
from launcher.machine.process import PROC, find_parent, list_pids, read_file, read_name
from launcher.mpi.folder import has_launcher, remove_folder
from launcher.process.signal_file import send
from launcher.process.watchdog import find_marked, is_watchdog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.process.loop import Loop

LINGER_S = 1.0
"""Seconds for processes that end by themselves when the job does."""
KILL_WAIT_S = 2.0
"""Seconds for watchdogs: each cleans up for its own launcher, then ends by itself."""
LOOK_S, LOOK_AGAIN_S, LOOK_FOR_RANKS_S = 0.02, 0.01, 0.1
COMMAND_BYTES = 1 << 16
NAMES = ("orted", "prted", "hydra_pmi_proxy")
"""Names of the daemons in /proc/PID/comm, which keeps 15 bytes."""
ABORTED_WITH = ("orted", "orterun", "mpirun")
"""Open MPI 4's names: a rank that has called MPI_Init aborts when the process that started it ends."""


class Daemons:
    """The daemons of one job on this node; usually one."""

    def __init__(self, loop: Loop | None = None, lose: Callable[[int], None] = lambda pid: None) -> None:
        """Create it without a daemon; with a loop, ``lose`` is called with the PID of one that has ended."""
        self._pids: dict[int, int] = {}
        self._loop, self._lose = loop, lose

    def add(self, pid: int | None) -> None:
        """Add a daemon; do nothing for None or one that is known."""
        if pid is None or pid in self._pids.values():
            return
        with contextlib.suppress(OSError):  # an old kernel: mpirun may notice by itself
            fd = os.pidfd_open(pid)
            self._pids[fd] = pid
            if self._loop is not None:
                self._loop.add(fd, lambda: self._on_end(fd))

    def _on_end(self, fd: int) -> None:
        if self._loop is not None:
            self._loop.remove(fd)
        os.close(fd)
        self._lose(self._pids.pop(fd))

    def living(self) -> list[int]:
        """Return the pidfds of the daemons that have not ended."""
        return [fd for fd in self._pids if not select.select([fd], [], [], 0)[0]]

    def kill(self) -> None:
        """Send SIGKILL to the daemons that have not ended."""
        for fd in self.living():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)


def find_daemon(pid: int) -> int | None:
    """Return the PID of the MPI daemon that has started a rank's wrapper; None if there is none."""
    return _find_starter(pid, NAMES)


def stop_daemon(pid: int) -> int | None:
    """Stop the process that has started a rank, if the rank would abort at its end; return its PID.

    Args:
        pid: PID of the rank's wrapper.

    Returns:
        None if the rank would not abort, so that nothing was stopped.
    """
    starter = _find_starter(pid, ABORTED_WITH)
    if starter is not None:
        send(starter, signal.SIGSTOP)
    return starter


def _find_starter(pid: int, names: tuple[str, ...]) -> int | None:
    parent = find_parent(find_parent(pid))
    return parent if read_name(parent) in names else None


class Sweep:
    """Ends MPI's daemons, and all processes with the mark of a job; a timer of the launcher's loop.

    Attributes:
        due: When to look again; None once nothing is left, or not even SIGKILL has helped.
    """

    def __init__(
        self, job: str, daemons: Daemons, linger_s: float, done: Callable[[], None] = lambda: None
    ) -> None:
        """Begin.

        Args:
            job: Name of the job.
            daemons: The daemons of this node.
            linger_s: Seconds that all may take to end by themselves.
            done: Called at the end.
        """
        self.due: float | None = time.monotonic()
        self._job, self._daemons, self._done = job.encode(), daemons, done
        self._kill_at = self.due + linger_s

    def run(self) -> None:
        """Wait until it is over."""
        while self.due is not None:
            self.fire(time.monotonic())
            _wait(0.0 if self.due is None else self.due - time.monotonic())

    def fire(self, now: float) -> None:
        """Look at what is left; kill it if it had its time: watchdogs get `KILL_WAIT_S` more."""
        found = find_marked(self._job)
        for pid in found:
            self._daemons.add(find_daemon(pid))  # that of a launcher before us
        is_late = now >= self._kill_at + KILL_WAIT_S
        if is_late or not (found or self._daemons.living()):
            self.due = None
        elif now < self._kill_at:
            self.due = now + LOOK_S
            return
        else:
            self.due = now + LOOK_AGAIN_S
        self._daemons.kill()
        for pid in found:
            if is_late or not is_watchdog(pid):
                send(pid, signal.SIGKILL)
        if self.due is None:
            self._done()


def end_job(job: str, grace_s: float) -> None:
    """End a job on a node whose launcher was killed; for the launcher's watchdog.

    The wrappers notice that the launcher is gone, and their ranks have the grace. What is left is killed. A
    new launcher in the place of the killed one does that itself.
    """
    until, daemons = time.monotonic() + grace_s, Daemons()
    while ranks := find_wrappers(job):
        for pid in ranks:
            daemons.add(find_daemon(pid))
        if time.monotonic() >= until or has_launcher(job):
            break
        _wait(LOOK_FOR_RANKS_S)
    if not has_launcher(job):
        Sweep(job, daemons, 0.0).run()
        if not has_launcher(job):
            remove_folder(job)


def find_wrappers(job: str) -> list[int]:
    """Return the wrappers of a job's ranks on this node, with their placeholders."""
    words = [WRAPPER.encode(), job.encode()]
    return [
        pid
        for pid in list_pids()
        if words == read_file(f"{PROC}/{pid}/cmdline", COMMAND_BYTES).split(b"\0", 4)[2:4]
    ]


def _wait(seconds: float) -> None:
    select.select([], [], [], max(0.0, seconds))
