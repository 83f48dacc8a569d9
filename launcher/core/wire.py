"""Messages: frozen values as JSON objects and back, checked by the annotations of their type.

A value from another process may be anything. `parse` returns a value of the requested type or raises
`Garbled`. It checks that each field is present, of its kind and in its range. It makes texts safe to show.

    @message
    class Ended:
        status: Status
        report: Verdict | None = None

    parse(Ended, {"status": 256})   # Garbled: status: expected 0 to 255

On the wire a message has the name of its type under ``"is"``: see `pack` and `unpack`.

An annotation is ``int``, ``bool``, ``str``, one of the names in `RULES`, a message type, one of these in
``tuple[X, ...]`` or ``Mapping[str, X]``, or any of them with ``| None``.
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.redact import is_search_over, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, TypeVar

    from typing_extensions import dataclass_transform

    T = TypeVar("T")
    Rule = Callable[[object], object]
    Status = int
    """An exit status, 0 to 255."""
    Signal = int
    """A signal number."""
    ExitCode = int
    """An exit status as `os.waitstatus_to_exitcode` returns it: -n for signal n."""
    NodeRank = int
    """Rank of a node."""
    Rank = int
    """Rank of a process; -1 if unknown."""
    Seconds = float
    """A duration in seconds."""
    Fact = str
    """A short text that many nodes have in common; a longer one is cut to `FACT_LENGTH` characters."""
    Facts = Mapping[str, str]
    """At most `FACTS_MAX` facts by name."""
    Word = str
    """One or more letters and digits."""
    Raw = str
    """A text without any change; it must not be shown."""
    Variables = Mapping[str, str | None]
    """Environment variables without any change."""
    Line = str
    """A text of at most `LINE_LENGTH` characters; a longer one is cut."""

OTHER_KEY = "another token"
"""Part of the reason for a failed handshake, from which the fix is chosen."""
NUMBER_BITS = 63
"""Enough for nanoseconds since 1970; a larger number is neither a time nor a PID."""
NODES_MAX = 1 << 20
RANKS_MAX = 1 << 24
SECONDS_MAX = 1e9
ITEMS_MAX = 1 << 16
TEXT_LENGTH, LINE_LENGTH = 1 << 14, 800
FACT_LENGTH, FACTS_MAX, WORD_LENGTH = 200, 64, 32
DEPTH_MAX = 32
"""Limit of nested lists and objects. Near Python's own limit they could be read but not passed on."""
FACTS_KEPT = 1 << 14
"""Size of the fact cache: hosts and addresses of a thousand nodes, and the facts that they share."""


class Garbled(ValueError):
    """The received data is not a valid message."""


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
    """Return a JSON object as a value of a message type; unknown fields are ignored.

    Raises:
        Garbled: It is not an object, or a field is missing, of another kind, or out of range.
    """
    if not isinstance(value, dict):
        raise Garbled(f"{kind.__name__}: expected an object, not {type(value).__name__}")
    fields = {}
    if kind not in _rules:
        _rules[kind] = {name: _rule_of(text) for name, text in kind.__annotations__.items()}
    for name, rule in _rules[kind].items():
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
    """Return a message as a JSON object."""
    return {name: _render(item) for name, item in vars(value).items()}


def pack(value: object) -> dict[str, object]:
    """Return a message as a JSON object with the name of its type, ready to send."""
    return {"is": name_of(type(value)), **render(value)}


def unpack(packed: Mapping[str, object], kinds: Sequence[type]) -> object:
    """Return a received object as a message of one of these types.

    Raises:
        Garbled: It is not a valid message of any of them.
    """
    name = packed.get("is")
    for kind in kinds:
        if name_of(kind) == name:
            return parse(kind, packed)
    raise Garbled("a message of an unknown kind")


def is_shallow(value: object, depth: int = DEPTH_MAX) -> bool:
    """Return whether lists and objects are nested at most ``depth`` levels deep."""
    if not isinstance(value, (dict, list)):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(is_shallow(item, depth - 1) for item in inner)


