"""PET_*: what somebody set for a torchrun to be started once per node (Kubeflow Trainer does).

Each flag of torchrun can be given as ``PET_<DEST>``; we are started in torchrun's place.

Source: torch/distributed/argparse_util.py; kubeflow/trainer pkg/runtime/framework/plugins/torch.
"""

from __future__ import annotations

from launcher.environ import Malformed, Reader, parse_host_port, parse_int
from launcher.model import Fact, Scope, Trust

NNODES = "PET_NNODES"
NPROC_PER_NODE = "PET_NPROC_PER_NODE"
RDZV_ENDPOINT = "PET_RDZV_ENDPOINT"
STANDALONE = "PET_STANDALONE"
WORDS = ("auto", "cpu", "gpu")


def read(reader: Reader) -> None:
    """One worker group per node, as torchrun's own flags say."""
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
    low, colon, high = text.partition(":")
    try:
        least, most = parse_int(low, 1), parse_int(high if colon else low, 1)
    except Malformed:
        reader.malformed(NNODES, "a number of nodes, N or MIN:MAX")
        return
    if least != most:
        reader.sign(
            NNODES,
            "an elastic job has no fixed number of nodes to plan with: start torchrun itself, "
            "or pass --nnodes N --node-rank R",
        )
        return
    reader.claim(Fact.NODE_COUNT, least, NNODES)


def _read_processes(reader: Reader) -> None:
    text = reader.text(NPROC_PER_NODE)
    if text in WORDS:
        reader.claim(Fact.PROCESSES_PER_NODE, text, NPROC_PER_NODE)
    else:
        reader.claim_int(Fact.PROCESSES_PER_NODE, NPROC_PER_NODE, 1)


def _read_endpoint(reader: Reader) -> None:
    # host[:port] of the rendezvous; node 0 of a fixed job by convention
    text = reader.text(RDZV_ENDPOINT)
    if text is None:
        return
    try:
        host, port = parse_host_port(text)
    except Malformed as error:
        reader.malformed(RDZV_ENDPOINT, str(error))
        return
    reader.claim(Fact.MASTER_ADDR, host, RDZV_ENDPOINT, Trust.DERIVED)
    if port is not None:
        reader.claim(Fact.MASTER_PORT, port, RDZV_ENDPOINT, Trust.DERIVED)
