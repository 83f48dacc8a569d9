"""Lines that several processes write within a moment: each is shown once, with the ranks that wrote it.

A line waits until all processes have written it, or for `WINDOW_S`. It then stands where the first of them
wrote it. What a process writes twice is shown twice.
"""

from __future__ import annotations

import time
from collections import deque

from launcher.core.frozen import frozen
from launcher.core.log import CLOCK
from launcher.output.formats import split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.output.console import Screen
    from launcher.output.formats import Json, Text

WINDOW_S = 1.0
"""Longest time that a line waits for the same line of other processes."""
WAITING_BYTES = 1 << 20
"""With more than this waiting, all of it is shown."""


class _Line:
    """A line that waits, and what wrote it first."""

    __slots__ = ("due", "first", "key", "moment", "ranks", "writer")

    def __init__(
        self, key: tuple[int, bytes], first: Deduped, writer: object, due: float, moment: str
    ) -> None:
        self.key, self.first, self.writer, self.due, self.moment = key, first, writer, due, moment
        self.ranks = [first.rank]

    def stands_with(self, line: _Line) -> bool:
        """Whether another line can be shown in one go with this one."""
        return self.first is line.first and self.ranks == line.ranks and self.moment == line.moment


class _Same:
    """The waiting lines with one text: the n-th that a process writes joins the n-th of the others."""

    def __init__(self) -> None:
        self.lines: deque[_Line] = deque()
        self.shown = 0
        self._next: dict[int, int] = {}

    def find(self, rank: int) -> _Line | None:
        """Return the line that the next one of this process joins; None if that is a new one."""
        number = max(self._next.get(rank, 0), self.shown)
        self._next[rank] = number + 1
        place = number - self.shown
        return self.lines[place] if place < len(self.lines) else None


class Waiting:
    """The waiting lines of all processes that share a screen.

    Attributes:
        due: When to call `release`, by ``time.monotonic()``; None if nothing waits.
    """

    def __init__(self, screen: Screen, count: int) -> None:
        """Wait for the lines of ``count`` processes."""
        self._screen, self._count = screen, count
        self._lines: deque[_Line] = deque()
        self._same: dict[tuple[int, bytes], _Same] = {}
        self._bytes = 0

    @property
    def due(self) -> float | None:
        """When to call `release`, by ``time.monotonic()``; None if nothing waits."""
        return self._lines[0].due if self._lines else None

    def add(self, source: Deduped, writer: object, lines: Sequence[bytes]) -> None:
        """Take lines of a process, and show what need not wait any longer."""
        now, moment = time.monotonic(), CLOCK.read()
        for text in lines:
            key = (source.bit, text)
            same = self._same.setdefault(key, _Same())
            line = same.find(source.rank)
            if line is None:
                line = _Line(key, source, writer, now + WINDOW_S, moment)
                same.lines.append(line)
                self._lines.append(line)
                self._bytes += len(text)
            else:
                line.ranks.append(source.rank)
        self.release(now if self._bytes <= WAITING_BYTES else None)

    def release(self, now: float | None = None) -> None:
        """Show the first lines that have waited long enough or are complete; without a time all."""
        run: list[_Line] = []
        while self._lines:
            line = self._lines[0]
            if now is not None and line.due > now and len(line.ranks) < self._count:
                break
            self._lines.popleft()
            self._forget(line)
            if run and not run[-1].stands_with(line):
                self._show(run)
                run = []
            run.append(line)
        if run:
            self._show(run)

    def _forget(self, line: _Line) -> None:
        same = self._same[line.key]
        same.lines.popleft()
        same.shown += 1
        self._bytes -= len(line.key[1])
        if not same.lines:
            del self._same[line.key]

    def _show(self, run: list[_Line]) -> None:
        line = run[0]
        ranks = sorted(line.ranks) if len(line.ranks) > 1 else ()
        line.first.format.show(
            self._screen, line.writer, b"".join(one.key[1] for one in run), ranks, line.moment
        )


@frozen
class Deduped:
    """The format of a stream whose lines are shown once.

    Attributes:
        format: How they look.
        waiting: The lines of all processes on the screen.
        rank: The process.
        bit: ``STDOUT`` or ``STDERR``: only lines of the same stream are the same.
    """

    format: Text | Json
    waiting: Waiting
    rank: int
    bit: int

    def find_end(self, data: bytes) -> int:
        """Return the number of bytes up to the end of the last finished line."""
        return self.format.find_end(data)

    def hold_s(self, partial: bytearray) -> float | None:
        """Return how long an unfinished line waits for its end."""
        return self.format.hold_s(partial)

    def show(self, screen: Screen, writer: object, text: bytes) -> None:
        """Take lines, or show a piece of one."""
        if screen.is_open_for(writer):  # the rest of a line whose beginning is shown
            first, end, text = text.partition(b"\n")
            self.format.show(screen, writer, first + end)
        lines = split(text, b"\n")
        rest = lines.pop() if lines and lines[-1][-1:] not in (b"\n", b"\r") else b""
        self.waiting.add(self, writer, lines)
        if rest:
            self.waiting.release()
            self.format.show(screen, writer, rest)
