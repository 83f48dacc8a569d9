"""A worker of horovodrun over gloo. Over MPI, horovodrun uses mpirun, which gives the ranks (see `open_mpi`).

The "cross" numbers count the processes with the same local rank. They are the node's index and the number of
nodes only for local rank 0, because every node has one. The rendezvous server is horovodrun's and need not
run on the node of rank 0.

Source: horovod/runner/gloo_run.py; recorded with Horovod 0.28.1.
"""

from __future__ import annotations

from launcher.core.model import Fact, Trust
from launcher.sources import MARKERS
from launcher.sources.reader import Reader
from launcher.sources.signs import FIXES

RANK, ELASTIC = MARKERS["horovod"]
SIZE = "HOROVOD_SIZE"
NUMBERS = (RANK, SIZE, "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")
OF_NODES = ((Fact.NODE_RANK, "HOROVOD_CROSS_RANK"), (Fact.NODE_COUNT, "HOROVOD_CROSS_SIZE"))


def read(reader: Reader) -> None:
    """Claim rank and sizes as stated, and the node if this is the first process on it."""
    if reader.text(ELASTIC) == "1":
        reader.sign(ELASTIC, FIXES["elastic"])
        return
    _, size, local_rank, local_size = reader.claim_process(NUMBERS)
    (_, cross_rank), (_, cross_size) = OF_NODES
    index, count = reader.integer(cross_rank), reader.integer(cross_size)
    if index is not None and count is not None and index >= count:
        reader.contradict(cross_rank, cross_size, f"{reader.origin(cross_size)}: expected a higher number")
    if count is not None and size is not None and count > size:
        reader.contradict(cross_size, SIZE, f"{reader.origin(SIZE)}: expected a higher number")
    if local_rank == 0:
        reader.claim_numbers(OF_NODES, Trust.DERIVED)
    if size != local_size:
        reader.note(FIXES["horovodrun"])
