"""Platforms that state three facts: the number of nodes, the index of this one, and the host of the first.

One launcher per node. The names are a table in `launcher.sources.signs`: if the count or the index of a row
is missing, its other variables are signs. So is another node as the first one.

Source: lws.sigs.k8s.io "Labels, annotations and environment variables"; beaker-docs.apps.allenai.org
"Environment variables"; dstack.ai "Distributed tasks"; docs.nvidia.com DGX Cloud Lepton "Environment
variables reference"; Metaflow `@parallel` (`parallel_decorator.py`); docs.runpod.io "Instant Clusters,
configuration reference"; tencentcloud.com BatchCompute "Environment variables" (document 599/11752).
"""

from __future__ import annotations

from launcher.core.environ import Reader
from launcher.core.model import Fact, Scope, Trust
from launcher.core.mpi import STARTED
from launcher.sources.signs import NODES, Names

OF_A_PROCESS = ("RANK", "LOCAL_RANK", *STARTED)
"""If one of these is set, variables that users set too may have been passed on from another process."""
WORLD_SIZE = "WORLD_SIZE"


def read(reader: Reader) -> None:
    """Claim the facts of the first platform whose count and index are both set."""
    row = next((row for row in NODES if reader.has(row.count) and reader.has(row.index)), None)
    if row is None:
        for row in NODES:
            _claim_first(reader, row)
        return
    is_common = row.processes and not (row.gpus and reader.has(row.gpus))
    if is_common and any(reader.has(name) for name in OF_A_PROCESS):
        return
    reader.starts = Scope.NODE
    count = reader.claim_int(Fact.NODE_COUNT, row.count, 1)
    reader.claim_int(Fact.NODE_RANK, row.index)
    _claim_first(reader, row)
    if row.processes and count is not None:
        _divide_world(reader, row, count)
    if row.gpus:
        reader.claim_int(Fact.PROCESSES_PER_NODE, row.gpus, 0, Trust.DERIVED)


def _claim_first(reader: Reader, row: Names) -> None:
    if row.master and not row.domain:
        reader.claim_host(Fact.MASTER_ADDR, row.master, Trust.DERIVED)
        return
    prefix, domain = reader.text(row.master), reader.text(row.domain)
    if prefix and domain:
        reader.claim(Fact.MASTER_ADDR, f"{prefix}-0.{domain}", f"{row.master}, {row.domain}", Trust.DERIVED)


def _divide_world(reader: Reader, row: Names, count: int) -> None:
    """Claim the number of processes per node if WORLD_SIZE is that of all nodes."""
    world, gpus = reader.integer(WORLD_SIZE, 1), reader.integer(row.gpus) if row.gpus else None
    if world is None or (world == count and not gpus):
        return  # a world size equal to the number of nodes may count nodes
    if gpus and world != count * gpus:
        reader.problem(
            "contradiction",
            f"{reader.origin(WORLD_SIZE)} but {reader.origin(row.count)} x {reader.origin(row.gpus)}",
            f"correct or unset {WORLD_SIZE} or {row.gpus}",
        )
    elif world % count:
        reader.problem(
            "contradiction",
            f"{reader.origin(WORLD_SIZE)} but {reader.origin(row.count)}: "
            "expected the same number of processes on each",
            f"correct or unset {WORLD_SIZE} or {row.count}",
        )
    else:
        reader.claim(
            Fact.PROCESSES_PER_NODE,
            world // count,
            f"{reader.origin(WORLD_SIZE)} / {reader.origin(row.count)}",
        )
