"""Links between machines and node 0, with connections as TCP has them: what is sent while a link is down
arrives when it is up again, in order, unless the connection has been closed by then."""

from __future__ import annotations

import random
from collections.abc import Callable

UP, DOWN = 0, 1
"""Directions: from a node to node 0, and back."""
REPEAT_S = (0.2, 8.0)
"""How long after a link is up again the kernel repeats what was lost."""


class Link:
    """The way between a machine and that of node 0.

    Attributes:
        delay_s: Time that a packet takes.
        jitter_s: How much longer some take.
        drop: Share of packets that are lost and sent again.
        is_cut: Whether packets arrive, for each direction.
    """

    def __init__(self, delay_s: float, jitter_s: float, drop: float) -> None:
        self.delay_s, self.jitter_s, self.drop = delay_s, jitter_s, drop
        self.is_cut = [False, False]
        self.waiting: list[list[Callable[[], None]]] = [[], []]

    @property
    def is_up(self) -> bool:
        """Whether packets arrive in both directions."""
        return not (self.is_cut[UP] or self.is_cut[DOWN])

    @property
    def is_fine(self) -> bool:
        """Whether heartbeats need not be simulated one by one."""
        return self.is_up and not self.drop

    def draw_delay_s(self, rng: random.Random) -> float:
        """Return how long a message takes."""
        delay = self.delay_s + self.jitter_s * rng.random()
        while self.drop and rng.random() < self.drop:
            delay += 0.2 + 0.8 * rng.random()
        return delay


class Connection:
    """A connection of a launcher to node 0.

    Attributes:
        session: The launcher.
        is_open: Whether each side may still send: that of the launcher, that of node 0.
        sent_until: When the last message of each direction arrives.
        called: When the launcher has begun it.
    """

    def __init__(self, session: str, link: Link) -> None:
        self.session, self.link = session, link
        self.is_open = [True, True]
        self.sent_until = [0.0, 0.0]
        self.called = 0.0
