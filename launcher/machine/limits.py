"""Reads the resource limits of this process.

Source: proc(5), /proc/PID/limits: a name of fixed width, then soft limit, hard limit and unit.
"""

from __future__ import annotations

from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.machine.host import Host

FILE = "/proc/self/limits"
LOCKED = "Max locked memory"
OPEN_FILES = "Max open files"


@frozen
class Limit:
    """A soft limit, and the hard limit up to which it may be raised; None means unlimited."""

    soft: int | None
    hard: int | None


def read_limit(host: Host, name: str) -> Limit | None:
    """Return one of our limits, in bytes or as a count; None if it cannot be read."""
    for line in (host.read_text(FILE) or "").splitlines():
        words = line[len(name) :].split() if line.startswith(name + " ") else []
        if len(words) >= 2 and all(map(_is_limit, words[:2])):
            soft, hard = (None if word == "unlimited" else int(word) for word in words[:2])
            return Limit(soft, hard)
    return None


def _is_limit(word: str) -> bool:
    return word == "unlimited" or (word.isascii() and word.isdecimal() and len(word) < 21)
