"""How results are shown: Markdown on stdout, progress on stderr; and how they are read back."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

_STARTED = time.monotonic()


class Table(NamedTuple):
    """A table of results: what is printed, and what a plot is made of.

    Attributes:
        head: The names of the columns.
        rows: Their cells, as many in each.
    """

    head: list[str]
    rows: list[list[str]]

    def column(self, name: str) -> list[str]:
        """Return the cells of the first column whose name begins so.

        Raises:
            KeyError: There is none.
        """
        for place, title in enumerate(self.head):
            if title.startswith(name):
                return [row[place] for row in self.rows]
        raise KeyError(name)

    def numbers(self, name: str) -> dict[str, float]:
        """Return the numbers of a column by the first cell of their row, where there are any."""
        names = (row[0] for row in self.rows)
        pairs = zip(names, map(number, self.column(name)), strict=True)
        return {row: value for row, value in pairs if value is not None}


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def read_tables(text: str) -> list[Table]:
    """Return the tables of a Markdown text, in order: what `markdown` wrote."""
    found: list[Table] = []
    inside = False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [part.strip() for part in line.strip("|").split("|")]
        if not inside:
            found.append(Table(cells, []))
        elif not set(line) <= set("|- "):
            found[-1].rows.append(cells)
        inside = True
    return found


def number(text: str) -> float | None:
    """Return the first number of a cell, or None: a launcher that did not end has none."""
    match = re.match(r"-?[\d,]+(\.\d+)?", text)
    return float(match[0].replace(",", "")) if match else None


def cell(value: float) -> str:
    """Return a number with about three digits, thousands apart."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2g}"


def promise(words: str, limit: float, value: float, *, least: bool = False) -> str:
    """Return one line: what was promised, with its unit, and whether it is so."""
    kept = value >= limit if least else value <= limit
    bound = "at least" if least else "at most"
    return f"- promise: {bound} {limit:g} {words}: {'kept' if kept else 'BROKEN'} ({cell(value)})"


def progress(text: str) -> None:
    """Say what is being done."""
    print(f"[{time.monotonic() - _STARTED:3.0f} s] {text}", file=sys.stderr, flush=True)
