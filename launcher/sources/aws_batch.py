"""A multi-node parallel job of AWS Batch: one container per node.

The main node need not have index 0. Rank 0 runs on it, because its address is the only one that the other
nodes know. The other nodes follow in the order of their indices. AWS Batch does not tell the main node its
own address. An array job sets other variables, and its elements are separate jobs.

Source: docs.aws.amazon.com AWS Batch "Environment variables of multi-node parallel jobs".
"""

from __future__ import annotations

from launcher.core.environ import is_loopback
from launcher.core.model import Fact, Scope, Trust
from launcher.machine.network import read_routes
from launcher.sources import MARKERS
from launcher.sources.reader import Reader
from launcher.sources.signs import FLAGS

NODE_COUNT, NODE_INDEX, MAIN_INDEX, MAIN_ADDRESS = NAMES = MARKERS["aws_batch"]
"""The last one is set on the other nodes only."""
SHARED = ("172.17.0.1", "169.254.")
"""Prefixes of addresses that several machines have: Docker's bridge, and link-local addresses."""


def read(reader: Reader) -> None:
    """Claim the number of nodes, this node's rank with the main node first, and the main node's address."""
    if reader.is_started():  # it numbers the ranks, e.g. mpirun on the main node
        several = (reader.integer(NODE_COUNT, 1) or 1) > 1
        reader.several += [reader.origin(NODE_COUNT)] if several else []
        return
    reader.starts = Scope.NODE
    count = reader.claim_int(Fact.NODE_COUNT, NODE_COUNT)
    index, main = reader.integer(NODE_INDEX), reader.integer(MAIN_INDEX)
    if count is None:
        reader.sign(reader.first(*NAMES) or "", f"pass {NODE_COUNT} into the container too, or {FLAGS}")
    elif main is not None and main >= count:
        reader.malformed(MAIN_INDEX, f"an index below {NODE_COUNT}")
        return
    reader.claim_host(Fact.MASTER_ADDR, MAIN_ADDRESS)
    if index is None or main is None:
        return
    place = 0 if index == main else index + (index < main)
    how = ", the main node" if index == main else ""
    how = f" after the main node, {reader.origin(MAIN_INDEX)}" if index < main else how
    reader.claim(Fact.NODE_RANK, place, f"{reader.origin(NODE_INDEX)}{how}")
    if index == main and count != 1 and not reader.has(MAIN_ADDRESS):
        _claim_own(reader)


def _claim_own(reader: Reader) -> None:
    """Claim the address of our only usable interface, or of the one with the default route.

    It is the address at which the other nodes reach this one, the main node.
    """
    known = [(name, one) for name, addresses in reader.host.addresses().items() for one in addresses]
    usable = [(n, a) for n, a in known if ":" not in a and not is_loopback(a) and not a.startswith(SHARED)]
    if len(dict(usable)) > 1:
        routes = read_routes(reader.host)
        usable = [(name, one) for name, one in usable if "default" in routes.get(name, ())]
    for _, address in usable[:1]:
        reader.claim(Fact.MASTER_ADDR, address, "own address of the main node", Trust.DERIVED)
