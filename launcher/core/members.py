"""Enumerations without the cost of `enum`.

`enum` loads functools, collections and operator; with its classes that takes 5 ms of every start. The launch
path needs only the features here: members with a name and a value, one instance each, iteration in order, and
lookup by value. Type checkers see ordinary enumerations.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from enum import Enum, IntEnum
else:

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


__all__ = ["Enum", "IntEnum"]
