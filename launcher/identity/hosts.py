"""The nodes of a job as the user lists them, and which of them this one is."""

from __future__ import annotations

import os

from launcher.core.environ import (
    OWN_PLACE,
    Malformed,
    Reader,
    each_once,
    is_host,
    parse_host_port,
    parse_int,
    shorten,
)
from launcher.core.errors import Problem, UsageError
from launcher.core.frozen import frozen
from launcher.core.model import Claim, Evidence, Fact, Trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.machine.host import Host
    from launcher.options.reading import Options

HOSTFILE_LIMIT_BYTES = 1 << 22
COUNTS = ("slots", "cpu", "count")
"""What Open MPI calls the number of processes on a host."""
LINES = "one host per line, node 0 first: NAME, NAME slots=N or NAME:N"
NAMED_MAX = 8
"""Of this node's names and addresses, in a message."""


@frozen
class Listed:
    """A list of hosts, how it was given, and the processes on each if it says so."""

    hosts: tuple[str, ...]
    origin: str
    per_node: int | None = None


def read_listed(
    options: Options, host: Host, evidence: Sequence[Evidence], *, leads: bool
) -> Evidence | None:
    """Return what a list of hosts says: the nodes, the first as the master, our own place.

    A list that the user gives beats what platforms say. Where one command starts the whole job from node 0
    (``leads``), the list of a platform (a batch script of Slurm) is enough for this node to find its place.

    Raises:
        UsageError: Two lists, a file that cannot be read, or lines that are none of a hostfile.
    """
    listed = _read_options(options, host)
    reader = Reader("manual", {}, host)
    if listed is not None:
        reader.claim(Fact.HOSTS, listed.hosts, listed.origin, Trust.ASKED)
        reader.claim(Fact.NODE_COUNT, len(listed.hosts), listed.origin, Trust.ASKED)
        reader.claim(Fact.MASTER_ADDR, listed.hosts[0], listed.origin, Trust.ASKED)
        if listed.per_node is not None:
            reader.claim(Fact.PROCESSES_PER_NODE, listed.per_node, listed.origin, Trust.STATED)
        if options.get("node_rank") is None:
            _claim_place(reader, listed, Trust.ASKED)
        return reader.evidence()
    found = next((claim for item in evidence for claim in item.claims if claim.fact is Fact.HOSTS), None)
    if found is None or not leads or _knows_place(evidence, options):
        return None
    assert isinstance(found.value, tuple)  # noqa: S101 - hosts are
    _claim_place(reader, Listed(found.value, found.origin), Trust.DERIVED)
    reader.claim(Fact.NODE_COUNT, len(found.value), found.origin, Trust.DERIVED)
    return reader.evidence()


def require_hosts(options: Options, evidence: Sequence[Evidence], who: str) -> None:
    """Make sure that the nodes are named on which ``who`` is to start processes, if there are several.

    Raises:
        UsageError: They are not.
    """
    facts = {claim.fact for item in evidence for claim in item.claims}
    asked = options.get("nnodes")
    if asked is not None and isinstance(asked.value, int) and asked.value > 1 and Fact.HOSTS not in facts:
        raise UsageError(no_hosts(asked.value, who))


def no_hosts(count: int, who: str) -> Problem:
    """Return that the nodes are not named on which ``who`` is to start processes."""
    return Problem(
        "no-hosts",
        f"{who} is to start processes on {count} nodes, and nothing names them",
        "command line and environment",
        "pass --hosts HOST,... or --hostfile FILE, node 0 first, on every node",
    )


def _knows_place(evidence: Sequence[Evidence], options: Options) -> bool:
    claims: list[Claim] = [claim for item in evidence for claim in item.claims]
    return options.get("node_rank") is not None or any(
        claim.fact in (Fact.NODE_RANK, Fact.RANK) for claim in claims
    )


def _claim_place(reader: Reader, listed: Listed, trust: Trust) -> None:
    places = reader.host.own_places(listed.hosts)
    if len(places) == 1:
        reader.claim(
            Fact.NODE_RANK, places[0], f"{OWN_PLACE}{listed.hosts[places[0]]} in {listed.origin}", trust
        )
        return
    known = sorted(reader.host.own_addresses())
    own = ", ".join(known[:NAMED_MAX]) + (", ..." if len(known) > NAMED_MAX else "")
    found = f"{'several' if places else 'none'} of this node's names and addresses ({own})"
    reader.sign(listed.origin, f"{found} stand in it: pass --node-rank R, the place in the list")


