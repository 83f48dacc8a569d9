"""The processes of one node in one attempt: how they end by themselves and by signals."""

from __future__ import annotations

from typing import NamedTuple


class Fate(NamedTuple):
    """What the processes of a node do in an attempt.

    Attributes:
        runs_s: How long they run if nothing stops them.
        status: Exit status then.
        follows: Whether that only reports the loss of another process.
        dies_s: How long they need to end after SIGTERM; more than the grace if they ignore it.
        killed_s: How long the kernel needs to end them after SIGKILL.
        is_refused: Whether they cannot be started.
    """

    runs_s: float
    status: int = 0
    follows: bool = False
    dies_s: float = 0.05
    killed_s: float = 0.01
    is_refused: bool = False


class Processes:
    """The processes of a node in an attempt.

    Attributes:
        began: When they were started.
        ended: When the last one had ended; None while one runs.
        frozen: When they were frozen; None if they are not.
        spans: Times during which they ran, from and to.
        termed: When they got SIGTERM.
        killed: When they got SIGKILL, and why.
        status: Exit status.
    """

    def __init__(self, session: str, machine: int, rank: int, attempt: int, fate: Fate, now: float) -> None:
        self.session, self.machine, self.rank, self.attempt, self.fate = session, machine, rank, attempt, fate
        self.began = self.resumed = now
        self.ended: float | None = None
        self.frozen: float | None = None
        self.spans: list[tuple[float, float]] = []
        self.termed: float | None = None
        self.killed: tuple[float, str] | None = None
        self.status: int | None = None
        self.own_end: float | None = None
        self.is_orphaned = False
        self.event_number = 0

    def freeze(self, now: float) -> None:
        """Stand still."""
        if self.ended is None and self.frozen is None:
            self.frozen = now
            self.spans.append((self.resumed, now))

    def thaw(self, now: float) -> None:
        """Go on."""
        if self.frozen is not None:
            self.frozen, self.resumed = None, now

    def end(self, now: float, status: int) -> None:
        """Note that all have ended."""
        if self.ended is None:
            self.ended, self.status = now, status
            if self.frozen is None:
                self.spans.append((self.resumed, now))
