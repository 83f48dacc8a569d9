"""Small facts out of /sys, where a file may be empty, refused, gone or filled with anything."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.machine.host import Host

LINE_LIMIT = 256
"""Longer than any line of a class in /sys that states one fact: more is no such fact."""


def read_line(host: Host, path: str) -> str | None:
    """Return a file's only line without spaces around it; None if it is empty, long, or not plain text."""
    text = (host.read_text(path) or "").strip()
    fits = 0 < len(text) <= LINE_LIMIT and text.isascii() and text.isprintable()
    return text if fits else None


def read_number(host: Host, path: str) -> int | None:
    """Return the number that a file holds; None if it holds none, or -1, which /sys has for unknown."""
    text = read_line(host, path) or ""
    return int(text) if text.isdecimal() and len(text) <= 10 else None


def natural_order(name: str) -> tuple[str | tuple[int, str], ...]:
    """Return a sort key by which mlx5_2 comes before mlx5_10."""
    parts = [""]
    for letter in name:
        if ("0" <= letter <= "9") == (len(parts) % 2 == 0):
            parts[-1] += letter
        else:
            parts.append(letter)
    if len(parts) % 2 == 0:
        parts.append("")  # texts and numbers in turn, a text at both ends
    return tuple(_numeric(part) if place % 2 else part for place, part in enumerate(parts))


def _numeric(digits: str) -> tuple[int, str]:
    """Return a sort key of a number of any length."""
    significant = digits.lstrip("0")
    return len(significant), significant
