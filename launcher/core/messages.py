"""Frozen values as JSON objects, and back: what arrives is checked by the annotations of its type.

A value that comes from another process may be anything. `parse` returns a value of the type that was asked
for, or raises `Garbled`: each field is there, of its kind, in its range, and every text is safe to show.

    @message
    class Ended:
        status: Status
        report: Verdict | None = None

    parse(Ended, {"status": 256})   # Garbled: status: expected 0 to 255

An annotation is ``int``, ``bool``, ``str``, one of the names in `RULES`, a type that is a message, one of
these in ``tuple[X, ...]`` or ``Mapping[str, X]``, and any of them with ``| None``.
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.redact import printable, quote, redact

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from typing_extensions import dataclass_transform

    T = TypeVar("T")
    Rule = Callable[[object], object]
    Status = int
    """An exit status, 0 to 255."""
    Signal = int
    """The number of a signal."""
    NodeRank = int
    """Rank of a node."""
    Line = str
    """A text of at most `LINE_LENGTH` characters; what is longer is cut."""

NUMBER_BITS = 63
"""Nanoseconds since 1970 fit; what does not can be neither a time nor a process."""
NODES_MAX = 1 << 20
ITEMS_MAX = 1 << 16
LINE_LENGTH = 800


class Garbled(ValueError):
    """What came is no message of ours."""


if TYPE_CHECKING:

    @dataclass_transform(frozen_default=True)
    def message(cls: type[T]) -> type[T]:
        """Make a class a frozen value that `parse` and `render` know."""
        return cls

else:

    def message(cls):
        """Make a class a frozen value that `parse` and `render` know."""
        if _TYPES.setdefault(cls.__name__, cls) is not cls:
            raise TypeError(f"two messages are called {cls.__name__}")
        return frozen(cls)


def parse(kind: type[T], value: object) -> T:
    """Return a JSON object as a value of a message's type; unknown fields are left out.

    Raises:
        Garbled: It is no object, or a field is missing, of another kind, or out of range.
    """
    if not isinstance(value, dict):
        raise Garbled(f"{kind.__name__}: expected an object, not {type(value).__name__}")
    fields = {}
    for name, rule in _rules_of(kind).items():
        if name in value:
            try:
                fields[name] = rule(value[name])
            except Garbled as wrong:
                raise Garbled(f"{kind.__name__}.{name}: {wrong}") from None
    try:
        return kind(**fields)
    except (TypeError, ValueError) as wrong:
        raise Garbled(f"{kind.__name__}: {wrong}") from None


def render(value: object) -> dict[str, object]:
    """Return a message as what JSON can hold."""
    return {name: _render(item) for name, item in vars(value).items()}


def _render(value: object) -> object:
    if type(value).__name__ in _TYPES:
        return render(value)
    if isinstance(value, (tuple, list)):
        return [_render(item) for item in value]
    if isinstance(value, dict):
        return {name: _render(item) for name, item in value.items()}
    return value


def whole(low: int, high: int) -> Rule:
    """Return the rule of a whole number from ``low`` to ``high``, both included."""

    def check(value: object) -> int:
        if type(value) is not int:  # True is an int to isinstance
            raise Garbled(f"expected a whole number, not {type(value).__name__}")
        if not low <= value <= high:
            raise Garbled(f"expected {low} to {high}")
        return value

    return check


def safe_text(value: object) -> str:
    """Return a text without secrets and without what a terminal obeys."""
    return printable(redact(_text(value)))


def short_text(value: object) -> str:
    """Return the same, not longer than a line."""
    return quote(_text(value), LINE_LENGTH)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Garbled(f"expected a text, not {type(value).__name__}")
    return value


def truth(value: object) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise Garbled(f"expected true or false, not {type(value).__name__}")
    return value


RULES: dict[str, Rule] = {
    "int": whole(-(1 << NUMBER_BITS), 1 << NUMBER_BITS),
    "bool": truth,
    "str": safe_text,
    "Line": short_text,
    "object": lambda value: value,
    "Status": whole(0, 255),
    "Signal": whole(1, 64),
    "NodeRank": whole(0, NODES_MAX),
}
_TYPES: dict[str, type] = {}
_rules: dict[type, dict[str, Rule]] = {}


def _rules_of(kind: type) -> dict[str, Rule]:
    if kind not in _rules:
        _rules[kind] = {name: _rule_of(text) for name, text in kind.__annotations__.items()}
    return _rules[kind]


def _rule_of(annotation: str) -> Rule:
    """Return the rule that an annotation stands for."""
    name, bar, _ = annotation.partition(" | None")
    if bar:
        inner = _rule_of(name)
        return lambda value: None if value is None else inner(value)
    if name.startswith("tuple["):
        item = _rule_of(name[len("tuple[") : -len(", ...]")])
        return lambda value: tuple(item(one) for one in _list(value))
    if name.startswith("Mapping[str, "):
        item = _rule_of(name[len("Mapping[str, ") : -1])
        return lambda value: {safe_text(key): item(one) for key, one in _object(value).items()}
    if name in RULES:
        return RULES[name]
    kind = _TYPES[name]
    return lambda value: parse(kind, value)


def _list(value: object) -> Sequence[object]:
    if not isinstance(value, (list, tuple)):
        raise Garbled(f"expected a list, not {type(value).__name__}")
    if len(value) > ITEMS_MAX:
        raise Garbled(f"expected at most {ITEMS_MAX} items")
    return value


def _object(value: object) -> dict[object, object]:
    if not isinstance(value, dict):
        raise Garbled(f"expected an object, not {type(value).__name__}")
    return value
