"""``launcher status --watch`` on a terminal: a full screen, with keys to sort, scroll and quit."""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import contextmanager

from launcher.control.table import SORTS, ScreenState, render_screen
from launcher.core.frozen import replace
from launcher.output.tables import find_paper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from launcher.control.table import View

QUIT = ("q", "\x1b")
UP, DOWN, PAGE_UP, PAGE_DOWN, FIRST, LAST = "\x1b[A", "\x1b[B", "\x1b[5~", "\x1b[6~", "\x1b[H", "\x1b[F"
STEPS = {UP: -1, "k": -1, DOWN: 1, "j": 1}
PAGES = {PAGE_UP: -1, PAGE_DOWN: 1, " ": 1}
KEYS_LENGTH = 64
OPEN, CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""To the terminal's other screen, without a cursor, and back."""
HOME, END_OF_LINE, END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
RESIZE_S = 0.25
"""Seconds between two checks of the terminal's size."""


def press(screen: ScreenState, key: str, rows: int, page: int) -> ScreenState:
    """Return the screen after a key, for a table of ``rows`` rows of which ``page`` fit on the screen."""
    if key in QUIT:
        return replace(screen, has_quit=True)
    if key in SORTS:
        return ScreenState(SORTS[key])
    last = max(0, rows - page)
    skip = screen.skip + STEPS.get(key, 0) + PAGES.get(key, 0) * page
    skip = {FIRST: 0, "g": 0, LAST: last, "G": last}.get(key, skip)
    return replace(screen, skip=min(max(0, skip), last))


def split_keys(text: str) -> list[str]:
    """Return the keys in a terminal's input; an escape sequence is one key."""
    keys, rest = [], text[:KEYS_LENGTH]
    while rest:
        end = 1
        if rest.startswith("\x1b["):
            end = next((place + 1 for place, one in enumerate(rest[2:], 2) if "@" <= one <= "~"), len(rest))
        keys.append(rest[:end])
        rest = rest[end:]
    return keys


def watch(
    first: View, every_s: float, ask: Callable[[View], View | None], write: Callable[[str], None]
) -> tuple[View, bool]:
    """Show a job on the whole screen until it has ended, or the user quits.

    Args:
        first: The first view of the job.
        every_s: Seconds between two questions.
        ask: Returns a new view, given the last one; None once the job's launcher is gone.
        write: Writes to standard output, which is a terminal.

    Returns:
        The last view, and whether the job has ended.
    """
    view, screen = first, ScreenState()
    with _read_keys() as read, _fill_screen(write) as show:
        due = time.monotonic() + every_s
        while not screen.has_quit:
            paper = find_paper(os.environ)
            shown = render_screen(view, paper, screen)
            show(shown.lines[: paper.height])
            keys: list[str] = []
            while not keys and find_paper(os.environ) == paper and time.monotonic() < due:
                keys = split_keys(read(min(RESIZE_S, max(0.0, due - time.monotonic()))))
            for key in keys:
                screen = press(screen, key, shown.rows, shown.page)
            if time.monotonic() >= due and not screen.has_quit:
                after = ask(view)
                if after is None:
                    return view, True
                view, due = after, time.monotonic() + every_s
    return view, False


@contextmanager
def _fill_screen(write: Callable[[str], None]) -> Iterator[Callable[[Sequence[str]], None]]:
    """Yield a function that replaces what the screen shows; the terminal's own content returns at the end."""

    def show(lines: Sequence[str]) -> None:
        # Line by line over the last frame: a screen that was cleared first would flicker.
        text = "\r\n".join(f"{line}{END_OF_LINE}" for line in lines)
        write(f"{HOME}{text}{END_OF_SCREEN}")

    write(OPEN)
    try:
        yield show
    finally:
        write(CLOSE)


@contextmanager
def _read_keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits some seconds for keys; it gets none if there is no foreground terminal."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    if not os.isatty(fd) or not _may_read(fd):
        yield lambda within_s: time.sleep(within_s) or ""  # type: ignore[func-returns-value]
        return

    def read(within_s: float) -> str:
        if not select.select([fd], [], [], within_s)[0]:
            return ""
        return os.read(fd, KEYS_LENGTH).decode("utf-8", "replace") or QUIT[0]

    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield read
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _may_read(fd: int) -> bool:
    """Whether we may read from a terminal: in the background, the kernel would stop us."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:  # it is not our controlling terminal, so it has no background
        return True
