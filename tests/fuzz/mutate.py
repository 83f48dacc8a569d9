"""New cases from known ones: bytes, lines, JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

from tests.fuzz.nasty import HOSTS, JSON_TEXTS, NUMBERS, TEXTS

LONG_BYTES = 1 << 17
"""What is repeated becomes this long at most, one case in `LONG_EACH`."""
LONG_EACH = 100
WORDS = [text.encode("utf-8", "surrogatepass") for text in (*NUMBERS, *HOSTS, *TEXTS) if len(text) < 300]
SIGNS = b"\n\n\n\t \r\0\x1b,:;=#[](){}\"'\\/.-+%@_\x85\xff"
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, -1, 64, 65, 255, 256, 1 << 20, 1 << 24, 1 << 31, 1 << 63, 10**18, 10**30),
    *(0.5, -0.0, 1e9, 1e300, float("nan"), float("inf"), "", [], {}, [[]], [None], {"": None}, ["x"] * 300),
)
DEEP = 60


def mutate_bytes(case: bytes, other: bytes, dice: random.Random, words: Sequence[bytes] = WORDS) -> bytes:
    """Return a case with some of its bytes changed, dropped, repeated, or from elsewhere."""
    for _ in range(dice.choice((1, 1, 2, 4))):
        start, end = sorted(dice.randrange(len(case) + 1) for _ in range(2))
        end = min(end, start + dice.choice((1, 2, 8, 64, len(case))))
        way = dice.randrange(8)
        if way == 0:
            new = b""
        elif way == 1:
            new = dice.choice(words)
        elif way == 2:
            new = bytes([dice.choice(SIGNS)])
        elif way == 3:
            new = dice.randbytes(dice.choice((1, 2, 8)))
        elif way == 4:
            new = case[start:end] * 2
        elif way == 5:
            new, end = dice.choice(words), start
        elif way == 6:
            first, last = sorted(dice.randrange(len(other) + 1) for _ in range(2))
            new, end = other[first:last], dice.choice((start, end))
        else:
            new = repeat(case[start:end], dice)
        case = case[:start] + new + case[end:]
    return case[:LONG_BYTES]


def repeat(part: bytes, dice: random.Random) -> bytes:
    """Return a part some times; seldom so often that what takes more than linear time shows."""
    most = LONG_BYTES // max(1, len(part))
    return part * (most if dice.randrange(LONG_EACH) == 0 else min(most, dice.randint(2, 9)))


def mutate_lines(case: bytes, other: bytes, dice: random.Random) -> bytes:
    """Return a case with lines dropped, repeated, moved, and from another, or with bytes changed."""
    if dice.random() < 0.6:
        return mutate_bytes(case, other, dice)
    lines, others = case.split(b"\n"), other.split(b"\n")
    place, way = dice.randrange(len(lines)), dice.randrange(4)
    if way == 0:
        del lines[place]
    elif way == 1:
        lines.insert(place, dice.choice(others))
    elif way == 2:
        dice.shuffle(lines)
    else:
        numbered = [lines[place] + b"%d" % number for number in range(dice.choice((2, 30, 3000)))]
        lines[place : place + 1] = numbered
    return b"\n".join(lines)[:LONG_BYTES]


def mutate_json(case: bytes, other: bytes, dice: random.Random) -> bytes:
    """Return a JSON text with values changed, dropped, put elsewhere, and from another."""
    if dice.random() < 0.05:
        return mutate_bytes(case, other, dice)
    try:
        value, donor = json.loads(case), json.loads(other)
        for _ in range(dice.choice((1, 1, 2, 4))):
            value = _change(value, donor, dice)
        text = json.dumps(value, ensure_ascii=dice.random() < 0.8)
    except (ValueError, RecursionError):
        return mutate_bytes(case, other, dice)
    return _encode(text)[:LONG_BYTES]


def _change(value: Any, donor: Any, dice: random.Random) -> Any:
    places = list(_places(value))
    if not places:
        return _new(value, donor, dice)
    holder, key = dice.choice(places)
    way = dice.randrange(6)
    if way == 0:
        del holder[key]
    elif way == 1 and isinstance(holder, list):
        holder.insert(key, _new(holder[key], donor, dice))
    elif way == 1:
        holder[_name(donor, dice)] = _new(holder[key], donor, dice)
    elif way == 2 and isinstance(holder, dict):
        holder[_name(donor, dice)] = holder.pop(key)
    else:
        holder[key] = _new(holder[key], donor, dice)
    return value


def _new(old: Any, donor: Any, dice: random.Random) -> Any:
    way = dice.randrange(8)
    if way == 7:
        holder, key = dice.choice([*_places(donor), ([donor], 0)])
        return deepcopy(holder[key])
    if way == 1:
        return deepcopy(dice.choice(VALUES))
    if way <= 3 and isinstance(old, str) and old[:1] in ("{", "["):
        return _decode(mutate_json(_encode(old), b"{}", dice))
    if way == 2 and isinstance(old, str):
        return _decode(mutate_bytes(_encode(old), b"", dice))
    if way == 2 and isinstance(old, int):
        return old + dice.choice((-1, 1, 1 << 8, 1 << 16))
    if way == 3:
        return [old] * dice.choice((1, 2, 2 if isinstance(old, (dict, list, str)) else 3000))
    if way == 4:
        for _ in range(dice.choice((1, 1, 1, 1, 1, DEEP, dice.randint(900, 990)))):
            old = [old]
        return old
    if way == 5:
        return dice.choice(JSON_TEXTS)
    return dice.choice(dice.choice((NUMBERS, HOSTS, TEXTS)))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _name(donor: Any, dice: random.Random) -> str:
    names = [key for _, key in _places(donor) if isinstance(key, str)]
    return dice.choice(names) if names and dice.random() < 0.8 else dice.choice(TEXTS)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the holder and the key of every value in an object or a list."""
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, (dict, list)):
            for key, item in holder.items() if isinstance(holder, dict) else enumerate(holder):
                yield holder, key
                waiting.append(item)
