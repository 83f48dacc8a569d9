"""Platforms that are names of variables: a block of ``table.txt`` or ``nodes.txt`` each, read here.

The first are sources by themselves. Those of ``nodes.txt`` state three facts about nodes (source
``node_names``).
"""

from __future__ import annotations

from launcher.core import mpi
from launcher.core.blocks import read_blocks
from launcher.core.model import Fact, Scope, Trust
from launcher.sources.reader import Reader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

WORLD_SIZE = "WORLD_SIZE"
FIX = "pass --nnodes N --node-rank R"


class Names:
    """The variables of a platform by their fields, which ``table.txt`` describes; empty without a field."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        vars(self).update(fields)

    def __getattr__(self, field: str) -> str:
        return ""


SOURCES = read_blocks("sources/table.txt")
PLATFORMS = {block.name: Names(block.fields) for block in SOURCES if block.fields.get("read") == "rows.read"}
NODES = tuple(Names(block.fields) for block in read_blocks("sources/nodes.txt"))
NODE_MARKERS = tuple(name for row in NODES for name in (row.count, row.master) if name)


def read(reader: Reader) -> None:
    """Claim what the variables of a platform state about this process or this node."""
    names = PLATFORMS[reader.source]
    if names.family:
        _read_process(reader, names)
    elif names.role and (reader.text(names.role) or "worker").lower() != "worker":
        reader.sign(names.role, f"only workers have ranks: start the launcher there, or {FIX}")
    else:
        _claim_nodes(reader, names)
        if not reader.has(names.count, names.hosts):
            name = reader.first(names.index, names.role, names.master) or ""
            reader.sign(name, f"pass {names.count} into the container too, or {FIX}")


def _read_process(reader: Reader, names: Names) -> None:
    """Claim a process of a starter, and its node as far as the starter tells."""
    family = getattr(mpi, names.family)
    _, size, local_rank, local_size = reader.claim_process(family.numbers())
    reader.confirm(names.local_rank, local_rank, family.local_rank)
    local_size = reader.claim_int(Fact.LOCAL_SIZE, names.local_size) or local_size
    _, nodes = reader.claim_numbers(((Fact.NODE_RANK, names.index), (Fact.NODE_COUNT, names.count)))
    if size and nodes and nodes in (1, size):  # every node in the count has a task
        local_size = size // nodes
        origin = f"{family.size}={size}, {names.count}={nodes}"
        reader.claim(Fact.LOCAL_SIZE, local_size, origin, Trust.DERIVED)
    if names.note and size != local_size:
        reader.note(names.note)


def read_node(reader: Reader) -> None:
    """Claim the facts of the first platform in `NODES` whose count and index are both set."""
    row = next((row for row in NODES if reader.has(row.count) and reader.has(row.index)), None)
    for other in NODES if row is None else ():
        _claim_master(reader, other)
    # Variables that users set too may have been passed on from another process
    is_common = row is not None and row.processes and not reader.has(row.gpus)
    if row is None or (is_common and (reader.is_started() or reader.has("RANK", "LOCAL_RANK"))):
        return
    count = _claim_nodes(reader, row)
    if row.processes and count is not None:
        _divide_world(reader, row, count)


def _claim_nodes(reader: Reader, row: Names) -> int | None:
    """Claim a node with one launcher; return the number of nodes."""
    reader.starts = Scope.NODE
    count = reader.claim_int(Fact.NODE_COUNT, row.count)
    reader.claim_int(Fact.NODE_RANK, row.index)
    hosts = reader.hosts(row.hosts, "," if "," in (reader.text(row.hosts) or "") else None)
    if count != 1:
        _claim_master(reader, row)
        reader.claim_int(Fact.MASTER_PORT, row.port)
    reader.claim_hosts(hosts, row.hosts, master=Trust.DERIVED if len(hosts) > 1 else None)
    reader.claim_int(Fact.PROCESSES_PER_NODE, row.gpus, trust=Trust.DERIVED)
    return count


def _claim_master(reader: Reader, row: Names) -> None:
    prefix, domain = reader.text(row.master), reader.text(row.domain)
    if not row.domain:
        reader.claim_host(Fact.MASTER_ADDR, row.master, Trust.DERIVED)
    elif prefix and domain:
        reader.claim(Fact.MASTER_ADDR, f"{prefix}-0.{domain}", f"{row.master}, {row.domain}", Trust.DERIVED)


def _divide_world(reader: Reader, row: Names, count: int) -> None:
    """Claim the number of processes per node if WORLD_SIZE is that of all nodes."""
    world, gpus = reader.integer(WORLD_SIZE, 1), reader.integer(row.gpus)
    if world is None or (world == count and not gpus):
        return  # a world size equal to the number of nodes may count nodes
    nodes = reader.origin(row.count)
    if gpus and world != count * gpus:
        reader.contradict(WORLD_SIZE, row.gpus, f"{nodes} x {reader.origin(row.gpus)}")
    elif world % count:
        reader.contradict(WORLD_SIZE, row.count, f"{nodes}: expected the same number of processes on each")
    else:
        reader.claim(Fact.PROCESSES_PER_NODE, world // count, f"{reader.origin(WORLD_SIZE)} / {nodes}")
