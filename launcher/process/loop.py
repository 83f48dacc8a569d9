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
"""How many of our own faults are written out at first: one that repeats must not fill the log ..."""
SAY_AGAIN_S = 60.0
"""... and so often how many there were since."""
REST_S, REST_LIMIT_S = 0.05, 5.0
"""A handler that fails is not called for so long, twice as long after each further time: it would be called
again at once, for ever."""


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
    """Descriptors and timers, and what is to be called for each.

    Attributes:
        timers: What happens at a time; each may come and go.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._epoll = select.epoll()
        self._epoll.poll(0)  # where the kernel refuses it, it does so before there is anything to wait for
        self._handlers: dict[int, Callable[[], None]] = {}
        self._events: dict[int, int] = {}
        self._say = say
        self._faults, self._said_at = 0, 0.0
        self._rests: dict[object, float] = {}
        self._resting: dict[object, float] = {}
        self.timers: list[Timer] = []

    def add(self, fd: int, handler: Callable[[], None], *, writable: bool = False) -> None:
        """Call ``handler`` whenever the descriptor can be read (or written).

        Raises:
            PermissionError: The descriptor is a regular file, which is always ready.
        """
        self._handlers[fd] = handler
        self._events[fd] = select.EPOLLOUT if writable else select.EPOLLIN
        self._epoll.register(fd, self._events[fd])

    def want_writable(self, fd: int, *, wanted: bool) -> None:
        """Call the handler of a descriptor that is read also whenever it can be written, or no more."""
        self._events[fd] = select.EPOLLIN | (select.EPOLLOUT if wanted else 0)
        if fd not in self._resting:
            self._epoll.modify(fd, self._events[fd])

    def remove(self, fd: int) -> None:
        """Forget a descriptor, open or closed."""
        if self._handlers.pop(fd, None) is not None:
            self._rests.pop(fd, None)
            if self._resting.pop(fd, None) is None:
                self._unregister(fd)

    def watches(self, fd: int) -> bool:
        """Whether the descriptor was added."""
        return fd in self._handlers

    def turn(self, *, wait: bool = True) -> None:
        """Wait for the next event or timer, or do not wait, and handle what there is."""
        dues = [due for due in map(self._due_of, self.timers) if due is not None]
        if self._resting:
            dues.append(min(self._resting.values()))
        # epoll counts in whole milliseconds and may wake a little early: then the next turn is short.
        timeout = max(0.0, min(dues) - time.monotonic()) if dues else None
        for fd, _ in self._epoll.poll(timeout if wait else 0.0, BATCH):
            handler = self._handlers.get(fd)
            if handler is not None:  # an earlier event of this batch may have removed it
                self._call(fd, handler)
        now = time.monotonic()
        if self._resting:
            self._wake(now)
        for timer in list(self.timers):
            due = self._due_of(timer)
            if due is not None and due <= now:
                self._call(timer, lambda timer=timer: timer.fire(now))  # type: ignore[misc]

    def turn_until(self, is_true: Callable[[], bool], wait_s: float) -> None:
        """Turn until something is true, for so long at most."""
        limit = Later(time.monotonic() + wait_s, lambda: None)
        self.timers.append(limit)
        while not is_true() and limit.due is not None:
            self.turn()
        self.timers.remove(limit)

    def guard(self, action: Callable[[], None]) -> bool:
        """Do something; a fault of ours is said, and ends nothing. Return whether there was none."""
        try:
            action()
        except Exception:
            kind, error, _ = sys.exc_info()
            self._tell(f"{getattr(kind, '__name__', kind)}: {error}")
            return False
        return True

    def close(self) -> None:
        """Give the epoll descriptor back."""
        self._epoll.close()

    # --- faults of our own

    def _call(self, one: object, action: Callable[[], None]) -> None:
        """Call a handler or a timer; one that fails rests."""
        if self.guard(action):
            if self._rests:
                self._rests.pop(one, None)
            return
        rest_s = min(2 * self._rests.get(one, REST_S / 2), REST_LIMIT_S)
        if isinstance(one, int):
            if one not in self._handlers:
                return
            self._unregister(one)
        self._rests[one] = rest_s
        self._resting[one] = time.monotonic() + rest_s

    def _wake(self, now: float) -> None:
        """Listen again to what has rested long enough."""
        for one in [one for one, until in self._resting.items() if until <= now]:
            del self._resting[one]
            if isinstance(one, int) and one in self._handlers:
                self._epoll.register(one, self._events[one])

    def _due_of(self, timer: Timer) -> float | None:
        """Return when a timer is due; a fault in telling that is one of the timer."""
        if timer in self._resting:
            return None
        found: list[float | None] = []
        self._call(timer, lambda: found.append(timer.due))
        return found[0] if found else None

    def _unregister(self, fd: int) -> None:
        try:
            self._epoll.unregister(fd)
        except OSError as error:
            if error.errno not in (EBADF, ENOENT, EPERM):
                raise

    def _tell(self, what: str) -> None:
        """Say a fault: the first ones, then how many there were."""
        self._faults += 1
        now = time.monotonic()
        if self._faults <= FAULTS_SAID:
            self._say(f"a fault of the launcher, the job goes on: {what}")
        elif now >= self._said_at + SAY_AGAIN_S:
            self._say(f"{self._faults} faults of the launcher so far, the job goes on: {what}")
        else:
            return
        self._said_at = now
