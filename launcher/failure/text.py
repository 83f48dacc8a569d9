"""Output of processes as lines: as a terminal would show them, safe to show, and limited in length."""

from __future__ import annotations

import re
from functools import lru_cache

from launcher.core import redact
from launcher.core.blocks import Block, read_blocks
from launcher.core.redact import drop_partial, printable, shorten
from launcher.core.shorten import shorten_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_KINDS = {block.name: block for block in read_blocks("failure/lines.txt")}


def compile_kind(kind: str) -> re.Pattern[str]:
    """Return the pattern of a kind of lines, see ``lines.txt``."""
    return re.compile("|".join(_KINDS[kind].items))


def read_pairs(kind: str) -> dict[str, str]:
    """Return what is before and after the bar in each row of a block of ``lines.txt``."""
    pairs = (row.partition(" | ") for row in _KINDS[kind].items)
    return {first: last for first, _, last in pairs}


def read_kind(kind: str) -> Block:
    """Return a block of ``lines.txt``."""
    return _KINDS[kind]


RANK, HEADER, ESCAPES = map(compile_kind, ("rank", "header", "escapes"))
LINES_MAX = 120
QUOTE_CHARS = 300
LINE_CHARS = 1000
TEXT_CHARS = 1 << 16
"""Of a longer text only the beginning and the end are searched for secrets, and shown."""
redact_ends = lru_cache(maxsize=4)(redact.redact_ends)
"""The same text is read for each part of a verdict, and a search takes a second where a rank means ill."""


def say_apart(nanoseconds: int) -> str:
    """Return e.g. ``0.010 s later``, or ``earlier`` if negative."""
    return f"{abs(nanoseconds) / 1e9:.3f} s {'later' if nanoseconds >= 0 else 'earlier'}"


def presentable(lines: Sequence[str], limit: int = LINES_MAX) -> tuple[str, ...]:
    """Return lines that are safe to show: without secrets and terminal codes, and limited in length.

    Args:
        lines: Any lines.
        limit: If there are more lines, those in the middle are replaced by a line with their number.
    """
    if not lines:
        return ()
    text = "\n".join(lines)
    head, tail = redact_ends(text, TEXT_CHARS)
    kept = head.split("\n") + (["...", *tail.split("\n")] if tail else [])
    kept = shorten_lines(kept, min(limit, LINES_MAX), text.count("\n") + 1 if tail else 0)
    return tuple(printable(_cap(line.expandtabs(4))) for line in kept)


def clean_lines(text: str, *, cut: bool = False) -> list[str]:
    """Return lines as a terminal would show them, without secrets; of a progress bar, its last state.

    Secrets are redacted before lines are chosen, cut or quoted, because some span several lines.

    Args:
        text: The output of a process.
        cut: Whether the beginning is lost. Then the first line is left out, because a partial secret would
            match no pattern.
    """
    text = ESCAPES.sub("", text)
    head, tail = redact_ends(drop_partial(text) if cut else text, TEXT_CHARS)
    lines: list[str] = []
    for line in [*head.split("\n"), *(["  ...", *tail.split("\n")] if tail else [])]:
        shown = [part for part in line.split("\r") if part.strip()]
        lines.extend(_before_and_after_header(shown[-1].rstrip()) if shown else [""])
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _before_and_after_header(line: str) -> list[str]:
    """Split a line before a traceback: a progress bar does not end its line, so one may begin inside it."""
    match = HEADER.search(line)
    if match is None:
        return [line]
    start = match.start()
    before = line[:start]
    prefix = re.search(RANK.pattern + r"\Z", before)
    if prefix is not None:
        start, before = prefix.start(), before[: prefix.start()]
    return [before.rstrip(), line[start:]] if before.strip(" |+-") else [line]


def _cap(line: str) -> str:
    """Return a line shortened to the maximum length, cut between words."""
    if len(line) <= LINE_CHARS:
        return line
    return f"{line[:LINE_CHARS].rpartition(' ')[0]} ... ({len(line)} characters)"


def quote(text: str) -> str:
    """Return text of another program, safe to show on one line."""
    kept = shorten(text, 8 * QUOTE_CHARS).expandtabs(4)
    line = " ".join(" ".join(map(printable, kept.split("\n"))).split())
    return line if len(line) <= QUOTE_CHARS else f"{line[:QUOTE_CHARS]}..."
