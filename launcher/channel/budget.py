"""Token bucket: how often something may happen that another process causes."""

from __future__ import annotations

import time


class Bucket:
    """Allows ``burst`` events at once and ``per_s`` a second; in a flood, none until it has calmed down."""

    __slots__ = ("_burst", "_left", "_per_s", "_seen")

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst = self._left = burst
        self._per_s, self._seen = per_s, time.monotonic()

    @property
    def is_empty(self) -> bool:
        """Whether another event is one too many now."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._seen) * self._per_s)
        self._seen = now
        return self._left < 1

    def take(self) -> bool:
        """Count an event; return whether it was allowed. Others make a debt, of ``burst`` at most."""
        is_allowed = not self.is_empty
        self._left = max(self._left - 1, -self._burst)
        return is_allowed
