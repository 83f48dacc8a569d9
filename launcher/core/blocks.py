"""Data files of the package: blocks with a name, fields and items, or rows of cells.

# a comment
[NAME]
field     its text, which may go on
          in the next line, behind blanks
- an item

a cell | the next cell, which may go on
          in the next line, too | another
"""

from __future__ import annotations

import os

from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeVar

    T = TypeVar("T")

NEXT_LINE = f"\n{' ' * 10}"
_read: dict[str, list[Block]] = {}
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@frozen
class Block:
    """One block; quotes around an item, which keep a blank at its end, are removed."""

    name: str
    fields: Mapping[str, str]
    items: tuple[str, ...]

    def words(self, name: str) -> tuple[str, ...]:
        """Return the words of a field; none without it."""
        return tuple(self.fields.get(name, "").split())

    def make(self, kind: type[T]) -> T:
        """Return a frozen value of texts: those of the fields of its names, or empty ones."""
        return kind(**{name: self.fields.get(name, "") for name in vars(kind)["__match_args__"]})


def read_blocks(path: str) -> list[Block]:
    """Return the blocks of a data file, which is read once.

    ``path`` begins at the package's directory: ``failure/symptoms.txt``.
    """
    if path in _read:
        return _read[path]
    with open(os.path.join(PACKAGE, path), encoding="utf-8") as file:
        texts = file.read().replace(NEXT_LINE, " ").split("\n[")
    blocks = []
    for text in texts[1:]:
        name, _, rest = text.partition("]\n")
        fields: dict[str, str] = {}
        items: list[str] = []
        for line in rest.split("\n"):
            key, _, value = line.partition(" ")
            if key == "-":
                items.append(value[1:-1] if value[0] == value[-1] == '"' else value)
            elif key and key != "#":
                fields[key] = value.lstrip()
        blocks.append(Block(name, fields, tuple(items)))
    return _read.setdefault(path, blocks)


def read_rows(path: str) -> list[list[str]]:
    """Return the cells of each row of a data file; ``path`` as for `read_blocks`."""
    with open(os.path.join(PACKAGE, path), encoding="utf-8") as file:
        lines = file.read().replace(NEXT_LINE, " ").split("\n")
    rows = [line for line in lines if "|" in line and not line.startswith("#")]
    return [[cell.strip() for cell in row.split("|")] for row in rows]
