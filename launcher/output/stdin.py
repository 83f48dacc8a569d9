"""Standard input of the ranks: one rank reads it, as with mpirun, or each gets a copy.

A terminal belongs to one rank, which stays in our process group. This group has the foreground, so Ctrl-C
and Ctrl-Z reach us and the rank. The kernel stops any other process that reads from the terminal (SIGTTIN)
or changes its modes (SIGTTOU).

Bytes that several processes read from one pipe go to any of them. A program that comes from standard input
(``python - < train.py``) must reach all of them.
"""

from __future__ import annotations

import os
import select

from launcher.core.errors import make_error
from launcher.core.signal import signal
from launcher.process.memory_files import create_file
from launcher.process.signal_file import ENDING, name_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from launcher.process.spawn import Child, Process

LIMIT_BYTES = 1 << 26
LOOK_MS = 100.0
ALL, NONE = "all", "none"


class StandardInput:
    """What each rank gets as its standard input.

    Args:
        readers: The rank that reads ours, ``"all"`` for a copy for each, ``"none"``; None leaves it to all.
        lends_terminal: Whether a process may have our terminal, if ours is one.

    Attributes:
        is_terminal: Whether ours is a terminal.
    """

    def __init__(self, readers: int | str | None, *, lends_terminal: bool) -> None:
        self.is_terminal = os.isatty(0)
        no_rank = self.is_terminal and (readers == ALL or not lends_terminal)
        self._readers = NONE if no_rank else readers
        self._copy: int | None = None
        self._modes = read_modes() if self.is_terminal else None

    def open(self, child: Child) -> int | None:
        """Return a descriptor for a process, which the caller closes; None keeps ours.

        Raises:
            LauncherError: What is to be copied is too large, or the kernel refuses files in memory.
        """
        if self._readers is None or (self._readers == child.rank and not child.called):
            return None
        if self._readers != ALL:
            return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        if self._copy is None:
            self._copy = copy_input()
        return open_copy(self._copy)

    def is_in_foreground(self) -> bool:
        """Whether our process group may read from the terminal."""
        try:
            return os.tcgetpgrp(0) == os.getpgrp()
        except OSError:
            return False

    def has_new_modes(self) -> bool:
        """Whether a process has changed the terminal's modes, e.g. for a password: it has the screen."""
        return self._modes is not None and read_modes() != self._modes

    def restore(self) -> None:
        """Set the terminal's modes as they were: a process that dies in getpass() leaves it without echo."""
        if self._modes is not None and self.has_new_modes() and self.is_in_foreground():
            import termios

            termios.tcsetattr(0, termios.TCSANOW, self._modes)


def read_modes() -> list[Any] | None:
    """Return the modes of the terminal at our standard input; None if it has gone."""
    import termios

    try:
        return termios.tcgetattr(0)
    except termios.error:
        return None


def describe_stopped(process: Process, number: int, *, is_terminal: bool) -> str:
    """Return the message about a process that the terminal has stopped, with the fix."""
    what = "reads from" if number == signal.SIGTTIN else "changes"
    text = f"warning: {process.name} is stopped: it {what} the terminal ({name_signal(number)})"
    if process.has_terminal:
        return f"{text} while the job is in the background; fix: bring it to the foreground (fg)"
    if is_terminal and not process.child.called:
        return f"{text}, which another rank has; fix: pass --stdin {process.child.rank}"
    return f"{text}, which it does not have; fix: start the launcher with a terminal as its standard input"


def open_copy(copy: int) -> int:
    """Return another descriptor of a copy, with an offset of its own."""
    return os.open(f"/proc/self/fd/{copy}", os.O_RDONLY | os.O_CLOEXEC)


def copy_input() -> int:
    """Read standard input to its end; return a file with it, which is empty if a signal asks for the end.

    Half a program must not run. No process can change the file: all of them read it.
    """
    import contextlib
    import fcntl

    copy = create_file("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
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
            raise make_error("stdin-too-large", limit=LIMIT_BYTES >> 20)
        view = memoryview(data)
        while view:
            view = view[os.write(copy, view) :]
    with contextlib.suppress(OSError):  # a kernel or sandbox without seals
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return copy
