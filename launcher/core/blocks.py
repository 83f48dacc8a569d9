"""Data files of the package: blocks with a name, fields and items.

# a comment
[NAME]
field     its text, which may go on
          in the next line, behind blanks
- an item
"""

from __future__ import annotations

import os

from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

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


def read_blocks(path: str) -> list[Block]:
    """Return the blocks of a data file; ``path`` begins at the package's folder: ``failure/symptoms.txt``."""
    with open(os.path.join(PACKAGE, path), encoding="utf-8") as file:
        lines = [line for line in file.read().splitlines() if line and not line.startswith("#")]
    found: list[tuple[str, dict[str, str], list[str]]] = []
    field = ""
    for line in lines:
        if line.startswith("["):
            found.append((line[1:-1], {}, []))
            continue
        _, fields, items = found[-1]
        if line.startswith("- "):
            items.append(line[3:-1] if line[2] == line[-1] == '"' else line[2:])
        elif line.startswith(" "):
            fields[field] += f" {line.strip()}"
        else:
            field, _, text = line.partition(" ")
            fields[field] = text.strip()
    return [Block(name, fields, tuple(items)) for name, fields, items in found]
