"""Signs of several nodes or processes: variables that show them, but not which one this is.

The table is ``signs.txt``. A sign counts if no source identifies this node or process (see
`launcher.identity.allocation`): then the launcher stops, because a job of N nodes would otherwise run as N
jobs of one. Slots are not nodes, and the elements of a job array are separate jobs: neither is a sign.

Source: each platform's documentation of its variables; see docs/extending.md for adding a source.
"""

from __future__ import annotations

from launcher.core.blocks import read_blocks
from launcher.core.environ import Malformed, is_loopback, parse_int
from launcher.core.model import Fact, Trust
from launcher.core.mpi import JSRUN, expand
from launcher.machine.own_names import is_called
from launcher.sources.reader import Reader, short
from launcher.sources.rows import NODES, Names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NODE_FILE = "PBS_NODEFILE"
NODE_INDEX = "PBS_NODENUM"
LSF_HOSTS = (("LSB_MCPU_HOSTS", 2), ("LSB_HOSTS", 1))
"""Host lists, and the number of words in each entry; the first word is the host."""
LSF_SLOTS = "LSB_DJOB_NUMPROC"
TF_CONFIG = "TF_CONFIG"
BLOCKS = read_blocks("sources/signs.txt")
FIXES = {block.name: block.fields["text"] for block in BLOCKS if "text" in block.fields}
FLAGS, PBS_FIX, LSF_FIX = FIXES["flags"], FIXES["pbs"], FIXES["lsf"]
LIMITS = {"counts": 1, "nodes": 1, "sizes": 1, "indices": 0, "ranks": 0}
"""Kinds of signs that are numbers, and the largest number that is none."""
KINDS = (*LIMITS, "marks", "parts", "lists", "firsts")
OF_PROCESSES = ("sizes", "ranks", "parts")
"""Kinds that a job of one node shows, too."""


class Signs(Names):
    """A block of ``signs.txt``, or of ``nodes.txt``; ``kinds`` are its variables, each with its kind.

    ``names``: all variables of which one must be set; empty if some are only known by their end.
    """

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__(fields)
        words = {kind: expand(tuple(fields.get(kind, "").split())) for kind in KINDS}
        self.kinds = tuple((name, kind) for kind in KINDS for name in words[kind])
        names = {self.file, *(name for name, _ in self.kinds)}
        self.names = frozenset(names if all(name[:1] != "*" for name in names) else ())


def _read_table() -> Iterator[Signs]:
    for block in BLOCKS:
        rows = [row for row in NODES if not row.processes] if block.name == "nodes" else []
        yield from (Signs({"fix": "task", "counts": row.count, "indices": row.index}) for row in rows)
        if "fix" in block.fields:
            yield Signs(block.fields)


TABLE = tuple(_read_table())
HOST_FILES = (NODE_FILE, *(row.file for row in TABLE if row.file))
"""Variables that name a file with a host at the start of each line."""
MARKERS = (NODE_INDEX, *dict(LSF_HOSTS), LSF_SLOTS, *HOST_FILES, *(n for row in TABLE for n, _ in row.kinds))


def read(reader: Reader) -> None:
    """Report a sign for each platform whose variables show several nodes; claim the counts of nodes too."""
    if reader.has(TF_CONFIG):
        from launcher.sources.tensorflow import find_task

        task = find_task(reader.text(TF_CONFIG) or "")
        if task is None or task.names_several():
            return  # TF_CONFIG says more, also about a task without a rank
    for row in TABLE:
        if row.names and reader.environ.keys().isdisjoint(row.names):
            continue
        kinds = [(name, kind) for pattern, kind in row.kinds for name in _find_names(reader, row, pattern)]
        if not (kinds or row.file in reader.environ) or reader.has(row.unless):
            continue
        for name in [name for name, kind in kinds if kind == "nodes"]:
            reader.claim_int(Fact.NODE_COUNT, name)
        for name, kind in [pair for pair in kinds if _is_sign(reader, row, *pair)][:1]:
            reader.sign(name, FIXES[row.fix], of_nodes=kind not in OF_PROCESSES)
        is_counted = any(kind == "counts" for _, kind in kinds)
        if len(_read_file(reader, row.file, FIXES[row.fix], is_counted=is_counted)) > 1:
            reader.sign(row.file, FIXES[row.fix])
    _read_pbs(reader)
    _read_lsf(reader)


