"""Stragglers: ranks whose progress is behind the others, for the stall report.

The numbers come from the last output of each rank, which the launcher keeps anyway. Nothing is searched
before a stall. The user's pattern is searched in a fork, because a search can take forever.
"""

from __future__ import annotations

import os
import re
from collections import Counter, deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from launcher.process.helper import Helpers

    Numbers = Sequence[tuple[int, float]]
    """Pairs of a rank and its number."""

LIMIT_S = 0.5
"""Seconds for all searches; a usual pattern needs milliseconds."""
LINE_BYTES = 64
"""More than a rank and its number take."""
NUMBER = re.compile(r"(?:(?<!\w)-)?\d[\d,_]{0,17}(?:\.\d{1,20})?(?:[eE][-+]?\d{1,3})?")
STEP = "step"


def describe_stragglers(numbers: Numbers, what: str = STEP) -> str:
    """Return which ranks are behind, e.g. ``rank 3 is behind: step 1,200, the others 1,260``.

    Most ranks at one number are the measure; if there is no such number, the last ones are behind. If a
    minority is ahead of all others, that is returned: it may have left out what they wait for.

    Args:
        numbers: Progress of each rank, a rank once, on all nodes.
        what: What is counted, e.g. ``"collective"``.

    Returns:
        One line; empty if all are at the same number, or if fewer than two ranks have one.
    """
    found = dict(numbers)
    if len(set(found.values())) < 2:
        return ""
    common, count = max(Counter(found.values()).items(), key=lambda item: (item[1], item[0]))
    if 2 * count <= len(found) and len(found) > 2:
        common = sorted(set(found.values()))[1]
    behind = sorted(rank for rank, number in found.items() if number < common)
    apart = behind or sorted(rank for rank, number in found.items() if number > common)
    if 2 * len(apart) > len(found):
        return ""  # they do not count the same
    from launcher.core.ranks import name_ranks

    verb = f"{'are' if len(apart) > 1 else 'is'} {'behind' if behind else 'ahead'}"
    others = _span([number for rank, number in found.items() if rank not in apart])
    return f"{name_ranks(apart)} {verb}: {what} {_span([found[rank] for rank in apart])}, the others {others}"


def _span(numbers: Iterable[float]) -> str:
    ends = sorted(set(numbers))
    texts = [f"{int(end):,}" if end == int(end) else f"{end:,}" for end in (ends[0], ends[-1])]
    return " to ".join(dict.fromkeys(texts))


def find_numbers(pattern: str, tails: Mapping[int, bytes]) -> list[tuple[int, float]]:
    """Return the number in the last match of each rank: its group ``value``, its first, or all of it.

    Args:
        pattern: Regular expression of ``--progress-pattern``.
        tails: The last output of each rank.
    """
    found = []
    for rank, tail in tails.items():
        last = find_last(pattern, tail)
        if last is not None:
            group = "value" if "value" in last.re.groupindex else min(last.re.groups, 1)
            found += [(rank, number) for number in read_numbers(last.group(group))[-1:]]
    return found


def find_last(pattern: str, tail: bytes) -> re.Match[bytes] | None:
    """Return the last match of a pattern in an output; None without one."""
    search = re.compile(os.fsencode(pattern), re.MULTILINE)
    return next(iter(deque(search.finditer(tail.replace(b"\r", b"\n")), maxlen=1)), None)


def read_numbers(text: bytes | None) -> list[float]:
    """Return the numbers in a part of a match."""
    words = NUMBER.findall((text or b"").decode("ascii", "replace"))
    return [float(word.replace(",", "").replace("_", "")) for word in words]


def ask_numbers(
    pattern: str, tails: Mapping[int, bytes], helpers: Helpers, take: Callable[[Numbers], None]
) -> None:
    """Search in a fork; call ``take`` once in a later turn, with none if that takes longer than `LIMIT_S`.

    Raises:
        OSError: The kernel has no process for it.
    """

    def work() -> Iterable[str]:
        return (f"{rank} {number!r}" for rank, number in find_numbers(pattern, tails))

    def read(lines: Sequence[str]) -> None:
        pairs = [line.split() for line in lines]
        take([(int(rank), float(number)) for rank, number in pairs])

    helpers.ask(work, read, LIMIT_S, name="launcher-search", limit_bytes=LINE_BYTES * (len(tails) + 1))
