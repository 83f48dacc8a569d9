"""A SkyPilot task: one ``run`` per node.

Source: docs.skypilot.co "Environment variables" (SKYPILOT_NODE_IPS has one address per line).
"""

from __future__ import annotations

from launcher.core.environ import Malformed, Reader, each_once
from launcher.core.model import Fact, Scope, Trust

NODE_IPS = "SKYPILOT_NODE_IPS"
GPUS = "SKYPILOT_NUM_GPUS_PER_NODE"


def read(reader: Reader) -> None:
    """Claim node rank, node count, the addresses with the head node first, and the GPUs."""
    reader.starts = Scope.NODE
    reader.claim_int(Fact.NODE_RANK, "SKYPILOT_NODE_RANK")
    reader.claim_int(Fact.NODE_COUNT, "SKYPILOT_NUM_NODES", 1)
    text = reader.text(NODE_IPS)
    if text is not None:
        try:
            hosts = each_once(text.split())
        except Malformed as error:
            reader.malformed(NODE_IPS, str(error))
        else:
            reader.claim_hosts(hosts, NODE_IPS)
            reader.claim(Fact.MASTER_ADDR, hosts[0], NODE_IPS, Trust.DERIVED)
    reader.claim_int(Fact.PROCESSES_PER_NODE, GPUS, 0, Trust.DERIVED)
