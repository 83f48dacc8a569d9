"""Event loop: waits for descriptors and timers in one place, without polling.

Events come in the kernel's order: epoll returns descriptors in the order in which they became ready. With a
pidfd for each process, this is the order in which the processes ended, even if several ended while we were
busy.
"""

from __future__ import annotations

import os
import select
import sys
import time
from errno import EBADF, ENOENT, EPERM

from launcher.core.errors import attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol, TypeVar

    from launcher.core.log import Say

    T = TypeVar("T")

    class Timer(Protocol):
        """An action at a time, in monotonic seconds; None for never."""

        @property
        def due(self) -> float | None:
            """Time of the action."""

        def fire(self, now: float) -> None:
            """Act, because the time has come."""


BATCH = 64
FAULT = "internal launcher error"
FAULTS_SAID = 3
"""Number of our own faults that are printed one by one: a repeated fault must not fill the log."""
SAY_AGAIN_S = 60.0
"""Seconds between later messages, which give the number of faults so far."""
REST_S, REST_LIMIT_S = 0.05, 5.0
"""Seconds that a failing handler is suspended: at first, doubled with each failure, and at most.

Without this pause it would be called again at once, forever.
"""


class Later:
    """A one-time action; modules for it are imported only when it is due."""

    def __init__(self, due: float, make: Callable[[], None]) -> None:
        self.due: float | None = due
        self._make = make

    def fire(self, now: float) -> None:
        """Act, once."""
        self.due = None
        self._make()

    def close(self) -> None:
        """Stop acting."""
        self.due = None


class Every:
    """An action that repeats, the first time after one interval."""

    def __init__(self, interval_s: float, act: Callable[[], None]) -> None:
        self.due: float | None = time.monotonic() + interval_s
        self._interval_s, self._act = interval_s, act

    def fire(self, now: float) -> None:
        """Act, and note when to act again."""
        self.due = now + self._interval_s
        self._act()


class Loop:
    """Descriptors and timers, with a handler for each.

    Attributes:
        timers: Actions at a time; may be added and removed at any moment.
    """

    def __init__(self, say: Say) -> None:
        self._epoll = select.epoll()
        self._epoll.poll(0)  # if the kernel refuses this call, fail before there is anything to wait for
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
        """Set whether the handler of a descriptor that is read is also called when it can be written."""
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
        """Handle the events and due timers; unless ``wait`` is False, first wait for the next one."""
        dues = [due for due in map(self._due_of, self.timers) if due is not None]
        if self._resting:
            dues.append(min(self._resting.values()))
        # epoll counts in whole milliseconds and may wake slightly early: then the next turn is short.
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
        """Turn until a condition holds, for at most this many seconds."""
        limit = Later(time.monotonic() + wait_s, lambda: None)
        self.timers.append(limit)
        while not is_true() and limit.due is not None:
            self.turn()
        self.timers.remove(limit)

    def guard(self, action: Callable[[], None]) -> bool:
        """Run an action; print our own fault and never raise it. Return whether there was none."""
        try:
            action()
        except Exception:
            kind, error, _ = sys.exc_info()
            name = getattr(kind, "__name__", str(kind))
            try:
                self._tell(f"{name}: {error}")
            except Exception:  # what prints it may be what is at fault
                attempt(os.write, 2, f"launcher: {FAULT}, the job continues: {name}\n".encode())
            return False
        return True

    def guarded(self, action: Callable[[], T], default: T) -> T:
        """Return the result of an action; the default after a fault of our own, which is printed."""
        found = [default]
        self.guard(lambda: found.append(action()))
        return found[-1]

    def close(self) -> None:
        """Close the epoll descriptor."""
        self._epoll.close()

    # --- faults of our own

    def _call(self, one: object, action: Callable[[], None]) -> None:
        """Call a handler or a timer; one that fails is suspended for a while."""
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
        """Resume handlers and timers whose suspension is over."""
        for one in [one for one, until in self._resting.items() if until <= now]:
            del self._resting[one]
            if isinstance(one, int) and one in self._handlers:
                self._epoll.register(one, self._events[one])

    def _due_of(self, timer: Timer) -> float | None:
        """Return when a timer is due; an error while reading that counts as a failure of the timer."""
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
        """Print a fault: the first ones in full, later ones at intervals with their number."""
        self._faults += 1
        now = time.monotonic()
        is_early = self._faults <= FAULTS_SAID
        if is_early or now >= self._said_at + SAY_AGAIN_S:
            self._said_at = now
            many = FAULT if is_early else f"{self._faults} internal launcher errors so far"
            self._say(f"{many}, the job continues: {what}", "internal-error")
