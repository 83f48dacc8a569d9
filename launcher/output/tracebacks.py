"""Deduplicates tracebacks off a terminal: one that several ranks print is shown once, with their ranks.

Other lines pass at once. A traceback, and what follows it in one go, waits until its rank is quiet for
`QUIET_S`, or until the launcher prints a message. If another rank's same traceback is in the log, only a
line is added: ``same traceback as rank 0, above``. What one rank prints twice is shown twice.
"""

from __future__ import annotations

import time

from launcher.core.log import CLOCK
from launcher.output.console import Screen
from launcher.output.formats import PlainLines

HEAD = b"Traceback (most recent call last):"
QUIET_S = 0.2
"""A traceback is over when nothing has followed it for this time."""
WAIT_S = 1.0
"""Longest time that a traceback waits."""
HELD_BYTES = 1 << 16
"""A traceback longer than this is shown without waiting for its end."""
SHOWN_MAX = 16
"""Number of tracebacks that later ones are compared with."""


class ShownTraceback:
    """A traceback that is in the log, and the ranks that have printed it."""

    def __init__(self, key: bytes, ranks: list[int]) -> None:
        self.key, self.first, self.ranks = key, ranks[0], set(ranks)


class SharedTracebacks:
    """The tracebacks of all ranks that share a screen."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._held: list[Tracebacks] = []
        self._shown: list[ShownTraceback] = []

    @property
    def due(self) -> float | None:
        """When to call `release`, by ``time.monotonic()``; None if nothing waits."""
        return min((one.due for one in self._held), default=None)

    def hold(self, one: Tracebacks) -> None:
        """Wait for the end of a rank's traceback."""
        self._held.append(one)

    def release(self, now: float | None = None) -> None:
        """Show the tracebacks that have waited long enough; without a time those that are complete."""
        for one in tuple(self._held):
            if one in self._held and (one.is_complete if now is None else one.due <= now):
                self.show(one)

    def finish(self) -> None:
        """Show all that wait, because the ranks have ended; the next attempt shows its own."""
        while self._held:
            self.show(self._held[0])
        self._shown.clear()

    def show(self, one: Tracebacks) -> None:
        """Show a traceback with all others that are the same, or a line if it is in the log already."""
        key = one.key
        same = [one, *(other for other in self._held if other is not one and other.key == key)]
        self._held = [other for other in self._held if other not in same]
        texts = {other: other.take() for other in same}
        shown = next((it for it in self._shown if it.key == key and one.rank not in it.ranks), None)
        if shown is not None:
            later = [other for other in same if other.rank not in shown.ranks]
            shown.ranks.update(other.rank for other in later)
            self._write(later, b"same traceback as rank %d, above\n" % shown.first)
            same = [other for other in same if other not in later]
        if same:
            self._shown = [*self._shown[1 - SHOWN_MAX :], ShownTraceback(key, [other.rank for other in same])]
            text = texts[same[0]]
            self._write(same, text.replace(same[0].mark + b" ", b"") if len(same) > 1 else text)

    def _write(self, ranks: list[Tracebacks], text: bytes) -> None:
        first = ranks[0]
        several = sorted(one.rank for one in ranks) if len(ranks) > 1 else ()
        first.format.show(self._screen, first.writer, text, several, first.moment)


class Tracebacks:
    """The format of a rank's standard error whose tracebacks are shown once.

    Attributes:
        format: How its lines look.
        rank: The process.
        mark: What torch puts in front of each line of a traceback.
        writer: The stream, as `Screen.put` compares it.
        moment: When the traceback that waits began.
    """

    def __init__(self, form: PlainLines, shared: SharedTracebacks, rank: int) -> None:
        """Share the tracebacks in ``shared`` with the other ranks."""
        self.format, self.rank, self._shared = form, rank, shared
        self.find_end, self.hold_s = form.find_end, form.hold_s
        self.mark = b"[rank%d]:" % rank
        self._text = bytearray()
        self._began = self._last = 0.0
        self.writer: object = None
        self.moment = ""

    @property
    def due(self) -> float:
        """When the traceback that waits is shown, by ``time.monotonic()``."""
        return min(self._last + QUIET_S, self._began + WAIT_S)

    @property
    def key(self) -> bytes:
        """The traceback that waits, without torch's mark of the rank."""
        return bytes(self._text).replace(self.mark, b"[rank]:")

    @property
    def is_complete(self) -> bool:
        """Whether its last line is an exception."""
        last = self._text[self._text.rfind(b"\n", 0, len(self._text) - 1) + 1 :]
        bare = last.removeprefix(self.mark + b" ")
        return last.endswith(b"\n") and not bare.startswith(b" ") and HEAD not in bare

    def take(self) -> bytes:
        """Return the text that waits, which is shown now."""
        text = bytes(self._text)
        self._text.clear()
        return text

    def show(self, screen: Screen, writer: object, text: bytes) -> None:
        """Show lines, or a piece of one; let a traceback wait."""
        if not self._text:
            place = text.find(HEAD)
            if place < 0:
                self.format.show(screen, writer, text)
                return
            begin = text.rfind(b"\n", 0, place) + 1
            if begin:
                self.format.show(screen, writer, text[:begin])
            text = text[begin:]
            self.writer, self.moment, self._began = writer, CLOCK.read(), time.monotonic()
            self._shared.hold(self)
        self._last = time.monotonic()
        self._text += text
        if len(self._text) > HELD_BYTES:
            self._shared.show(self)
