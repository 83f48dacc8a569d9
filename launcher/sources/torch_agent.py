"""PET_*: variables for a torchrun that is started once per node (Kubeflow Trainer sets them).

Each flag of torchrun can be given as ``PET_<DEST>``; we are started in torchrun's place. Flags that state no
fact of the job (PET_MAX_RESTARTS, PET_RDZV_BACKEND, ...) are read as flags by
`launcher.options.reading.read_options`.

Source: torch/distributed/argparse_util.py; kubeflow/trainer pkg/runtime/framework/plugins/torch.
"""

from __future__ import annotations

from launcher.core.environ import MEETS_AT_MASTER, parse_host_port, parse_nodes
from launcher.core.model import COUNT_WORDS, Fact, Scope, Trust
from launcher.sources import MARKERS
from launcher.sources.reader import Reader

NNODES, NODE_RANK, MASTER_ADDR, RDZV_ENDPOINT, STANDALONE, NPROC_PER_NODE = MARKERS["torch_agent"]


def read(reader: Reader) -> None:
    """Claim one worker group per node, as torchrun's own flags state it."""
    # An address alone may be of another job, and so may a node rank beside a process's local rank
    alone = (MASTER_ADDR, NODE_RANK) if reader.has("LOCAL_RANK") else (MASTER_ADDR,)
    if any(reader.has(name) for name in MARKERS["torch_agent"] if name not in alone):
        reader.starts = Scope.NODE
    if reader.text(STANDALONE) == "1":
        reader.claim(Fact.NODE_COUNT, 1, STANDALONE)
        reader.claim(Fact.NODE_RANK, 0, STANDALONE)
    else:
        # "2", "2:2" (a fixed job) or "1:4" (elastic: the number of nodes is not known before the start)
        nodes = reader.parsed(NNODES, parse_nodes)
        if nodes is not None:
            reader.claim(Fact.NODE_COUNT if isinstance(nodes, int) else Fact.NODE_RANGE, nodes, NNODES)
        reader.claim_int(Fact.NODE_RANK, NODE_RANK)
    each = reader.text(NPROC_PER_NODE)
    if each in COUNT_WORDS:
        reader.claim(Fact.PROCESSES_PER_NODE, each, NPROC_PER_NODE)
    else:
        reader.claim_int(Fact.PROCESSES_PER_NODE, NPROC_PER_NODE, 1)
    reader.claim_host(Fact.MASTER_ADDR, MASTER_ADDR)
    reader.claim_int(Fact.MASTER_PORT, "PET_MASTER_PORT")
    if reader.has(RDZV_ENDPOINT) and (reader.text("PET_RDZV_BACKEND") or "static") in MEETS_AT_MASTER:
        # host[:port] of the rendezvous; by convention node 0 of a fixed job, and port 0 for a free one
        host, port = reader.parsed(RDZV_ENDPOINT, lambda text: parse_host_port(text, 0)) or (None, None)
        if host is not None:
            reader.claim(Fact.MASTER_ADDR, host, RDZV_ENDPOINT, Trust.DERIVED)
        if port is not None:
            reader.claim(Fact.MASTER_PORT, port, RDZV_ENDPOINT, Trust.DERIVED)
