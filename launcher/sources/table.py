"""Table of the sources: one block of ``table.txt`` per environment, which says what its fields mean."""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.mpi import expand
from launcher.sources import rows, signs


@frozen
class Row:
    """A source: its name, its markers, and its module and function (``rows.read``)."""

    name: str
    markers: tuple[str, ...]
    read: str


MARKERS = {block.name: expand(block.words("markers")) for block in rows.SOURCES}
MARKERS |= {"node_names": rows.NODE_MARKERS, "signs": signs.MARKERS}
TABLE = tuple(Row(b.name, MARKERS[b.name], b.fields.get("read", f"{b.name}.read")) for b in rows.SOURCES)
