"""Table of the sources: one block of ``table.txt`` per environment. The file's head explains the fields."""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.mpi import expand
from launcher.sources import rows, signs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


@frozen
class Row:
    """A source: its name, its markers, and its module and function (``rows.read``)."""

    name: str
    markers: tuple[str, ...]
    read: str


MARKERS = {block.name: expand(block.words("markers")) for block in rows.SOURCES}
MARKERS |= {"node_names": rows.NODE_MARKERS, "signs": signs.MARKERS}
TABLE = tuple(Row(b.name, MARKERS[b.name], b.fields.get("read", f"{b.name}.read")) for b in rows.SOURCES)
WHOLE: dict[str, list[str]] = {}
"""Markers without a star, and the sources of each."""
for row in TABLE:
    for marker in row.markers:
        WHOLE.setdefault(marker, []).append(row.name)
PARTS = tuple(
    (
        row.name,
        tuple(marker[:-1] for marker in row.markers if marker.endswith("*")),
        tuple(marker[1:] for marker in row.markers if marker.startswith("*")),
    )
    for row in TABLE
    if any("*" in marker for marker in row.markers)
)
"""Sources with markers that have a star: the beginnings and the ends of names."""


def find_marked(environ: Mapping[str, str]) -> set[str]:
    """Return the sources that have a marker among some variables, none of which is empty."""
    found = {source for name in environ for source in WHOLE.get(name, ())}
    for source, starts, ends in PARTS:
        if any(name.startswith(starts) or name.endswith(ends) for name in environ):
            found.add(source)
    return found
