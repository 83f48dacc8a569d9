"""Folds the values of several ranks into one text, if they differ only in numbers. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

NUMBERS_SHOWN = 8
_NUMBER = re.compile(r"(\d+)")


def fold(texts: Sequence[str]) -> str | None:
    """Return one text for the texts of several ranks; None if they differ in more than numbers.

    ``["3", "4", "5", "6"]`` is ``"3 ... 6"``, ``["cpu:0", "cpu:2"]`` is ``"cpu:0, 2"``.
    """
    parts = [_NUMBER.split(text) for text in texts]  # numbers have odd indices
    if len({len(each) for each in parts}) > 1:
        return None
    folded = []
    for place, column in enumerate(zip(*parts, strict=True)):
        if len(set(column)) == 1:
            folded.append(column[0])
        elif place % 2:
            folded.append(fold_numbers([int(number) for number in column]))
        else:
            return None
    return "".join(folded)


def fold_numbers(numbers: Sequence[int]) -> str:
    """Return numbers as text, e.g. ``0, 1``, ``0 ... 7``, ``0, 2, 4`` or ``0, 2, 4 ... 30``."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and list(numbers) == list(range(first, last + 1)):
        return f"{first} ... {last}"
    if len(numbers) > NUMBERS_SHOWN:
        return f"{', '.join(map(str, numbers[:3]))} ... {last}"
    return ", ".join(map(str, numbers))
