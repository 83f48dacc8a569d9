"""How results are shown: Markdown on stdout, progress on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

_STARTED = time.monotonic()


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def cell(value: float) -> str:
    """Return a number with about three digits, thousands apart."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2g}"


def progress(text: str) -> None:
    """Say what is being done."""
    print(f"[{time.monotonic() - _STARTED:3.0f} s] {text}", file=sys.stderr, flush=True)
