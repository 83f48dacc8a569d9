"""Runs a pure `step` by the clock: that of `launcher.job.controller`, or of `launcher.job.node`."""

from __future__ import annotations

import time
from collections import deque

from launcher.job.events import Tick

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Generic, Protocol, TypeVar

    class Timed(Protocol):
        """A state; ``due``: when something follows from time alone."""

        @property
        def due(self) -> float | None: ...

    S = TypeVar("S", bound=Timed)
else:
    S, Generic = None, {None: object}  # `typing` takes long to load


class StateMachine(Generic[S]):
    """A state machine, and the queue of events in front of it; a timer of the launcher's loop.

    Attributes:
        state: The state after the last event.
    """

    def __init__(
        self,
        step: Callable[[S, Any, float], tuple[S, tuple[Any, ...]]],
        state: S,
        do: Callable[[Any], None],
        rescue: Callable[[Any, Exception], object] = lambda event, error: None,
    ) -> None:
        """Begin without an event.

        Args:
            step: Returns the state after an event, and what to do.
            state: The state at first.
            do: Does one of these things.
            rescue: Returns an event that takes the place of one that could not be handled; None for none.
        """
        self.state = state
        self._step, self._do, self._rescue = step, do, rescue
        self._queue: deque[object] = deque()
        self._is_busy = False

    def feed(self, event: object) -> None:
        """Handle an event and all that come with it; of several errors raise the first one, at the end."""
        self._queue.append(event)
        if self._is_busy:
            return
        self._is_busy, failed = True, None
        while self._queue:
            one = self._queue.popleft()
            try:
                self.state, found = self._step(self.state, one, time.monotonic())
                for command in found:
                    self._do(command)
            except Exception as error:
                failed = failed or error
                other = self._rescue(one, error)
                if other is not None:
                    self._queue.append(other)
        self._is_busy = False
        if failed is not None:
            raise failed

    @property
    def due(self) -> float | None:
        """When something follows from time alone."""
        return self.state.due

    def fire(self, now: float) -> None:
        """Let time pass."""
        if self.state.due is not None and now >= self.state.due:
            self.feed(Tick())
