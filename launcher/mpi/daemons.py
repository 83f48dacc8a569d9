"""What mpirun starts on a node to start the ranks there: daemons, watched as long as they live."""

from __future__ import annotations

import contextlib
import os
import select
import signal

from launcher.machine.process import read_name
from launcher.process.descendants import find_parent
from launcher.process.signals import send

NAMES = ("orted", "prted", "hydra_pmi_proxy")
"""Comm names (15 bytes)."""
ABORTED_WITH = ("orted", "orterun", "mpirun")
"""Those of Open MPI 4: a rank that has called MPI_Init aborts when what has started it ends."""


class Daemons:
    """The daemons of one job on this node; usually one."""

    def __init__(self, poll: select.poll) -> None:
        self._pids: dict[int, int] = {}
        self._poll = poll

    def __contains__(self, fd: int) -> bool:
        """Whether a descriptor that is ready means that one of them has ended."""
        return fd in self._pids

    def watch(self, pid: int | None) -> None:
        """Hear of the end of one, if it is any and not known yet."""
        if pid is None or pid in self._pids.values():
            return
        with contextlib.suppress(OSError):  # an old kernel: mpirun may notice by itself
            fd = os.pidfd_open(pid)
            self._pids[fd] = pid
            self._poll.register(fd, select.POLLIN)

    def forget(self, fd: int) -> int:
        """Return the pid of one that has ended."""
        self._poll.unregister(fd)
        os.close(fd)
        return self._pids.pop(fd)

    def living(self) -> list[int]:
        """Return the descriptors of those that have not ended."""
        return [fd for fd in self._pids if not select.select([fd], [], [], 0)[0]]

    def kill(self) -> None:
        """SIGKILL to all that live."""
        for fd in self.living():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)


def find_daemon(pid: int) -> int | None:
    """Return MPI's daemon above a rank's wrapper and its placeholder, if there is one."""
    return _find_starter(pid, NAMES)


def stop_daemon(pid: int) -> int | None:
    """Stop what has started a rank and is about to end, if the rank would abort with it; return its pid."""
    starter = _find_starter(pid, ABORTED_WITH)
    if starter is not None:
        send(starter, signal.SIGSTOP)
    return starter


def _find_starter(pid: int, names: tuple[str, ...]) -> int | None:
    parent = find_parent(find_parent(pid))
    return parent if read_name(parent) in names else None
