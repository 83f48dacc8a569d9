"""Frozen values without the cost of `dataclasses`, and enumerations without that of `enum`.

`dataclasses` imports `inspect` and compiles six methods per class. With it a start of this package took
26 ms more than a bare Python, without it 14 ms (benchmarks/RESULTS.md). The launch path needs only the
features here: fields in order, defaults, ``__post_init__``, equality, hashing, a repr, and no
assignment. Type checkers see an ordinary frozen dataclass.

`enum` loads functools, collections and operator; with its classes that takes 5 ms of every start. The launch
path needs only the features here: members with a name and a value, one instance each, iteration in order, and
lookup by value. Type checkers see ordinary enumerations.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from enum import Enum, IntEnum
    from typing import TypeVar

    from typing_extensions import dataclass_transform

    T = TypeVar("T")

    @dataclass_transform(frozen_default=True)
    def frozen(cls: type[T]) -> type[T]:
        """Make a class a frozen value: its annotations are its fields."""
        return cls

else:

    def frozen(cls):
        """Make a class a frozen value: its annotations are its fields; its own repr is kept."""
        cls.__match_args__ = names = tuple(cls.__annotations__)
        cls._defaults = {name: getattr(cls, name) for name in names if hasattr(cls, name)}
        cls._tail = tuple(cls._defaults.values())
        for name in ("__init__", "_misfit", "__setattr__", "__delattr__", "__eq__", "__hash__"):
            setattr(cls, name, _Value.__dict__[name])
        for name in ("__post_init__", "__repr__"):
            if name not in cls.__dict__:
                setattr(cls, name, _Value.__dict__[name])
        return cls


def replace(value: T, **changes: object) -> T:
    """Return a new, checked copy of a frozen value with some fields changed.

    Raises:
        TypeError: The value has no such field.
    """
    fields = vars(value)
    if not fields.keys() >= changes.keys():
        return type(value)(**{**fields, **changes})  # which raises
    changed = object.__new__(type(value))
    vars(changed).update(fields, **changes)  # not field by field: a controller copies its state at each step
    check = getattr(changed, "__post_init__", None)
    if check is not None:
        check()
    return changed


class _Value:
    """The methods that `frozen` adds to a class."""

    __match_args__: tuple[str, ...] = ()
    _defaults: dict[str, object] = {}  # noqa: RUF012 - one per class, made by `frozen`
    _tail: tuple[object, ...] = ()

    def __init__(self, *args: object, **kwargs: object) -> None:
        names, fields = self.__match_args__, self.__dict__
        left = len(names) - len(args)
        if not kwargs and 0 <= left <= len(self._tail):
            fields.update(zip(names, args + self._tail[len(self._tail) - left :]))  # noqa: B905 - as many
        else:
            given = {**self._defaults, **dict(zip(names, args)), **kwargs}  # noqa: B905 - some have defaults
            is_twice = args and not kwargs.keys().isdisjoint(names[: len(args)])
            if len(given) != len(names) or len(args) > len(names) or is_twice:
                raise self._misfit(args, kwargs)
            try:
                for name in names:
                    fields[name] = given[name]
            except KeyError:
                raise self._misfit(args, kwargs) from None
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check the values; most classes have nothing to check."""

    def _misfit(self, args: tuple[object, ...], kwargs: dict[str, object]) -> TypeError:
        name, names = type(self).__name__, self.__match_args__
        missing = [n for n in names[len(args) :] if n not in kwargs and n not in self._defaults]
        if len(args) > len(names) or kwargs.keys() - set(names[len(args) :]):
            return TypeError(f"{name} takes {', '.join(names)}, each once")
        return TypeError(f"{name} needs {', '.join(missing)}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} is frozen")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} is frozen")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({fields})"


if not TYPE_CHECKING:

    class _Members(type):
        """Metaclass that turns each public attribute of a class body into the only instance of its value."""

        def __new__(cls, name: str, bases: tuple[type, ...], space: dict[str, object]) -> _Members:
            values = {key: value for key, value in space.items() if key[0] != "_" and not callable(value)}
            rest = {key: value for key, value in space.items() if key not in values}
            made = super().__new__(cls, name, bases, rest)
            for key, value in values.items():
                member = made.__new__(made, value) if issubclass(made, int) else made.__new__(made)
                member.name, member.value = key, value
                type.__setattr__(made, key, member)
            made._members = [getattr(made, key) for key in values]
            return made

        def __iter__(cls):
            return iter(cls._members)

        def __call__(cls, value: object) -> object:
            for member in cls._members:
                if member.value == value:
                    return member
            raise ValueError(f"{value!r} is no {cls.__name__}")

    class Enum(metaclass=_Members):
        def __repr__(self) -> str:
            return f"{type(self).__name__}.{self.name}"

        __str__ = __repr__

    class IntEnum(int, Enum):
        __repr__ = __str__ = Enum.__repr__


__all__ = ["Enum", "IntEnum", "frozen", "replace"]
