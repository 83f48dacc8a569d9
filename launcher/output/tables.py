"""Aligned tables and styled lines for terminals and logs.

All texts must be printable: what comes from outside passes `launcher.core.redact.printable` first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from launcher.core.frozen import frozen

BOLD, DIM, REVERSE, RED, YELLOW = "1", "2", "7", "31", "33"
COLOURS = (RED, YELLOW)
"""Left out under NO_COLOR; the other styles stay."""
INDENT, GAP = " ", "   "
LEAST = 4
"""No column becomes narrower than this."""
DUMB = ("dumb", "unknown", "")
USUAL = (80, 24)
MOST = 10_000
"""Of a terminal's columns and lines, whatever COLUMNS and LINES say."""


@frozen
class Paper:
    """What a table is written on.

    Attributes:
        width: Number of columns; 0 for no limit.
        height: Number of lines.
        has_styles: Whether bold, dim and reverse text is shown.
        has_colours: Whether colours are shown, too.
    """

    width: int = 0
    height: int = 0
    has_styles: bool = False
    has_colours: bool = False


def find_paper(environ: Mapping[str, str], fd: int = 1) -> Paper:
    """Return what a file descriptor writes on; something else than a terminal has no limits and no styles."""
    if not os.isatty(fd):
        return Paper()
    styles = environ.get("TERM", "dumb") not in DUMB
    width, height = find_size(environ, fd)
    return Paper(width, height, styles, styles and not environ.get("NO_COLOR"))


def find_size(environ: Mapping[str, str], fd: int = 1) -> tuple[int, int]:
    """Return a terminal's columns and lines: COLUMNS and LINES, or else its own."""
    try:
        own = tuple(os.get_terminal_size(fd))
    except OSError:
        own = (0, 0)
    typed = [environ.get(name, "") for name in ("COLUMNS", "LINES")]
    sizes = [int(text[:9]) if text.isascii() and text.isdigit() else 0 for text in typed]
    width, height = (
        min(wanted, MOST) or has or usual for wanted, has, usual in zip(sizes, own, USUAL, strict=True)
    )
    return width, height


def paint(paper: Paper, text: str, *styles: str) -> str:
    """Return a text in these styles, as far as the paper shows them."""
    shown = [style for style in styles if style not in COLOURS or paper.has_colours]
    return f"\x1b[{';'.join(shown)}m{text}\x1b[0m" if shown and paper.has_styles and text else text


def measure(text: str) -> int:
    """Return the number of columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(
        0 if category(one) in ("Mn", "Me", "Cf") else 2 if east_asian_width(one) in "WF" else 1
        for one in text
    )


def cut(text: str, width: int) -> str:
    """Return a text cut to a number of columns, with an ellipsis at the end."""
    if measure(text) <= width:
        return text
    return _take(text, width - 1) + "…"


def _take(text: str, width: int) -> str:
    """Return the beginning of a text that fits into a number of columns."""
    if text.isascii():
        return text[: max(0, width)]
    end = room = 0
    while end < len(text) and (room := room + measure(text[end])) <= width:
        end += 1
    return text[:end]


def fold(text: str, width: int) -> Iterator[str]:
    """Yield the lines of a text, broken between words and, where one is longer than a line, inside of it."""
    line = ""
    for place, word in enumerate(text.split(" ")):
        joined = f"{line} {word}" if place else word
        if measure(joined) <= width:
            line = joined
            continue
        if place:
            yield line.rstrip()
        while measure(word) > width:
            part = _take(word, width) or word[:1]
            yield part
            word = word[len(part) :]
        line = word
    yield line.rstrip()


def align(rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> list[str]:
    """Return lines of aligned columns, for logs; those whose first cell is in ``right`` at their right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.rjust if title in right else str.ljust for title in rows[0]] if rows else []
    return [
        "  ".join(side(cell, width) for side, cell, width in zip(sides, row, widths, strict=True)).rstrip()
        for row in rows
    ]


def lay_out(
    paper: Paper,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    folds: Sequence[str] = (),
    right: Sequence[str] = (),
    marked: str = "",
    styles: Sequence[Sequence[str]] = (),
) -> list[str]:
    """Return the lines of a table: its head, a rule, its rows.

    Args:
        paper: Its width bounds that of the table: some columns are folded, and then all are cut.
        head: The titles of the columns.
        rows: The cells.
        folds: Titles of the columns that may be folded into several lines.
        right: Titles of the columns that are aligned at their right.
        marked: Title of the column by which the rows are sorted.
        styles: Styles of each row; default: none.
    """
    titles = [f"{title} ▾" if title == marked else title for title in head]
    widths = [max(map(measure, column)) for column in zip(titles, *rows, strict=True)]
    if paper.width:
        room = paper.width - len(INDENT) - len(GAP) * (len(head) - 1)
        _narrow(widths, [place for place, title in enumerate(head) if title in folds], room)
        _narrow(widths, list(range(len(head))), room)
    heads = [
        paint(paper, _align(cut(title, width), width, name in right), BOLD, *([REVERSE] * (name == marked)))
        for title, name, width in zip(titles, head, widths, strict=True)
    ]
    rule = "─" * (sum(widths) + len(GAP) * (len(head) - 1))
    lines = [INDENT + GAP.join(heads).rstrip(), INDENT + rule]
    for number, row in enumerate(rows):
        cells = [
            list(fold(cell, width)) if title in folds else [cut(cell, width)]
            for cell, title, width in zip(row, head, widths, strict=True)
        ]
        for place in range(max(map(len, cells))):
            parts = [
                _align(cell[place] if place < len(cell) else "", width, title in right)
                for cell, title, width in zip(cells, head, widths, strict=True)
            ]
            lines.append(
                paint(paper, (INDENT + GAP.join(parts)).rstrip(), *(styles[number] if styles else ()))
            )
    return lines


def _align(text: str, width: int, is_right: bool) -> str:
    space = " " * (width - measure(text))
    return space + text if is_right else text + space


def _narrow(widths: list[int], places: Sequence[int], room: int) -> None:
    """Narrow some columns, always the widest of them, until all fit into the room or have the least width."""
    excess = sum(widths) - room
    while excess > 0 and places:
        widest = max(places, key=lambda place: widths[place])
        if widths[widest] <= LEAST:
            return
        widths[widest] -= 1
        excess -= 1
