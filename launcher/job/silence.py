"""Notices nodes that have missed a heartbeat, and those that are heard again."""

from __future__ import annotations

from launcher.job.settings import QUIET_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

LATE_S = 1.0
"""A look that is later than this shows that this launcher stood still: messages are still unread."""


class Silence:
    """When each node was heard last. That is no part of the state: each node has a heartbeat every 2 s."""

    def __init__(self, quiet_s: float = QUIET_S) -> None:
        self._quiet_s = quiet_s
        self._heard: dict[int, float] = {}
        self._silent: set[int] = set()
        self._looked: float | None = None
        """When it has looked last; before that, when the first node was heard."""

    def hear(self, node: int, now: float) -> bool:
        """Note that a node was heard; return whether it was silent before."""
        self._heard[node] = now
        if self._looked is None:
            self._looked = now
        if node not in self._silent:
            return False
        self._silent.discard(node)
        return True

    def heard(self, node: int, now: float) -> float:
        """Return when a node was heard last; now if it is not watched."""
        return self._heard.get(node, now)

    def forget(self, node: int) -> None:
        """Forget a node whose connection has ended."""
        self._heard.pop(node, None)
        self._silent.discard(node)

    def look(self, now: float, every_s: float) -> Iterator[tuple[int, float]]:
        """Yield the nodes that have fallen silent since the last look, and when each was heard last.

        Args:
            now: The time.
            every_s: How often this is called.
        """
        late_s = 0.0 if self._looked is None else now - self._looked - every_s
        self._looked = now
        if late_s > LATE_S:
            self._heard = {node: heard + late_s for node, heard in self._heard.items()}
        for node, heard in self._heard.items():
            if now - heard > self._quiet_s and node not in self._silent:
                self._silent.add(node)
                yield node, heard
