"""Platforms that are names of variables: a block of ``table.txt`` or ``nodes.txt`` each, read here.

The first are sources by themselves. Those of ``nodes.txt`` state three facts about nodes (source
``node_names``).
"""

from __future__ import annotations

from launcher.core import mpi
from launcher.core.blocks import read_blocks
from launcher.core.frozen import frozen
from launcher.core.model import Fact, Scope, Trust
from launcher.core.mpi import STARTED
from launcher.sources.reader import Reader

OF_A_PROCESS = ("RANK", "LOCAL_RANK", *STARTED)
"""If one of these is set, variables that users set too may have been passed on from another process."""
WORLD_SIZE = "WORLD_SIZE"
FIX = "pass --nnodes N --node-rank R"


@frozen
class Names:
    """The variables of a platform; its fields are described in ``table.txt``."""

    family: str
    count: str
    index: str
    hosts: str
    master: str
    domain: str
    port: str
    gpus: str
    role: str
    local_size: str
    local_rank: str
    processes: str
    note: str


SOURCES = read_blocks("sources/table.txt")
PLATFORMS = {block.name: block.make(Names) for block in SOURCES if block.fields.get("read") == "rows.read"}
NODES = tuple(block.make(Names) for block in read_blocks("sources/nodes.txt"))
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
        if not reader.has(names.count) and not reader.has(names.hosts):
            name = next(name for name in (names.index, names.role, names.master) if reader.has(name))
            reader.sign(name, f"pass {names.count} into the container too, or {FIX}")


def _read_process(reader: Reader, names: Names) -> None:
    """Claim a process of a starter, and its node as far as the starter tells."""
    family = getattr(mpi, names.family)
    _, size, local_rank, local_size = reader.claim_process(family.numbers())
    reader.confirm(names.local_rank, local_rank, family.local_rank)
    other = reader.claim_int(Fact.LOCAL_SIZE, names.local_size)
    local_size = local_size or other
    reader.claim_int(Fact.NODE_RANK, names.index)
    nodes = reader.claim_int(Fact.NODE_COUNT, names.count)
    if size and nodes and nodes in (1, size):  # every node in the count has a task
        local_size = size // nodes
        origin = f"{family.size}={size}, {names.count}={nodes}"
        reader.claim(Fact.LOCAL_SIZE, local_size, origin, Trust.DERIVED)
    if names.note and size != local_size:
        reader.note(names.note)


def read_node(reader: Reader) -> None:
    """Claim the facts of the first platform in `NODES` whose count and index are both set."""
    row = next((row for row in NODES if reader.has(row.count) and reader.has(row.index)), None)
    if row is None:
        for row in NODES:
            _claim_master(reader, row)
        return
    is_common = row.processes and not (row.gpus and reader.has(row.gpus))
    if is_common and any(reader.has(name) for name in OF_A_PROCESS):
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
    if not row.domain:
        reader.claim_host(Fact.MASTER_ADDR, row.master, Trust.DERIVED)
        return
    prefix, domain = reader.text(row.master), reader.text(row.domain)
    if prefix and domain:
        reader.claim(Fact.MASTER_ADDR, f"{prefix}-0.{domain}", f"{row.master}, {row.domain}", Trust.DERIVED)


def _divide_world(reader: Reader, row: Names, count: int) -> None:
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
