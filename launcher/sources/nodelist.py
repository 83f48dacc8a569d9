"""Parses Slurm's two compressed lists: hostnames, and task counts per node.

The grammar is that of ``scontrol show hostnames``, which the tests compare with. This parser is stricter than
Slurm's: it refuses what Slurm silently repairs (``n[1-``, ``n[1-]``, ``n1,,n2``, spaces). Slurm itself writes
these lists, so a list that needs repair is damaged, and a repaired one would be a wrong guess.

The input is untrusted: names are counted before they are built, so that a short text cannot demand much
memory or time.
"""

from __future__ import annotations

import re
from itertools import product
from math import prod

from launcher.core.redact import shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    # first number, last number, minimum number of digits
    _Range = tuple[int, int, int]

# More nodes than any job has; a shorter text could otherwise expand to any number of them.
MAX_NAMES = 1 << 17
# Slurm's own limit for one range (MAX_RANGE, 64K).
MAX_RANGE = 65_536
# The resolver's limit; it also bounds the memory that MAX_NAMES names can need.
MAX_NAME_LENGTH = 253

_SHOWN_LENGTH = 60
# A group cannot contain a bracket, so matching takes linear time, even in ``[[[[``.
_ITEM = re.compile(r"(?!-)(?:(?:[A-Za-z0-9_.:-]*\[[^\[\]]*\])+|[A-Za-z0-9_.:-]+)(?=,|\Z)")
_PART = re.compile(r"\[[^\[\]]*\]|[^\[\]]+")
# 18 digits: beyond them Slurm's own arithmetic (64 bits) saturates and invents names.
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_TASKS = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


def parse_nodelist(text: str) -> tuple[str, ...]:
    """Return the names in a Slurm host list, in the order in which Slurm expands it.

    Args:
        text: A host list, e.g. ``"gpu[08-10],login1"`` or ``"rack[1-2]node[1,3]"``.

    Returns:
        At least one name; a name that is listed twice occurs twice.

    Raises:
        ValueError: Brackets do not pair, a range is not a range of numbers or is reversed, text follows the
            last bracket of a name, an item is empty, a name has characters that no host name has, begins with
            a hyphen or is too long, or there are more than ``MAX_NAMES`` names.

    Source:
        SLURM_JOB_NODELIST, SLURM_STEP_NODELIST; "Node names", Slurm's slurm.conf(5).
    """
    names: list[str] = []
    place = 0
    try:
        while place <= len(text):
            item = _ITEM.match(text, place)
            if item is None:  # a hyphen at the start: programs would take such a name for an option
                found = _shown(text[place:])
                raise ValueError(f"expected a name such as n1 or rack[1-2]node[1,3], not {found}")
            names.extend(_expand_item(_PART.findall(item[0]), MAX_NAMES - len(names)))
            place = item.end() + 1
    except ValueError as error:
        raise ValueError(f"host list {_shown(text)}: {error}") from None
    return tuple(names)


def parse_tasks_per_node(text: str) -> tuple[int, ...]:
    """Return one task count for each node.

    Args:
        text: Counts with repetitions, e.g. ``"2(x2),1"`` for 2, 2 and 1 tasks on three nodes.

    Returns:
        At least one count; each is positive.

    Raises:
        ValueError: An item is not a positive count with an optional positive repetition, or
            there are more than ``MAX_NAMES`` nodes.

    Source:
        SLURM_TASKS_PER_NODE, SLURM_STEP_TASKS_PER_NODE, SLURM_JOB_CPUS_PER_NODE.
    """
    counts: list[int] = []
    for item in text.split(","):
        match = _TASKS.fullmatch(item)
        count, times = (int(match[1]), int(match[2] or 1)) if match else (0, 0)
        if count < 1 or times < 1:  # a text is shown after its fault: that takes long for a long one
            raise ValueError(
                f"task counts {_shown(text)}: expected COUNT or COUNT(xNODES), not {_shown(item)}"
            )
        if times > MAX_NAMES - len(counts):
            raise ValueError(f"task counts {_shown(text)}: more than {MAX_NAMES} nodes")
        counts.extend([count] * times)
    return tuple(counts)


def _expand_item(parts: Sequence[str], room: int) -> list[str]:
    """Return the names of one item; raise ValueError if there are more than `room`."""
    # A number has at least one digit: this bounds what the names need, and their readers check each
    if sum(1 if part[0] == "[" else len(part) for part in parts) > MAX_NAME_LENGTH:
        raise ValueError(f"a name has more than {MAX_NAME_LENGTH} characters")
    groups = [[_parse_range(item) for item in part[1:-1].split(",")] for part in parts if part[0] == "["]
    if prod(sum(last - first + 1 for first, last, _ in group) for group in groups) > room:
        raise ValueError(f"more than {MAX_NAMES} names")
    # In Slurm's order the last group varies fastest; of the others, the rightmost varies slowest.
    order = list(reversed(range(len(groups))))
    order = order[1:] + order[:1]
    fields = iter([f"{{{order.index(group)}}}" for group in range(len(groups))])
    template = "".join(next(fields) if part[0] == "[" else part for part in parts)
    numbers = product(*([text for item in groups[group] for text in _spell(*item)] for group in order))
    return [template.format(*chosen) for chosen in numbers]


def _parse_range(text: str) -> _Range:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(f"expected a number or a range, of up to 18 digits, not {_shown(text)}")
    first, last = match[1], match[2] or match[1]
    if int(last) < int(first):
        raise ValueError(f"the range {text} is reversed")
    if int(last) - int(first) >= MAX_RANGE:
        raise ValueError(f"the range {text} has more than {MAX_RANGE} numbers")
    return int(first), int(last), len(first)


def _spell(first: int, last: int, width: int) -> list[str]:
    """Return the numbers of a range as text, each as wide as the left bound."""
    return [f"{number:0{width}}" for number in range(first, last + 1)]


def _shown(text: str) -> str:
    """Return text for a message: quoted, with control characters escaped, and at most one line long."""
    return repr(text if len(text) <= _SHOWN_LENGTH else shorten(text, _SHOWN_LENGTH) + "...")
