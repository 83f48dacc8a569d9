"""MPI's daemons on a node, which mpirun starts and which start the ranks: finds, watches and kills them."""

from __future__ import annotations

import contextlib
import os
import select
import signal

from launcher.machine.process import read_name
from launcher.process.descendants import find_parent
from launcher.process.signals import send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.process.loop import Loop

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