def _find_names(reader: Reader, row: Signs, pattern: str) -> list[str]:
    """Return the names that are set: one, or those with a suffix that no source has read."""
    names = [pattern] if pattern in reader.environ else []
    if pattern[0] == "*":
        others = tuple(row.besides.split())
        unread = (name for name in reader.unread(pattern[1:]) if not name.startswith(others))
        names = [name for name in unread if name not in MARKERS and "NUMA_" not in name]
    return [name for name in names if not row.besides or (reader.text(name) or "").strip().isdecimal()]


def _is_sign(reader: Reader, row: Signs, name: str, kind: str) -> bool:
    if kind in LIMITS:
        return is_above(reader, name, LIMITS[kind])
    text = reader.text(name) or ""
    if kind == "firsts":
        return not is_loopback(text) and short(text) != reader.own_name()
    return text.endswith(row.ends) if kind != "lists" else len(set(text.replace(",", " ").split())) > 1


def is_above(reader: Reader, name: str, limit: int) -> bool:
    """Whether a variable is a number above a limit, or not a number; an unset one is 0."""
    try:
        return parse_int(reader.text(name) or "0") > limit
    except Malformed:
        return True


def _read_file(reader: Reader, name: str, fix: str, *, is_counted: bool) -> set[str]:
    """Return the hosts at the start of the lines of a file; an unreadable one is a sign, unless counted."""
    path = reader.text(name)
    lines = (reader.host.read_text(path) or "").splitlines() if path is not None else []
    hosts = {line.split()[0] for line in lines if line.strip()}
    if path is not None and not hosts and not is_counted:
        fix = f"cannot read this file, which lists the hosts: {fix}"
        reader.sign(name, fix, of_nodes=False)
    return hosts


def _read_pbs(reader: Reader) -> None:
    # One line per slot: hosts repeat. Only the first host has the file, and pbsdsh passes on no variables
    index = reader.text(NODE_INDEX)
    number = reader.integer(NODE_INDEX) if (index or "").isdecimal() else None
    if number is not None and reader.node_count != 1:
        reader.set_least(number, NODE_INDEX)
    if not reader.has(NODE_FILE):
        if index is not None:
            reader.sign(NODE_INDEX, PBS_FIX)
        return
    is_other = (index or "0") != "0"
    # Torque's numbers describe the first part of a request (nodes=1:ppn=8+3:ppn=2); PBS_NP counts all slots
    slots, first = reader.text("PBS_NP"), reader.text("PBS_NUM_PPN")
    fills_one = reader.text("PBS_NUM_NODES") == "1" and slots is not None and slots == first
    hosts = _read_file(reader, NODE_FILE, PBS_FIX, is_counted=is_other or fills_one)
    reader.most_nodes = len(hosts) if is_called(reader.host, *hosts) else None
    if len(hosts) > 1 or is_other:
        reader.sign(NODE_FILE, PBS_FIX)


def _read_lsf(reader: Reader) -> None:
    known = False
    for name, step in LSF_HOSTS:
        listed = tuple(dict.fromkeys((reader.text(name) or "").split()[::step]))
        known = known or bool(listed)
        reader.most_nodes = len(listed) if is_called(reader.host, *listed) else reader.most_nodes
        if len(listed) > 1:
            if not reader.read_before.intersection(dict(LSF_HOSTS)):  # else `lsf` knows where ranks are
                reader.claim(Fact.HOSTS, listed, name, Trust.INDIRECT)
            # jsrun's list begins with the launch node, which has no ranks
            reader.sign(name, LSF_FIX, of_nodes=not reader.has(JSRUN.rank[0]))
            return
    if not known and is_above(reader, LSF_SLOTS, 1):
        fix = f"pass {LSF_HOSTS[0][0]} too, these may be slots of one host; {LSF_FIX}"
        reader.sign(LSF_SLOTS, fix, of_nodes=False)
