"""A multi-instance task of Azure Batch: one launcher per node.

There is no variable for the index of the node: it is the position of one of our own addresses in the
host list, the master put first (the list is not documented to begin with it). The port in
AZ_BATCH_MASTER_NODE is reserved for the Batch service.

Source: learn.microsoft.com "Azure Batch runtime environment variables".
"""

from __future__ import annotations

from launcher.environ import MPI_STARTERS, Malformed, Reader, parse_hosts
from launcher.model import Fact, Scope, Trust

HOST_LIST = "AZ_BATCH_HOST_LIST"  # 10.0.0.4,10.0.0.5
NODE_LIST = "AZ_BATCH_NODE_LIST"  # 10.0.0.4;10.0.0.5
CCP_NODES = "CCP_NODES"  # 2 10.0.0.4 1 10.0.0.5 1: the count, then address and cores of each
MASTER_NODE = "AZ_BATCH_MASTER_NODE"  # 10.0.0.4:6000
IS_MASTER = "AZ_BATCH_IS_CURRENT_NODE_MASTER"  # true or false


def read(reader: Reader) -> None:
    """Hosts with the master first, and our own place among them."""
    reader.starts = Scope.NODE
    master = reader.claim_host(Fact.MASTER_ADDR, MASTER_NODE)
    if master is not None:
        reader.note(f"the port in {reader.origin(MASTER_NODE)} is reserved for the Batch service: not used")
    name, hosts = _read_hosts(reader)
    for other in (NODE_LIST, CCP_NODES):
        others = _parse(reader, other)
        if others and len(others) != len(hosts):
            reader.claim(Fact.NODE_COUNT, len(others), other)
    if master is not None and hosts and master not in hosts:
        reader.malformed(MASTER_NODE, f"one of {name}")
        return
    if master is not None:
        hosts = (master, *(host for host in hosts if host != master))
    if not hosts or not name:
        reader.sign(MASTER_NODE, f"set {HOST_LIST}, or pass --nnodes N --node-rank R")
        return
    reader.claim_hosts(hosts, name)
    reader.claim(Fact.MASTER_ADDR, hosts[0], name, Trust.DERIVED)
    _read_node_rank(reader, hosts, name)


def _read_hosts(reader: Reader) -> tuple[str, tuple[str, ...]]:
    for name in (HOST_LIST, NODE_LIST, CCP_NODES):
        hosts = _parse(reader, name)
        if hosts:
            return name, hosts
    return "", ()


def _parse(reader: Reader, name: str) -> tuple[str, ...]:
    if name != CCP_NODES:
        return reader.hosts(name, "," if name == HOST_LIST else ";")
    text = reader.text(name)
    if text is None:
        return ()
    count, *rest = text.split() or [""]
    try:
        hosts = parse_hosts(",".join(rest[::2]))
        if count != str(len(hosts)) or len(rest) != 2 * len(hosts):
            raise Malformed("a count, then as many pairs of address and cores")
    except Malformed as error:
        reader.malformed(name, str(error))
        return ()
    return hosts


def _read_node_rank(reader: Reader, hosts: tuple[str, ...], name: str) -> None:
    # Under an mpirun the variables may be the head node's, forwarded: only addresses are our own
    is_master = None if any(reader.has(starter) for starter in MPI_STARTERS) else reader.text(IS_MASTER)
    if is_master == "true":
        reader.claim(Fact.NODE_RANK, 0, IS_MASTER, Trust.DERIVED)
    elif is_master == "false" and len(hosts) == 2:
        reader.claim(Fact.NODE_RANK, 1, IS_MASTER, Trust.DERIVED)  # the only other one
    elif is_master not in (None, "false"):
        reader.malformed(IS_MASTER, "true or false")
    else:
        _claim_own_index(reader, hosts, name)


def _claim_own_index(reader: Reader, hosts: tuple[str, ...], name: str) -> None:
    own = reader.host.own_addresses()
    places = [place for place, host in enumerate(hosts) if host in own]
    if len(places) == 1:
        reader.claim(Fact.NODE_RANK, places[0], f"own address {hosts[places[0]]} in {name}", Trust.DERIVED)
    else:
        found = f"{'several' if places else 'none'} of this node's addresses"
        reader.note(f"{found} stand in {name}: no node rank from it")
        if len(hosts) > 1:
            reader.sign(
                name, f"{found} stand in it: pass --node-rank R, the place in it with the master first"
            )
