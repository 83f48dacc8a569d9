"""Standard input of the ranks: one rank reads it, as with mpirun, or each gets a copy.

Bytes that several processes read from one pipe go to any of them. A program that comes from standard input
(``python - < train.py``) must reach all of them.
"""

from __future__ import annotations

import os
import select

from launcher.core.errors import NotReady, Problem
from launcher.core.signal import signal
from launcher.process.signals import ENDING

LIMIT_BYTES = 1 << 26
LOOK_MS = 100.0
ALL, NONE = "all", "none"


class StandardInput:
    """What each rank gets as its standard input.

    Args:
        readers: The rank that reads ours, ``"all"`` for a copy for each, ``"none"``; None leaves it to all.
        is_terminal: Whether ours is a terminal that the ranks must not read: they are not in its foreground.
    """

    def __init__(self, readers: int | str | None, *, is_terminal: bool) -> None:
        self._readers = NONE if is_terminal else readers
        self._copy: int | None = None

    def open(self, rank: int) -> int | None:
        """Return a descriptor for a process, which the caller closes; None keeps ours.

        Raises:
            NotReady: What is to be copied is too large.
        """
        if self._readers is None or self._readers == rank:
            return None
        if self._readers != ALL:
            return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        if self._copy is None:
            self._copy = _copy()
        return os.open(f"/proc/self/fd/{self._copy}", os.O_RDONLY | os.O_CLOEXEC)  # an offset of its own


def _copy() -> int:
    """Read standard input to its end; return a file with it, which is empty if a signal asks for the end.

    Half a program must not run. No process can change the file: all of them read it.
    """
    import contextlib
    import fcntl

    copy = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    size = 0
    while True:
        if signal.sigpending() & set(ENDING):
            os.ftruncate(copy, 0)
            break
        if not poll.poll(LOOK_MS):
            continue
        data = os.read(0, 1 << 20)
        if not data:
            break
        size += len(data)
        if size > LIMIT_BYTES:
            raise NotReady(_too_large())
        view = memoryview(data)
        while view:
            view = view[os.write(copy, view) :]
    with contextlib.suppress(OSError):  # a kernel or sandbox without seals
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return copy


def _too_large() -> Problem:
    return Problem(
        "stdin-too-large",
        f"standard input is larger than {LIMIT_BYTES >> 20} MiB, and each process gets a copy",
        "standard input",
        "put it into a file that the processes open, or pass --stdin 0: only rank 0 reads it",
    )
