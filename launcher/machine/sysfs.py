"""Reads single values from /sys, where a file may be empty, unreadable, missing or malformed."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.machine.host import Host

LINE_LIMIT = 256
"""Longest text that is read as a value; files in /sys with a single value are shorter."""


def read_line(host: Host, path: str) -> str | None:
    """Return a file's only line without spaces around it; None if empty, too long or not printable ASCII."""
    text = (host.read_text(path) or "").strip()
    fits = 0 < len(text) <= LINE_LIMIT and text.isascii() and text.isprintable()
    return text if fits else None


def read_number(host: Host, path: str) -> int | None:
    """Return the number in a file; None if there is none, or for -1, which means unknown in /sys."""
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
        parts.append("")  # texts and numbers alternate, with a text at both ends
    return tuple(_numeric(part) if place % 2 else part for place, part in enumerate(parts))


def _numeric(digits: str) -> tuple[int, str]:
    """Return a sort key for a number of any length."""
    significant = digits.lstrip("0")
    return len(significant), significant
