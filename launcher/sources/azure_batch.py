"""A multi-instance task of Azure Batch: one launcher per node.

No variable has the index of the node. It is the position of one of our own addresses in the host list, after
the master is moved to the front (the documentation does not promise that the list begins with it). Without
AZ_BATCH_MASTER_NODE, AZ_BATCH_IS_CURRENT_NODE_MASTER identifies the master: on the master itself, and on the
other one of two nodes. The port in AZ_BATCH_MASTER_NODE is reserved for the Batch service.

Source: learn.microsoft.com "Azure Batch runtime environment variables".
"""

from __future__ import annotations

from launcher.core.environ import Malformed, each_once
from launcher.core.model import Fact, Scope, Trust
from launcher.sources import MARKERS
from launcher.sources.reader import Reader

HOST_LIST, NODE_LIST, MASTER_NODE, CCP_NODES, IS_MASTER = MARKERS["azure_batch"]


def read(reader: Reader) -> None:
    """Claim the hosts with the master first, and our own position among them."""
    reader.starts = Scope.NODE
    master = reader.claim_host(Fact.MASTER_ADDR, MASTER_NODE)
    if master is not None:
        reader.note(f"the port in {reader.origin(MASTER_NODE)} is reserved for the Batch service: not used")
    lists = {HOST_LIST: reader.hosts(HOST_LIST), NODE_LIST: reader.hosts(NODE_LIST, ";")}
    lists[CCP_NODES] = reader.parsed(CCP_NODES, _parse_nodes) or ()
    name, hosts = next(((name, hosts) for name, hosts in lists.items() if hosts), ("", ()))
    for other in (NODE_LIST, CCP_NODES):
        if lists[other] and len(lists[other]) != len(hosts):
            reader.claim(Fact.NODE_COUNT, len(lists[other]), other)
    if master is not None and hosts and master not in hosts:
        reader.malformed(MASTER_NODE, f"one of {name}")
    elif hosts:
        _claim_nodes(reader, hosts, name, hosts.index(master) if master is not None else None)
    elif reader.has(MASTER_NODE, IS_MASTER):  # only a multi-instance task has either
        name = MASTER_NODE if master is not None else IS_MASTER
        reader.sign(name, f"set {HOST_LIST}, or pass --nnodes N --node-rank R --master-addr HOST")


def _parse_nodes(text: str) -> tuple[str, ...]:
    """Return the hosts of a number of nodes, then address and cores of each: ``2 10.0.0.4 1 10.0.0.5 1``."""
    count, *rest = text.split() or [""]
    hosts = each_once(rest[::2])
    if count != str(len(hosts)) or len(rest) != 2 * len(hosts):
        raise Malformed("a count, then as many pairs of address and cores")
    return hosts


def _parse_bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise Malformed("true or false")
    return text == "true"


def _claim_nodes(reader: Reader, hosts: tuple[str, ...], name: str, master: int | None) -> None:
    """Claim the nodes with the master first, and our own position among them.

    Args:
        reader: Reader of this source.
        hosts: Hosts in the order of the list, which is the same on all nodes.
        name: Name of the list's variable.
        master: Index of AZ_BATCH_MASTER_NODE in ``hosts``; None if that is not set.
    """
    places = [place for place, host in enumerate(hosts) if host in reader.host.own_addresses()]
    # A starter may have passed on the head node's value
    is_master = None if reader.is_started() else reader.parsed(IS_MASTER, _parse_bool)
    own = places[0] if len(places) == 1 else None
    if own is not None and None not in (master, is_master) and (own == master) != is_master:
        reader.contradict(IS_MASTER, MASTER_NODE, f"{reader.origin(MASTER_NODE)}, here is {hosts[own]}")
        return
    other = None if is_master is None or len(hosts) > 2 else 1 - (own or 0)
    if len(hosts) == 1:
        master = own = 0
    elif master is None and own is not None:
        master = own if is_master else other
    elif own is None and master is not None:
        own = master if is_master else 1 - master if other is not None else None
    if master is None:
        reader.claim_hosts(hosts, name)
        fix = f"pass {MASTER_NODE} to the launcher too, or pass --node-rank R --master-addr HOST"
        reader.sign(name, f"{fix} (the list need not begin with the master)")
        return
    ordered = (hosts[master], *(host for host in hosts if host != hosts[master]))
    reader.claim_hosts(ordered, name, master=Trust.DERIVED)
    if own is not None:
        is_ours = len(hosts) > 1 and own not in places
        origin = IS_MASTER if is_ours else f"own address {hosts[own]} in {name}"
        reader.claim(Fact.NODE_RANK, ordered.index(hosts[own]), origin, Trust.DERIVED)
    else:
        found = f"{'several' if places else 'none'} of this node's addresses are in"
        reader.note(f"{found} {name}, so it gives no node rank")
        reader.sign(name, f"{found} the list: pass --node-rank R, this node's index with the master first")
