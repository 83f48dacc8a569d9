"""Finds a loss that stays NaN until the end, in the output of a job that exited with 0.

Only the end of the output is read, which is kept anyway, once, after the job. Loaded only if ``nan`` is in.
"""

from __future__ import annotations

import re

from launcher.core.redact import quote
from launcher.failure.symptoms import read_symptoms
from launcher.failure.text import clean_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

LINE_CHARS = 200
LOSS = re.compile(
    r"(?<!\w)(?P<name>[\w./-]{0,40}loss(?:_[a-z0-9]{1,20})?)['\"]?[ \t]{0,4}(?:[:=|]|is\b)?[ \t]{0,8}"
    r"(?:np\.float\d\d\(|tensor\()?(?P<value>nan(?![a-z])|[-+]?(?:inf\b|\d))",
    re.IGNORECASE,
)
OTHER = re.compile(r"val|eval|test|dev|best|scale", re.IGNORECASE)
"""Parts of names of values that do not tell whether the training went on: an empty validation gives NaN."""


def describe_loss(tails: Sequence[tuple[str, bytes]]) -> str | None:
    """Return a note about losses that are NaN to the end; None without one.

    Args:
        tails: (name of a process, the end of one of its outputs), in the order of ranks.
    """
    found: dict[str, str] = {}
    for name, tail in tails:
        line = find_nan(tail)
        if line is not None:
            found.setdefault(name, line)
    if not found:
        return None
    name, line = next(iter(found.items()))
    others = f" and of {len(found) - 1} other{'s' if len(found) > 2 else ''}" if len(found) > 1 else ""
    since = f"has been NaN since '{quote(line, LINE_CHARS)}'"
    return f"note: [loss-nan] the loss of {name}{others} {since}; fix: {read_symptoms()['loss-nan'].fix}"


def find_nan(tail: bytes) -> str | None:
    """Return the line from which a loss stayed NaN to the end; None without one."""
    since: dict[str, int] = {}
    text = tail.decode("utf-8", "replace").replace("\r", "\n")
    for match in LOSS.finditer(text):
        name = match["name"].lower()
        if OTHER.search(name):
            continue
        if match["value"].lower() == "nan":
            since.setdefault(name, match.start())
        else:
            since.pop(name, None)
    if not since:
        return None
    start = text.rfind("\n", 0, min(since.values())) + 1
    return " ".join(clean_lines(text[start:].partition("\n")[0]))
