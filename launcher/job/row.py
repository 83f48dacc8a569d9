"""A row of values that never changes: a copy with one other value costs little, however long the row is."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Generic, TypeVar

    T = TypeVar("T")
else:
    T, Generic = None, {None: object}  # `typing` takes long to load

BLOCK = 128
"""Number of values that are copied to change one of them."""


class FrozenRow(Generic[T]):
    """Values by their place."""

    __slots__ = ("_blocks", "_length")

    def __init__(self, values: Iterable[T]) -> None:
        every = tuple(values)
        self._length = len(every)
        self._blocks = tuple(every[first : first + BLOCK] for first in range(0, len(every), BLOCK))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: int) -> T:
        return self._blocks[place // BLOCK][place % BLOCK]

    def __iter__(self) -> Iterator[T]:
        for block in self._blocks:
            yield from block

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrozenRow) and self._blocks == other._blocks

    def __hash__(self) -> int:
        return hash(self._blocks)

    def __repr__(self) -> str:
        return f"Row({list(self)})"

    def put(self, place: int, value: T) -> FrozenRow[T]:
        """Return a row with another value at a place."""
        changed: FrozenRow[T] = FrozenRow.__new__(FrozenRow)
        number, inside = divmod(place, BLOCK)
        block = self._blocks[number]
        block = (*block[:inside], value, *block[inside + 1 :])
        changed._length = self._length
        changed._blocks = (*self._blocks[:number], block, *self._blocks[number + 1 :])
        return changed
