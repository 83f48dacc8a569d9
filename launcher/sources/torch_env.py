"""The names of PyTorch's ``env://`` contract, set by a platform (Azure ML PyTorch) or a person.

RANK and WORLD_SIZE count whatever was started: processes, or, where the platform starts one launcher
per node (Azure ML's default), nodes. Which of the two is decided by comparing sizes, not here.

Source: pytorch.org "Environment variable initialization"; Azure ML "Distributed GPU training guide".
"""

from __future__ import annotations

from launcher.environ import Reader, is_loopback
from launcher.model import Fact
from launcher.sources import launched
from launcher.sources.kubeflow import counts_pods

MASTER_ADDR = "MASTER_ADDR"
IDENTITY = ("RANK", "WORLD_SIZE", "NODE_RANK")


def read(reader: Reader) -> None:
    """The contract, less RANK and WORLD_SIZE where Kubeflow counts pods with them."""
    if launched.is_left_over(reader):
        return
    if not counts_pods(reader):
        reader.claim_int(Fact.RANK, "RANK")
        reader.claim_int(Fact.WORLD_SIZE, "WORLD_SIZE", 1)
        reader.claim_int(Fact.LOCAL_RANK, "LOCAL_RANK")
        reader.claim_int(Fact.LOCAL_SIZE, "LOCAL_WORLD_SIZE", 1)
    reader.claim_int(Fact.NODE_RANK, "NODE_RANK")
    address = reader.claim_host(Fact.MASTER_ADDR, MASTER_ADDR)
    reader.claim_int(Fact.MASTER_PORT, "MASTER_PORT", 1)
    if address and not is_loopback(address) and not any(reader.has(name) for name in IDENTITY):
        _sign_unless_own(reader, address)


def _sign_unless_own(reader: Reader, address: str) -> None:
    # A master elsewhere, and nothing that says which node this is
    if address not in reader.host.own_addresses():
        reader.sign(MASTER_ADDR, "pass --nnodes N --node-rank R, or unset MASTER_ADDR for a single machine")
