"""Handles the events of a job one after the other, also those that come from handling another one."""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class EventQueue:
    """The queue of events in front of a state machine."""

    def __init__(
        self, take: Callable[[Any], None], rescue: Callable[[Any, Exception], Any] = lambda event, error: None
    ) -> None:
        """Create an empty queue.

        Args:
            take: Handles an event, and does what follows.
            rescue: Returns an event that takes the place of one that could not be handled; None for none.
        """
        self._take, self._rescue = take, rescue
        self._queue: deque[Any] = deque()
        self._is_busy = False

    def __call__(self, event: object) -> None:
        """Handle an event and all that come with it; of several errors raise the first one, at the end."""
        self._queue.append(event)
        if self._is_busy:
            return
        self._is_busy, failed = True, None
        while self._queue:
            one = self._queue.popleft()
            try:
                self._take(one)
            except Exception as error:
                failed = failed or error
                other = self._rescue(one, error)
                if other is not None:
                    self._queue.append(other)
        self._is_busy = False
        if failed is not None:
            raise failed
