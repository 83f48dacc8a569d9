"""Reads the sources, which detect how this process started: a file per environment, or names of variables.

The table of the sources is ``table.txt``, which says what its fields mean.

To add an environment: one file with ``read(reader)`` (none if it is only names), a block in ``table.txt``,
one golden case.
"""

from __future__ import annotations

import sys

from launcher.core.errors import make_error
from launcher.core.frozen import frozen
from launcher.core.mpi import expand
from launcher.sources import rows, signs
from launcher.sources.reader import Reader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from launcher.core.model import Evidence
    from launcher.machine.host import Host

    Read = Callable[[Reader], None]


@frozen
class SourceRow:
    """A source: its name, its markers, and its module and function (``rows.read``)."""

    name: str
    markers: tuple[str, ...]
    read: str
    starts: tuple[str, ...]
    ends: tuple[str, ...]

    def is_marked(self, environ: Mapping[str, str]) -> bool:
        """Whether a marker is among some variables, none of which is empty."""
        starts, ends = self.starts, self.ends
        is_like = (starts or ends) and any(name.startswith(starts) or name.endswith(ends) for name in environ)
        return bool(is_like) or not environ.keys().isdisjoint(self.markers)


def make_row(name: str, markers: tuple[str, ...], read: str) -> SourceRow:
    """Return a source; a marker with a star is any name that begins or ends so."""
    starts = tuple(marker[:-1] for marker in markers if marker.endswith("*"))
    ends = tuple(marker[1:] for marker in markers if marker.startswith("*"))
    return SourceRow(name, markers, read, starts, ends)


MARKERS = {block.name: expand(block.words("markers")) for block in rows.SOURCES}
MARKERS |= {"node_names": rows.NODE_MARKERS, "signs": signs.MARKERS}
TABLE = tuple(make_row(b.name, MARKERS[b.name], b.fields.get("read", f"{b.name}.read")) for b in rows.SOURCES)


@frozen
class Gathered:
    """The evidence of all sources, innermost first, and the names of the variables that they read.

    ``around``: sources outside of one that seals. They only show whether that one's world is the whole job.
    """

    evidence: tuple[Evidence, ...]
    reads: tuple[str, ...]
    around: tuple[Evidence, ...] = ()


def gather(
    environ: Mapping[str, str],
    host: Host,
    only: str | None = None,
    *,
    starts_job: bool = False,
    node_count: int | None = None,
) -> Gathered:
    """Ask every source that has a marker, from the inside out.

    Args:
        environ: The environment to read.
        host: The machine, for the few sources that must compare addresses with it.
        only: Name of the only source to ask, or ``manual`` to ask none.
        starts_job: Whether we start the processes of all nodes.
        node_count: Number of nodes that the user asked for; None if not given.

    Raises:
        UsageError: ``only`` names no source.
        EnvironmentUntrusted: ``only`` names a source without a marker in the environment.
    """
    evidence: list[Evidence] = []
    around: list[Evidence] = []
    reads: set[str] = set()
    environ = {name: environ[name] for name in environ if environ[name]}
    for name, read in _choose(environ, only):
        reader = Reader(name, environ, host, node_count)
        reader.starts_job, reader.is_named, reader.read_before = starts_job, name == only, frozenset(reads)
        read(reader)
        is_sealed = bool(evidence) and evidence[-1].seals
        (around if is_sealed else evidence).append(reader.evidence())
        reads |= reader.names
        if reader.seals and name == TABLE[0].name:
            break  # the launcher around this one has asked the others
    return Gathered(tuple(evidence), tuple(sorted(reads)), tuple(around))


def _choose(environ: Mapping[str, str], only: str | None) -> Iterator[tuple[str, Read]]:
    """Yield the name and the read function of each source to ask; import each only when it is asked.

    A named source without a marker is refused: each node of a job would consider itself a single machine.
    """
    chosen = [row for row in TABLE if only in (None, row.name)]
    if not chosen and only not in (None, "manual"):
        raise make_error("unknown-source", source=only, known=", ".join(row.name for row in TABLE))
    for row in chosen:
        if row.is_marked(environ):
            module, _, function = row.read.partition(".")
            path = f"{__name__}.{module}"
            __import__(path)  # importlib imports warnings: 0.3 ms of every start
            yield row.name, getattr(sys.modules[path], function)
        elif only:
            raise make_error("source-absent", source=row.name, markers=", ".join(row.markers))
