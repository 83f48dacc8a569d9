"""Variables that look like ours and are none: loaded only where there is one."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from launcher.flags import FLAGS


def describe_unknown(names: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence for each variable, with the nearest name that there is; never its value."""
    known = [flag.variable for flag in FLAGS]
    return tuple(_describe(name, difflib.get_close_matches(name, known, 1, 0.8)) for name in names)


def _describe(name: str, near: Sequence[str]) -> str:
    meant = f"{near[0]} is the nearest" if near else "none is near it: launcher run --help has all"
    return f"{name} is no variable of the launcher, and does nothing; {meant}"
