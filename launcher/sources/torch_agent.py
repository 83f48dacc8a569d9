"""PET_*: variables for a torchrun that is started once per node (Kubeflow Trainer sets them).

Each flag of torchrun can be given as ``PET_<DEST>``; we are started in torchrun's place. Flags that state no
fact of the job (PET_MAX_RESTARTS, PET_RDZV_BACKEND, ...) are read as flags by
`launcher.options.reading.read_options`.

Source: torch/distributed/argparse_util.py; kubeflow/trainer pkg/runtime/framework/plugins/torch.
"""

from __future__ import annotations

from launcher.core.environ import MEETS_AT_MASTER, Malformed, Reader, parse_host_port, parse_nodes
from launcher.core.model import COUNT_WORDS, Fact, Scope, Trust

NNODES = "PET_NNODES"
NPROC_PER_NODE = "PET_NPROC_PER_NODE"
RDZV_ENDPOINT = "PET_RDZV_ENDPOINT"
RDZV_BACKEND = "PET_RDZV_BACKEND"
STANDALONE = "PET_STANDALONE"


def read(reader: Reader) -> None:
    """Claim one worker group per node, as torchrun's own flags state it."""
    reader.starts = Scope.NODE
    if reader.text(STANDALONE) == "1":
        reader.claim(Fact.NODE_COUNT, 1, STANDALONE)
        reader.claim(Fact.NODE_RANK, 0, STANDALONE)
    else:
        _read_nnodes(reader)
        reader.claim_int(Fact.NODE_RANK, "PET_NODE_RANK")
    _read_processes(reader)
    reader.claim_host(Fact.MASTER_ADDR, "PET_MASTER_ADDR")
    reader.claim_int(Fact.MASTER_PORT, "PET_MASTER_PORT", 1)
    _read_endpoint(reader)


def _read_nnodes(reader: Reader) -> None:
    # "2", "2:2" (a fixed job) or "1:4" (elastic: the number of nodes is not known before the start)
    text = reader.text(NNODES)
    if text is None:
        return
    try:
        nodes = parse_nodes(text)
    except Malformed as error:
        reader.malformed(NNODES, str(error))
        return
    reader.claim(Fact.NODE_COUNT if isinstance(nodes, int) else Fact.NODE_RANGE, nodes, NNODES)


def _read_processes(reader: Reader) -> None:
    text = reader.text(NPROC_PER_NODE)
    if text in COUNT_WORDS:
        reader.claim(Fact.PROCESSES_PER_NODE, text, NPROC_PER_NODE)
    else:
        reader.claim_int(Fact.PROCESSES_PER_NODE, NPROC_PER_NODE, 1)


def _read_endpoint(reader: Reader) -> None:
    # host[:port] of the rendezvous; by convention node 0 of a fixed job, and port 0 for a free one
    text = reader.text(RDZV_ENDPOINT)
    if text is None or (reader.text(RDZV_BACKEND) or "static") not in MEETS_AT_MASTER:
        return
    try:
        host, port = parse_host_port(text, 0)
    except Malformed as error:
        reader.malformed(RDZV_ENDPOINT, str(error))
        return
    reader.claim(Fact.MASTER_ADDR, host, RDZV_ENDPOINT, Trust.DERIVED)
    if port is not None:
        reader.claim(Fact.MASTER_PORT, port, RDZV_ENDPOINT, Trust.DERIVED)
