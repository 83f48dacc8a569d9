"""Wait for descriptors and for points in time, in one place, without ever polling.

The order of events is the kernel's: epoll hands out descriptors in the order in which they became
ready. With a pidfd for each process that is the order in which the processes ended, even where
several did so while we were busy.
"""

from __future__ import annotations

import select
import sys
import time
from errno import EBADF, ENOENT, EPERM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Timer(Protocol):
        """Something that happens at a time (monotonic seconds), None for never."""

        @property
        def due(self) -> float | None:
            """When."""

        def fire(self, now: float) -> None:
            """It is time."""


BATCH = 64
FAULTS_SAID = 3
"""How many of our own faults are written out: one that repeats must not fill the log."""


class Later:
    """Something that is made at a time: what must be imported for it costs nothing before."""

    def __init__(self, due: float, make: Callable[[], None]) -> None:
        self.due: float | None = due
        self._make = make

    def fire(self, now: float) -> None:
        """Make it, once."""
        self.due = None
        self._make()


class Loop:
    """Descriptors and timers, and what is to be called for each."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._say = say
        self._faults = 0
        self.timers: list[Timer] = []

    def add(self, fd: int, handler: Callable[[], None], *, writable: bool = False) -> None:
        """Call ``handler`` whenever the descriptor can be read (or written).

        Raises:
            PermissionError: The descriptor is a regular file, which is always ready.
        """
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLOUT if writable else select.EPOLLIN)

    def want_writable(self, fd: int, *, wanted: bool) -> None:
        """Call the handler of a descriptor that is read also whenever it can be written, or no more."""
        self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def remove(self, fd: int) -> None:
        """Forget a descriptor, open or closed."""
        if self._handlers.pop(fd, None) is not None:
            try:
                self._epoll.unregister(fd)
            except OSError as error:
                if error.errno not in (EBADF, ENOENT, EPERM):
                    raise

    def watches(self, fd: int) -> bool:
        """Whether the descriptor was added."""
        return fd in self._handlers

    def turn(self, *, wait: bool = True) -> None:
        """Wait for the next event or timer, or do not wait, and handle what there is."""
        dues = [timer.due for timer in self.timers if timer.due is not None]
        # epoll counts in whole milliseconds and may wake a little early: then the next turn is short.
        timeout = max(0.0, min(dues) - time.monotonic()) if dues else None
        timeout = timeout if wait else 0.0
        for fd, _ in self._epoll.poll(timeout, BATCH):
            handler = self._handlers.get(fd)
            if handler is not None:  # an earlier event of this batch may have removed it
                self.guard(handler)
        now = time.monotonic()
        for timer in list(self.timers):
            if timer.due is not None and timer.due <= now:
                self.guard(lambda timer=timer: timer.fire(now))  # type: ignore[misc]

    def turn_until(self, is_true: Callable[[], bool], wait_s: float) -> None:
        """Turn until something is true, for so long at most."""
        limit = Later(time.monotonic() + wait_s, lambda: None)
        self.timers.append(limit)
        while not is_true() and limit.due is not None:
            self.turn()
        self.timers.remove(limit)

    def guard(self, action: Callable[[], None]) -> None:
        """Do something; a fault of ours is said, and ends nothing."""
        try:
            action()
        except Exception:
            self._faults += 1
            if self._faults <= FAULTS_SAID:
                kind, error, _ = sys.exc_info()
                self._say(
                    f"a fault of the launcher, the job goes on: {getattr(kind, '__name__', kind)}: {error}"
                )

    def close(self) -> None:
        """Give the epoll descriptor back."""
        self._epoll.close()