def _read_options(options: Options, host: Host) -> Listed | None:
    typed, file = options.get("hosts"), options.get("hostfile")
    if typed is not None and file is not None:
        raise UsageError(
            Problem(
                "two-host-lists",
                f"{typed.origin} and {file.origin}: one list of nodes expected",
                "command line and environment",
                "leave out one of them",
            )
        )
    if typed is not None:
        return Listed(options.words("hosts"), typed.origin)
    return None if file is None else read_hostfile(str(file.value), file.origin, host, is_typed=file.is_typed)


def read_hostfile(path: str, origin: str, host: Host, *, is_typed: bool = False) -> Listed:
    """Return the hosts of a file: a name per line, ``name slots=2``, ``name:2``, or ``name 2``; # comments.

    MVAPICH has a third part, ``name:2:card``. Words may stand apart by blanks or tabs, also around ``=``, as
    mpiruns have it.

    Args:
        path: Of the file.
        origin: How it was named.
        host: This node.
        is_typed: Whether the user has typed its path. Then it may be a pipe, as of ``<(command)``, and
            what is wrong in it is quoted. A path of the environment can be any file that we may read: none of
            its text is shown.

    Raises:
        UsageError: It cannot be read, holds no host, or other lines, or numbers that differ.
    """
    try:
        text = _read_whole(os.path.abspath(path), origin, host, is_typed)
        entries = list(_parse_lines(text, origin, is_quoted=is_typed))
        if not entries:
            raise Malformed("one host at least, and no line names one")
    except Malformed as error:
        raise UsageError(_bad_file(f"{origin}: expected {error}")) from error
    try:
        hosts = each_once(name for name, _ in entries)
    except Malformed as error:
        expected = error if is_typed else "hosts that occur once each"
        raise UsageError(_bad_file(f"{origin}: expected {expected}")) from error
    counts = {count for _, count in entries if count is not None}
    if len(counts) > 1:
        what = f"{origin}: from {min(counts)} to {max(counts)} processes: expected as many on each node"
        raise UsageError(_bad_file(what))
    return Listed(hosts, origin, counts.pop() if counts else None)


def _read_whole(path: str, origin: str, host: Host, is_typed: bool) -> str:
    """Return a file's text.

    Raises:
        UsageError: It cannot be read.
        Malformed: It is longer than any list of nodes: half of one is another job.
    """
    from launcher.machine.whole import PIPE_S

    try:
        data = host.read_whole(path, HOSTFILE_LIMIT_BYTES, PIPE_S if is_typed else 0.0)
    except OSError as error:
        fix = "a file that is there on this node; --hosts HOST,... takes the names themselves"
        raise UsageError(_bad_file(f"{origin}: {error.strerror}", fix)) from error
    if len(data) > HOSTFILE_LIMIT_BYTES:
        raise Malformed(f"at most {HOSTFILE_LIMIT_BYTES >> 20} MiB")
    return data.decode("utf-8", "surrogateescape")


def _parse_lines(text: str, origin: str, *, is_quoted: bool) -> Iterator[tuple[str, int | None]]:
    """Yield the hosts of a file, with the number of processes.

    Raises:
        UsageError: A line is none of a hostfile.
    """
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if words:
            try:
                name, count = _parse_line(words)
                parse_host_port(name)
            except Malformed as error:
                found = f", {shorten(words)!r}: expected {error}" if is_quoted else f": expected {LINES}"
                what = f"{origin}, line {number}{found}"
                raise UsageError(_bad_file(what)) from error
            yield name, count


def _parse_line(line: str) -> tuple[str, int | None]:
    """Return the host of a line, and how many processes it has; words that say something else are left out.

    Raises:
        Malformed: A number that is none.
    """
    name, *words = line.replace("=", " ").split() or [""]
    if name.count(":") in (1, 2) and not name.startswith("[") and not is_host(name):
        name, text, *_ = name.split(":")  # MVAPICH has its card third
        return name, parse_int(text, 1)
    for word, following in zip(words, (*words, "")[1:], strict=True):
        if word in COUNTS:
            return name, parse_int(following, 1)
    return name, parse_int(words[0], 1) if len(words) == 1 and words[0].isdecimal() else None


def _bad_file(what: str, fix: str = LINES) -> Problem:
    return Problem("malformed-hostfile", what, "command line and environment", fix)
