"""JSON objects for each type of message: a frozen value within its declared bounds, or `Garbled`.

A message that is accepted arrives as the same again when it is passed on.
"""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launcher
from launcher.channel import lines
from launcher.cluster.consistency import compare
from launcher.cluster.join import Join
from launcher.core import wire
from launcher.core.shorten import ROOM_BYTES, fit
from launcher.core.wire import Garbled, name_of, pack, render, unpack
from launcher.failure.model import Verdict
from launcher.failure.record import render_json
from launcher.failure.report import render_text
from tests.fuzz.engine import pattern_of
from tests.fuzz.mutate import mutate_json

PACKAGE = Path(launcher.__file__).parent
MESSAGE_LENGTH = 1000
JOIN_BYTES = 1 << 17
"""What node 0 keeps of a node at most."""


def _find_kinds() -> tuple[type, ...]:
    """Return all types of messages that the launcher has."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "\n@message\n" in path.read_text():
            importlib.import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
    return tuple(wire._TYPES.values())


KINDS = _find_kinds()
NAMED = {kind.__name__: kind for kind in KINDS}


def _is_whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _is_text(most: int = 1 << 40) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value.isprintable() and len(value) <= most


BOUNDS: dict[str, tuple[object, Callable[[Any], bool]]] = {
    "int": (7, _is_whole(-(1 << 63), 1 << 63)),
    "bool": (True, lambda value: isinstance(value, bool)),
    "str": ("a text", _is_text()),
    "Line": ("a line", _is_text(800)),
    "Fact": ("a fact", _is_text(200)),
    "Facts": (
        {"NCCL_IB_HCA": "mlx5"},
        lambda value: len(value) <= 64 and all(map(_is_text(200), [*value, *value.values()])),
    ),
    "Word": ("0a1b", lambda value: 0 < len(value) <= 32 and value.isalnum()),
    "Raw": ("/a\udcff", lambda value: isinstance(value, str)),
    "Variables": (
        {"PATH": "/bin", "GONE": None},
        lambda value: all(isinstance(text, str | None) for text in value.values()),
    ),
    "Seconds": (1.5, lambda value: type(value) is float and 0 <= value <= 1e9),
    "Status": (1, _is_whole(0, 255)),
    "ExitCode": (-9, _is_whole(-64, 255)),
    "Signal": (15, _is_whole(1, 64)),
    "NodeRank": (1, _is_whole(0, 1 << 20)),
    "Rank": (3, _is_whole(-1, 1 << 24)),
    "object": ({"status": [{"pid": 7}]}, lambda value: True),
}
"""A value of each kind of field, and what `launcher.core.wire` says of it."""


def make(annotation: str) -> Any:
    """Return a value for a field."""
    annotation = annotation.removesuffix(" | None")
    if annotation.startswith("tuple["):
        return [make(annotation[len("tuple[") : -len(", ...]")])]
    if annotation.startswith("Mapping[str, "):
        return {"name": make(annotation[len("Mapping[str, ") : -1])}
    return make_message(NAMED[annotation]) if annotation in NAMED else BOUNDS[annotation][0]


def make_message(kind: type) -> dict[str, Any]:
    """Return a message of a type as it is sent, without its name."""
    return {name: make(annotation) for name, annotation in kind.__annotations__.items()}


def judge(annotation: str, value: Any) -> None:
    """Look whether a field holds what its annotation says."""
    inner = annotation.removesuffix(" | None")
    if value is None and inner != annotation:
        return
    if inner.startswith("tuple["):
        assert type(value) is tuple and len(value) <= 1 << 16
        for item in value:
            judge(inner[len("tuple[") : -len(", ...]")], item)
    elif inner.startswith("Mapping[str, "):
        for name, item in value.items():
            judge("str", name)
            judge(inner[len("Mapping[str, ") : -1], item)
    elif inner in NAMED:
        assert type(value) is NAMED[inner]
        for name, kind in NAMED[inner].__annotations__.items():
            judge(kind, getattr(value, name))
    else:
        assert BOUNDS[inner][1](value), f"{inner}: {value!r}"


def seeds() -> list[bytes]:
    """Return a message of each type: its name on a line of its own, and its fields."""
    return [name_of(kind).encode() + b"\n" + json.dumps(make_message(kind)).encode() for kind in KINDS]


def mutate(case: bytes, other: bytes, dice: random.Random) -> bytes:
    """Return a message with other values, seldom with the name of another."""
    name, _, fields = case.partition(b"\n")
    name_of_other, _, fields_of_other = other.partition(b"\n")
    name = name_of_other if dice.random() < 0.1 else name
    return name + b"\n" + mutate_json(fields, fields_of_other, dice)


def try_one(case: bytes) -> str:
    """Read a message as a connection does, look at it, and pass it on."""
    name, _, fields = case.partition(b"\n")
    try:
        found = unpack({**lines.parse(fields), "is": name.decode("utf-8", "replace")}, KINDS)
    except Garbled as garbled:
        text = str(garbled)
        assert text.isprintable() and len(text) <= MESSAGE_LENGTH, text
        return "no JSON" if text.startswith("no JSON") else pattern_of(text.partition(" needs ")[0])
    judge(type(found).__name__, found)
    try:
        setattr(found, "is", 1)
    except AttributeError:
        pass
    else:
        raise AssertionError("not frozen")
    again = unpack(lines.parse(lines.pack(pack(found))), KINDS)
    assert repr(again) == repr(found), "another when it is passed on"
    if isinstance(found, Join):
        assert len(json.dumps(vars(found))) < JOIN_BYTES
        compare({"a": vars(found), "b": vars(Join(1, "1"))})
    if isinstance(found, Verdict):
        for text in (render_text(found), render_json(found)):
            assert all(line.isprintable() for line in text.split("\n")), text
        assert len(json.dumps(render(fit(found)))) <= ROOM_BYTES
    return name_of(type(found))