def name_of(kind: type) -> str:
    """Return the name of a message type on the wire."""
    return kind.__name__.lower()


def _render(value: object) -> object:
    if type(value).__name__ in _TYPES:
        return render(value)
    if isinstance(value, (tuple, list)):
        return [_render(item) for item in value]
    if isinstance(value, dict):
        return {name: _render(item) for name, item in value.items()}
    return value


def whole(low: int, high: int) -> Rule:
    """Return the rule for an integer from ``low`` to ``high``, both included."""

    def check(value: object) -> int:
        number: int = _expect(value, "a whole number", int)
        if not low <= number <= high:
            raise Garbled(f"expected {low} to {high}")
        return number

    return check


def safe_text(value: object) -> str:
    """Return a text without secrets and terminal control characters, cut to `TEXT_LENGTH`."""
    return quote(_text(value), TEXT_LENGTH)


def short_text(value: object) -> str:
    """Return a safe text, cut to the length of a line."""
    return quote(_text(value), LINE_LENGTH)


def fact(value: object) -> str:
    """Return a safe text, cut to the length of a fact; cached, because redaction tries a hundred patterns."""
    text = _text(value)
    if len(text) > FACT_LENGTH:
        return quote(text, FACT_LENGTH)
    if text not in _facts:
        if len(_facts) >= FACTS_KEPT:
            _facts.clear()  # the nodes of one job do not differ so much
        shown = quote(text, FACT_LENGTH)
        if is_search_over():
            return shown  # of another message it may be the whole text
        _facts[text] = shown
    return _facts[text]


def facts(value: object) -> Mapping[str, str]:
    """Return the first FACTS_MAX facts of an object."""
    return {fact(name): fact(text) for name, text in list(_object(value).items())[:FACTS_MAX]}


def word(value: object) -> str:
    """Return a text of letters and digits."""
    text = _text(value)
    if not text.isalnum() or len(text) > WORD_LENGTH:
        raise Garbled(f"expected 1 to {WORD_LENGTH} letters and digits")
    return text


def _expect(value: object, what: str, *kinds: type) -> Any:
    """Return a value that is of one of these types."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise Garbled(f"expected {what}, not {type(value).__name__}")
    return value


def _text(value: object) -> str:
    return str(_expect(value, "a text", str))


def seconds(value: object) -> float:
    """Return a duration in seconds."""
    number = _expect(value, "a number", int, float)
    if not 0 <= number <= SECONDS_MAX:
        raise Garbled(f"expected 0 to {SECONDS_MAX:g}")
    return float(number)


def variables(value: object) -> Mapping[str, str | None]:
    """Return variables without any change; None marks a variable to unset."""
    for text in _object(value).values():  # JSON names are always texts
        if text is not None:
            _text(text)
    return value  # type: ignore[return-value]


RULES: dict[str, Rule] = {
    "int": whole(-(1 << NUMBER_BITS), 1 << NUMBER_BITS),
    "bool": lambda value: _expect(value, "true or false", bool),
    "str": safe_text,
    "Line": short_text,
    "object": lambda value: value,
    "Fact": fact,
    "Facts": facts,
    "Word": word,
    "Raw": lambda value: _text(value),
    "Variables": variables,
    "Seconds": seconds,
    "Status": whole(0, 255),
    "ExitCode": whole(-64, 255),
    "Signal": whole(1, 64),
    "NodeRank": whole(0, NODES_MAX),
    "Rank": whole(-1, RANKS_MAX),
}
_TYPES: dict[str, type] = {}
_rules: dict[type, dict[str, Rule]] = {}
_facts: dict[str, str] = {}


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
    items: Sequence[object] = _expect(value, "a list", list, tuple)
    if len(items) > ITEMS_MAX:
        raise Garbled(f"expected at most {ITEMS_MAX} items")
    return items


def _object(value: object) -> dict[object, object]:
    found: dict[object, object] = _expect(value, "an object", dict)
    return found
