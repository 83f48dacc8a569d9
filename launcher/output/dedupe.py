"""Deduplicates lines: one that several processes write within a moment is shown once, with their ranks.

Lines wait in the batches in which they were read, until all processes have written them, or for `WINDOW_S`. A
line that another process has written already joins that one; what a process writes twice is shown twice.
"""

from __future__ import annotations

import time
from collections import deque

from launcher.core.log import CLOCK
from launcher.output.console import Screen
from launcher.output.formats import JsonLines, PlainLines, split

WINDOW_S = 1.0
"""Longest time that a line waits for the same line of other processes."""
WAITING_BYTES = 1 << 18
"""With more than this waiting, the first of it is shown."""


class Batch:
    """Lines that a process wrote together."""

    def __init__(self, source: Deduped, writer: object, lines: list[bytes]) -> None:
        self.source, self.writer, self.lines = source, writer, lines
        self.texts, self.moment, self.due = frozenset(lines), CLOCK.read(), time.monotonic() + WINDOW_S
        self.size = sum(map(len, lines))
        self.joined = 0
        self._ranks: dict[int, list[int]] = {}
        self._places: dict[int, int] = {}

    def join(self, rank: int, line: bytes) -> bool:
        """Note that another process has written a line, too; return whether one is left for it."""
        begin = self._places.get(rank, 0)
        try:
            place = self.lines.index(line, begin)
        except ValueError:
            # An earlier one, in another order
            place = next((at for at in range(begin) if self._is_free(at, rank, line)), -1)
        if place < 0:
            return False
        self._places[rank] = max(begin, place + 1)
        self._ranks.setdefault(place, [self.source.rank]).append(rank)
        self.joined += 1
        return True

    def _is_free(self, place: int, rank: int, line: bytes) -> bool:
        return self.lines[place] == line and rank not in self._ranks.get(place, ())

    def show(self, screen: Screen) -> None:
        """Show the lines: those that have the same ranks, and follow each other, in one go."""
        begin = 0
        for place in range(1, len(self.lines)) if self._ranks else ():
            if self._ranks.get(place) != self._ranks.get(begin):
                self._show(screen, begin, place)
                begin = place
        self._show(screen, begin, len(self.lines))

    def _show(self, screen: Screen, begin: int, end: int) -> None:
        text, ranks = b"".join(self.lines[begin:end]), sorted(self._ranks.get(begin, ()))
        self.source.format.show(screen, self.writer, text, ranks, self.moment)


class SharedLines:
    """The waiting lines of all processes that share a screen."""

    def __init__(self, screen: Screen, count: int) -> None:
        """Wait for the lines of ``count`` processes."""
        self._screen, self._others = screen, count - 1
        self._batches: deque[Batch] = deque()
        self._bytes = 0

    @property
    def due(self) -> float | None:
        """When to call `release`, by ``time.monotonic()``; None if nothing waits."""
        return self._batches[0].due if self._batches else None

    def add(self, source: Deduped, writer: object, lines: list[bytes]) -> None:
        """Take lines of a process, and show what need not wait any longer."""
        for batch in self._batches:
            is_other = batch.source.rank != source.rank and batch.source.bit == source.bit
            if lines and is_other and not batch.texts.isdisjoint(lines):
                texts, rank = batch.texts, source.rank
                lines = [line for line in lines if line not in texts or not batch.join(rank, line)]
        if lines:
            batch = Batch(source, writer, lines)
            self._batches.append(batch)
            self._bytes += batch.size
        self.release(time.monotonic())

    def release(self, now: float | None = None) -> None:
        """Show the first batches that have waited long enough or are complete; without a time all."""
        while self._batches:
            batch = self._batches[0]
            is_complete = batch.joined == len(batch.lines) * self._others
            waits = now is not None and batch.due > now
            if waits and not is_complete and self._bytes <= WAITING_BYTES:
                break
            self._batches.popleft()
            self._bytes -= batch.size
            batch.show(self._screen)


class Deduped:
    """The format of a stream whose lines are shown once.

    Attributes:
        format: How they look.
        rank: The process.
        bit: ``STDOUT`` or ``STDERR``: only lines of the same stream are the same.
    """

    def __init__(self, form: PlainLines | JsonLines, waiting: SharedLines, rank: int, bit: int) -> None:
        """Share the lines in ``waiting`` with the other processes on the screen."""
        self.format, self.rank, self.bit = form, rank, bit
        self.find_end, self.hold_s = form.find_end, form.hold_s
        self._waiting, self._goes_on = waiting, False

    def show(self, screen: Screen, writer: object, text: bytes) -> None:
        """Take lines, or show a piece of one."""
        if self._goes_on:  # the rest of a line whose beginning is shown
            first, end, text = text.partition(b"\n")
            self._goes_on = not end
            self.format.show(screen, writer, first + end)
        lines = split(text, b"\n")
        rest = lines.pop() if lines and lines[-1][-1:] not in (b"\n", b"\r") else b""
        self._waiting.add(self, writer, lines)
        if rest:
            self._goes_on = True
            self._waiting.release()
            self.format.show(screen, writer, rest)
