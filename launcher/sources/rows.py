"""Platforms that are names of variables: a block of ``table.txt`` or ``nodes.txt`` each, read here.

The first are sources by themselves. Those of ``nodes.txt`` state three facts about nodes (source
``node_names``).
"""

from __future__ import annotations

from launcher.core import mpi
from launcher.core.blocks import read_blocks
from launcher.core.environ import Reader
from launcher.core.frozen import frozen
from launcher.core.model import Fact, Scope, Trust
from launcher.core.mpi import STARTED

OF_A_PROCESS = ("RANK", "LOCAL_RANK", *STARTED)
"""If one of these is set, variables that users set too may have been passed on from another process."""
WORLD_SIZE = "WORLD_SIZE"


@frozen
class Names:
    """The variables of a source; its fields are described in ``table.txt``."""

    family: str
    node_rank: str
    node_count: str
    local_size: str
    local_rank: str
    hosts: str
    gpus: str
    note: str


@frozen
class Node:
    """The variables of a platform that starts one launcher on each node; described in ``nodes.txt``."""

    count: str
    index: str
    master: str
    domain: str
    gpus: str
    processes: str


SOURCES = read_blocks("sources/table.txt")
PLATFORMS = {block.name: block.make(Names) for block in SOURCES if block.fields.get("read") == "rows.read"}
NODES = tuple(block.make(Node) for block in read_blocks("sources/nodes.txt"))
NODE_MARKERS = tuple(name for row in NODES for name in (row.count, row.master) if name)


def read(reader: Reader) -> None:
    """Claim what the variables of a platform state."""
    names = PLATFORMS[reader.source]
    family = getattr(mpi, names.family) if names.family else None
    size, local_rank, local_size = None, None, None
    if family is None:
        reader.starts = Scope.NODE
    else:
        _, size, local_rank, local_size = reader.claim_process(family.numbers())
        reader.confirm(names.local_rank, local_rank, family.local_rank)
        other = reader.claim_int(Fact.LOCAL_SIZE, names.local_size)
        local_size = local_size or other
    reader.claim_int(Fact.NODE_RANK, names.node_rank)
    nodes = reader.claim_int(Fact.NODE_COUNT, names.node_count)
    reader.claim_hosts(reader.hosts(names.hosts, None), names.hosts, master=Trust.DERIVED)
    reader.claim_int(Fact.PROCESSES_PER_NODE, names.gpus, trust=Trust.DERIVED)
    if family and size and nodes and nodes in (1, size):  # every node in the count has a task
        local_size = size // nodes
        origin = f"{family.size}={size}, {names.node_count}={nodes}"
        reader.claim(Fact.LOCAL_SIZE, local_size, origin, Trust.DERIVED)
    if names.note and size != local_size:
        reader.note(names.note)


def read_node(reader: Reader) -> None:
    """Claim the facts of the first platform in `NODES` whose count and index are both set."""
    row = next((row for row in NODES if reader.has(row.count) and reader.has(row.index)), None)
    if row is None:
        for row in NODES:
            _claim_first(reader, row)
        return
    is_common = row.processes and not (row.gpus and reader.has(row.gpus))
    if is_common and any(reader.has(name) for name in OF_A_PROCESS):
        return
    reader.starts = Scope.NODE
    count = reader.claim_int(Fact.NODE_COUNT, row.count)
    reader.claim_int(Fact.NODE_RANK, row.index)
    _claim_first(reader, row)
    if row.processes and count is not None:
        _divide_world(reader, row, count)
    reader.claim_int(Fact.PROCESSES_PER_NODE, row.gpus, trust=Trust.DERIVED)


def _claim_first(reader: Reader, row: Node) -> None:
    if not row.domain:
        reader.claim_host(Fact.MASTER_ADDR, row.master, Trust.DERIVED)
        return
    prefix, domain = reader.text(row.master), reader.text(row.domain)
    if prefix and domain:
        reader.claim(Fact.MASTER_ADDR, f"{prefix}-0.{domain}", f"{row.master}, {row.domain}", Trust.DERIVED)


def _divide_world(reader: Reader, row: Node, count: int) -> None:
    """Claim the number of processes per node if WORLD_SIZE is that of all nodes."""
    world, gpus = reader.integer(WORLD_SIZE, 1), reader.integer(row.gpus)
    if world is None or (world == count and not gpus):
        return  # a world size equal to the number of nodes may count nodes
    if gpus and world != count * gpus:
        what, other = f"{reader.origin(row.count)} x {reader.origin(row.gpus)}", row.gpus
    elif world % count:
        what, other = f"{reader.origin(row.count)}: expected the same number of processes on each", row.count
    else:
        origin = f"{reader.origin(WORLD_SIZE)} / {reader.origin(row.count)}"
        reader.claim(Fact.PROCESSES_PER_NODE, world // count, origin)
        return
    reader.contradict(WORLD_SIZE, other, what)
