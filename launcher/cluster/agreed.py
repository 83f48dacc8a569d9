"""Values of the start signal, which node 0 chooses and all nodes use in an attempt."""

from __future__ import annotations

from launcher.core.environ import each_once
from launcher.core.errors import NotReady, make_error
from launcher.core.wire import Garbled
from launcher.identity.topology import find_rank
from launcher.machine.host import Host
from launcher.machine.ports import find_free_port
from launcher.process.port_checks import OTHERS, find_taken, port_taken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from launcher.cluster.messages import Start
    from launcher.cluster.settings import Shape
    from launcher.core.log import Say
    from launcher.core.model import Plan

    Replan = Callable[[int, Mapping[int, int], tuple[str, ...]], Plan]

HOSTS_LENGTH = 60_000
"""Characters of the addresses of all nodes, of the 64 KiB of a frame: those of 9,000 nodes, 3,600 by IPv6."""
HOSTS_LIMIT = 1 << 20
"""Characters of them once unpacked."""


def choose(plan: Plan, run: str, last: Start | None, replan: Replan, say: Say) -> dict[str, object]:
    """Return node 0's choices for an attempt; ``last``: the previous attempt's, if any."""
    port = choose_port(plan, say) if last is None else find_next_port(plan, last.master_port, replan)
    return {"master_port": port, "run": run}


def choose_port(plan: Plan, say: Say) -> int:
    """Return the rendezvous port: the plan's, or another one if that is taken."""
    asked = plan.topology.master_port
    if plan.allocation.ranks_at_start or not find_taken(plan):
        return asked
    port = find_free_port(asked) or Host().free_port()
    say(f"MASTER_PORT {asked} is taken on this node: all nodes use {port} instead", "port-moved")
    return port


def find_next_port(plan: Plan, last: int | None, replan: Replan) -> int:
    """Return a free port for the rendezvous of the next attempt.

    It differs from the last one, so that remains of the last attempt cannot connect to it. It stays the same
    if the user's own MASTER_PORT insists on it.
    """
    before = plan.topology.master_port if last is None else last
    port = find_free_port(before) or Host().free_port()
    return port if replan(port, {}, ()).topology.master_port == port else before


def remember_last(replan: Replan) -> Replan:
    """Return the same function with a memory of one plan: node 0 asks for each twice, 5 ms of a restart."""
    last: dict[object, Plan] = {}

    def find(port: int, seats: Mapping[int, int], hosts: tuple[str, ...]) -> Plan:
        key = port, tuple(sorted(seats.items())), hosts
        if key not in last:
            plan = replan(port, seats, hosts)
            last.clear()
            last[key] = plan
        return last[key]

    return find


def adopt(plan: Plan, agreed: Start, seats: Mapping[int, int], replan: Replan) -> Plan:
    """Return the plan with the port of the rendezvous that node 0 has chosen, and the nodes of this attempt.

    Args:
        plan: The plan of this node.
        agreed: The values of the start signal; a port that is none changes nothing.
        seats: The ranks of nodes that took the place of others, by index.
        replan: Plans again with another port, the ranks of nodes that took the place of others, and the
            addresses of all nodes, unless they are listed.

    Raises:
        NotReady: A setting of the user requires another port, or the addresses do not fit the job.
    """
    told = agreed.master_port or 0
    hosts = () if plan.meeting is None else read_hosts(agreed, plan.meeting.node_count)
    port = told if 0 < told < 1 << 16 else plan.topology.master_port
    if port == plan.topology.master_port and not seats and not hosts:
        return plan
    found = replan(port, seats, hosts)
    if found.topology.master_port == port:
        return found
    user = "MASTER_PORT, which this node requires"
    fix = OTHERS.format(flag="--master-port")
    raise NotReady(port_taken(found.topology.master_port, "node 0", user, "", fix))


def name_mark(run: str, index: int) -> str:
    """Return the name in the mark of a node's processes; empty if that of the run is not known."""
    return f"{run}-{index}" if run else ""


def pack_hosts(hosts: Iterable[str]) -> str:
    """Return the addresses of all nodes for the start signal.

    Raises:
        ValueError: They do not fit into a frame.
    """
    import base64
    import zlib

    packed = base64.b64encode(zlib.compress(" ".join(hosts).encode())).decode()
    if len(packed) > HOSTS_LENGTH:
        raise ValueError("too many addresses of nodes for the start signal: list the nodes (--hosts)")
    return packed


def read_hosts(agreed: Start, node_count: int) -> tuple[str, ...]:
    """Return the address of every node, node 0 first.

    Raises:
        NotReady: They are not one for each node.
    """
    import base64
    import zlib

    told, reading = agreed.hosts, zlib.decompressobj()
    try:
        text = reading.decompress(base64.b64decode(told if isinstance(told, str) else ""), HOSTS_LIMIT)
        hosts = each_once(text.decode().split())
        if len(hosts) != node_count:
            raise ValueError(f"{len(hosts)} addresses for {node_count} nodes")
    except (ValueError, zlib.error) as error:
        raise make_error("addresses-not-told", why=error) from error
    return hosts


def read_seats(agreed: Start, shape: Shape) -> dict[int, int]:
    """Return the ranks of nodes that took the place of others, by index.

    Raises:
        Garbled: A node or a place that the job does not have, or two nodes with one place.
    """
    seats, indices = agreed.seats, {str(one): one for one in range(shape.node_count + shape.spare_count)}
    if not (seats.keys() <= indices.keys() and all(rank < shape.node_count for rank in seats.values())):
        raise Garbled("seats, or nodes in them, that are none of the job")
    if len(set(seats.values())) < len(seats):
        raise Garbled("a seat of two nodes")
    return {indices[index]: rank for index, rank in seats.items()}


def read_rank(agreed: Start, shape: Shape) -> int | None:
    """Return the rank of this node in the attempt; None if it is a spare one.

    Raises:
        Garbled: The values give places to nodes that the job does not have.
    """
    return find_rank(shape.index, shape.node_count, read_seats(agreed, shape))
