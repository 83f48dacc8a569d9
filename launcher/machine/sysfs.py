"""Reads single values from /sys, where a file may be empty, unreadable, missing or malformed."""

from __future__ import annotations

from itertools import groupby

from launcher.core.ranks import is_number

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


def read_number(host: Host, path: str, digits: int = 10) -> int | None:
    """Return the number in a file; None if there is none, for ``max``, and for -1: unknown in /sys."""
    text = read_line(host, path) or ""
    return int(text) if is_number(text, digits) else None


def natural_order(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Return a sort key by which mlx5_2 comes before mlx5_10; numbers may have any length."""
    groups = [(is_text, "".join(part)) for is_text, part in groupby(name, lambda one: not "0" <= one <= "9")]
    return tuple(
        (True, 0, part) if is_text else (False, len(part.lstrip("0")), part.lstrip("0"))
        for is_text, part in groups
    )
