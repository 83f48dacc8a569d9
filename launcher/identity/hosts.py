"""Reads the user's list of the nodes of a job, and finds this node in it."""

from __future__ import annotations

import os

from launcher.core import environ
from launcher.core.environ import OWN_PLACE, Malformed, Source, each_once, is_host, parse_int, shorten
from launcher.core.errors import make_error
from launcher.core.frozen import frozen
from launcher.core.model import Evidence, Fact, Trust
from launcher.machine.own_names import own_places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.machine.host import Host
    from launcher.options.reading import Options

HOSTFILE_LIMIT_BYTES = 1 << 22
COUNTS = ("slots", "cpu", "count")
"""Open MPI's words for the number of processes on a host."""
NAMED_MAX = 8
"""Maximum number of this node's names and addresses in a message."""


@frozen
class Listed:
    """A list of hosts, its origin, and the number of processes on each host (None if not listed)."""

    hosts: tuple[str, ...]
    origin: str
    per_node: int | None = None


def read_listed(
    options: Options, host: Host, evidence: Sequence[Evidence], *, leads: bool
) -> Evidence | None:
    """Return the evidence in a list of hosts: the nodes, the first one as the master, and our own index.

    The user's list overrules platforms. If one command starts the whole job from node 0 (``leads``), a
    platform's list (in a Slurm batch script) is used too, so that this node finds its index. None if there is
    no list to use.

    Raises:
        UsageError: There are two lists, or the file cannot be read or is malformed.
        NotReady: The resolver has not answered in time (see `own_places`).
    """
    typed, file = options.get("hosts"), options.get("hostfile")
    if typed is not None and file is not None:
        raise make_error("two-host-lists", one=typed.origin, other=file.origin)
    listed = Listed(options.words("hosts"), typed.origin) if typed is not None else None
    if file is not None:
        listed = read_hostfile(str(file.value), file.origin, host, is_typed=file.is_typed)
    source = Source("manual")
    if listed is not None:
        source.claim_hosts(listed.hosts, listed.origin, Trust.ASKED, master=Trust.ASKED)
        if listed.per_node is not None:
            source.claim(Fact.PROCESSES_PER_NODE, listed.per_node, listed.origin, Trust.STATED)
        if options.get("node_rank") is None:
            _claim_place(source, host, listed, Trust.ASKED)
        return source.evidence()
    found = {claim.fact: claim for item in reversed(evidence) for claim in reversed(item.claims)}
    knows_place = options.get("node_rank") or not found.keys().isdisjoint((Fact.NODE_RANK, Fact.RANK))
    if Fact.HOSTS not in found or not leads or knows_place:
        return None
    hosts, origin = found[Fact.HOSTS].hosts, found[Fact.HOSTS].origin
    _claim_place(source, host, Listed(hosts, origin), Trust.DERIVED)
    source.claim(Fact.NODE_COUNT, len(hosts), origin, Trust.DERIVED)
    return source.evidence()


def require_hosts(options: Options, evidence: Sequence[Evidence], program: str) -> None:
    """Check that a list of hosts exists if ``--nnodes`` requests several nodes.

    Args:
        options: The user's options.
        evidence: Evidence of all sources.
        program: Name of the program that will start processes on these nodes.

    Raises:
        UsageError: There is no list.
    """
    facts = {claim.fact for item in evidence for claim in item.claims}
    asked = options.get("nnodes")
    if asked is not None and isinstance(asked.value, int) and asked.value > 1 and Fact.HOSTS not in facts:
        raise make_error("no-hosts", count=asked.value, program=program)


def _claim_place(source: Source, host: Host, listed: Listed, trust: Trust) -> None:
    places = own_places(host, listed.hosts)
    if len(places) == 1:
        origin = f"{OWN_PLACE}{listed.hosts[places[0]]} in {listed.origin}"
        source.claim(Fact.NODE_RANK, places[0], origin, trust)
        return
    known = sorted(host.own_addresses())
    own = ", ".join(known[:NAMED_MAX]) + (", ..." if len(known) > NAMED_MAX else "")
    found = f"{'several' if places else 'none'} of this node's names and addresses ({own})"
    source.sign(listed.origin, f"the list has {found}. Pass --node-rank R, the index of this node in it")


def read_hostfile(path: str, origin: str, host: Host, *, is_typed: bool = False) -> Listed:
    """Return the hosts in a file with lines ``name``, ``name slots=2``, ``name:2`` or ``name 2``.

    ``#`` begins a comment. MVAPICH has a third part, ``name:2:card``. Blanks and tabs separate words, also
    around ``=``, as for mpirun.

    Args:
        path: Path of the file.
        origin: Flag or variable that names it.
        host: This node.
        is_typed: Whether the user has typed the path. Then the file may be a pipe, as in ``<(command)``, and
            messages quote malformed lines. A path from the environment may be any file that we can read, so
            messages show none of its text.

    Raises:
        UsageError: It cannot be read, has no host, malformed lines or repeated hosts, or different numbers of
            processes.
    """
    entries = []
    for number, line in enumerate(_read_whole(os.path.abspath(path), origin, host, is_typed).splitlines(), 1):
        words = line.partition("#")[0].strip()
        try:
            if words:
                entries.append(_parse_line(words))
                environ.parse_host_port(entries[-1][0])
        except Malformed as error:
            place = f"{origin}, line {number}"
            if not is_typed:
                raise make_error("hidden-hostfile-line", place=place) from error
            found = f"{shorten(words)!r}: expected {error}"
            raise make_error("malformed-hostfile", place=place, found=found) from error
    counts = {count for _, count in entries if count is not None}
    try:
        hosts = each_once(name for name, _ in entries)
    except Malformed as error:
        found = f"expected {error if is_typed else 'at least one host, and each host only once'}"
        raise make_error("malformed-hostfile", place=origin, found=found) from error
    if len(counts) > 1:
        found = f"from {min(counts)} to {max(counts)} processes: expected the same number on every node"
        raise make_error("malformed-hostfile", place=origin, found=found)
    return Listed(hosts, origin, counts.pop() if counts else None)


def _read_whole(path: str, origin: str, host: Host, is_typed: bool) -> str:
    """Return a file's text.

    Raises:
        UsageError: It cannot be read, or is longer than any list of nodes. A truncated list would be another
            job.
    """
    from launcher.machine.files import PIPE_S

    try:
        data = host.read_whole(path, HOSTFILE_LIMIT_BYTES, PIPE_S if is_typed else 0.0)
    except OSError as error:
        raise make_error("unread-hostfile", place=origin, reason=error.strerror) from error
    if len(data) > HOSTFILE_LIMIT_BYTES:
        found = f"expected at most {HOSTFILE_LIMIT_BYTES >> 20} MiB"
        raise make_error("malformed-hostfile", place=origin, found=found)
    return data.decode("utf-8", "surrogateescape").removeprefix(environ.BOM)


def _parse_line(line: str) -> tuple[str, int | None]:
    """Return the host in a line and its number of processes (None if not given); other words are ignored.

    Raises:
        Malformed: The number is malformed.
    """
    name, *words = line.replace("=", " ").split() or [""]
    if name.count(":") in (1, 2) and not name.startswith("[") and not is_host(name):
        name, text, *_ = name.split(":")  # the third part is MVAPICH's card
        return name, parse_int(text, 1)
    for word, following in zip(words, (*words, "")[1:], strict=True):
        if word in COUNTS:
            return name, parse_int(following, 1)
    return name, parse_int(words[0], 1) if len(words) == 1 and words[0].isdecimal() else None
