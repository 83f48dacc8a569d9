"""Finds numbers that cannot all be true of one job, and reports each contradiction with a fix."""

from __future__ import annotations

from launcher.core.errors import EnvironmentUntrusted
from launcher.core.frozen import frozen, replace
from launcher.core.model import Claim, Evidence, Fact, Topology, Trust
from launcher.identity.ledger import IDENTITY, STARTED, Ledger, is_typed
from launcher.identity.topology import is_by_domain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.machine.host import Host
    from launcher.options.reading import Options


@frozen
class Numbers:
    """The known numbers of one process, which `check_numbers` compares; fields in IDENTITY's order."""

    rank: int | None = None
    world: int | None = None
    local_rank: int | None = None
    local_size: int | None = None
    node_rank: int | None = None
    nodes: int | None = None


STARTERS = {
    "flux": "flux run",
    "horovod": "horovodrun",
    "hydra": "mpiexec",
    "lsf": "jsrun",
    "mvapich": "mpirun",
    "open_mpi": "mpirun",
    "pals": "mpiexec",
    "slurm": "srun",
    "torch_elastic": "torchrun",
}
"""The program that starts the processes of a source, for messages."""
OF_NODES = (Fact.NODE_COUNT, Fact.NODE_RANK, Fact.NODE_RANGE, Fact.HOSTS, *STARTED)


def seal_lone_world(
    evidence: Sequence[Evidence], around: Sequence[Evidence], options: Options
) -> tuple[Evidence, ...]:
    """Return the evidence; refuse a starter's world of this node alone if anything states several nodes.

    Each node would train alone: torchrun without ``--nnodes`` in each task of srun, mpirun in each pod.
    ``--nnodes 1`` says that this is meant. Then nothing around the starter says which node this is.

    Args:
        evidence: Evidence of the sources, the innermost first.
        around: Evidence of sources outside of one that seals.
        options: The user's options.

    Raises:
        EnvironmentUntrusted: The world is of one node, and the job of several.
    """
    ledger = Ledger(evidence, options)
    whole = _find_whole(ledger)
    others = [item for item in (*ledger.evidence, *around) if item.source not in ledger.speakers]
    known = {claim.fact for item in others for claim in item.claims}
    said = [origin for item in others for origin in _list_several(item, counted=Fact.NODE_COUNT in known)]
    if whole is None or not said:
        return tuple(evidence)
    if any(c.trust is Trust.ASKED and c.value == 1 for c in ledger.about(Fact.NODE_COUNT)):
        return tuple(item if item.source in ledger.speakers else _without_nodes(item) for item in evidence)
    name = STARTERS.get(whole.source, f"what set {whole.origin.partition('=')[0]}")
    ledger.contradiction(
        f"{whole.origin}: the processes of {name} all run on this node, but {said[0]} shows several nodes: "
        "each would train alone",
        "pass --nnodes 1 if each node is a job of its own, or set LAUNCHER_NNODES=1; for one job on all of "
        f"them: launcher run -- COMMAND in place of {name}",
    )
    raise EnvironmentUntrusted(*ledger.problems, notes=ledger.notes)


def _find_whole(ledger: Ledger) -> Claim | None:
    """Return the claim that shows that the starter's world lies wholly on this node; None without one."""
    own = {fact: c for fact in IDENTITY for c in reversed(ledger.about(fact)) if c.source in ledger.speakers}
    world, size, nodes = (own.get(fact) for fact in (Fact.WORLD_SIZE, Fact.LOCAL_SIZE, Fact.NODE_COUNT))
    if nodes is not None:
        return nodes if nodes.value == 1 else None
    return world if world is not None and (world.value == 1 or (size and size.value == world.value)) else None


def _list_several(item: Evidence, *, counted: bool) -> Iterator[str]:
    """Yield the origins of an item's statements that there are several nodes.

    ``counted``: whether any item counts the nodes. Else several processes may be on several nodes.
    """
    known = {claim.fact: claim for claim in reversed(item.claims) if claim.trust is not Trust.INDIRECT}
    for fact, one in ((Fact.NODE_COUNT, 1), (Fact.NODE_RANK, 0)):
        claim = known.get(fact)
        if claim is not None and isinstance(claim.value, int) and claim.value > one:
            yield claim.origin
    hosts, elastic = known.get(Fact.HOSTS), known.get(Fact.NODE_RANGE)
    if hosts is not None and isinstance(hosts.value, tuple) and len(hosts.value) > 1:
        yield hosts.origin
    if elastic is not None:
        yield elastic.origin
    yield from item.several
    world, size = known.get(Fact.WORLD_SIZE), known.get(Fact.LOCAL_SIZE)
    is_here = counted or (world and size and world.value == size.value)
    if world is not None and isinstance(world.value, int) and world.value > 1 and not is_here:
        yield world.origin


def _without_nodes(item: Evidence) -> Evidence:
    return replace(item, claims=tuple(c for c in item.claims if c.fact not in OF_NODES), signs=())


def check_process(ledger: Ledger) -> None:
    """Report contradictory numbers of a launcher that was started once per process."""
    check_below(ledger, Fact.RANK, Fact.WORLD_SIZE)
    check_below(ledger, Fact.LOCAL_RANK, Fact.LOCAL_SIZE)
    check_below(ledger, Fact.NODE_RANK, Fact.NODE_COUNT)
    _check_asked(ledger)
    _check_sizes(ledger)
    if not ledger.has_contradiction():
        check_numbers(ledger, Numbers(*map(ledger.number, IDENTITY)))


def check_topology(ledger: Ledger, topology: Topology, host: Host) -> None:
    """Refuse a topology that no placement of processes allows, however it was determined.

    Args:
        ledger: Each fact with its provenance.
        topology: The shape of the job.
        host: This node, with its names, addresses and networks.

    Raises:
        EnvironmentUntrusted: Values cannot all be true.
    """
    for place in topology.places[:1] + topology.places[-1:]:
        numbers = (topology.world_size, place.local_rank, topology.local_size)
        check_numbers(ledger, Numbers(place.rank, *numbers, topology.node_rank, topology.node_count))
    _check_master(ledger, topology, host)
    if ledger.has_contradiction():
        raise EnvironmentUntrusted(*ledger.problems, notes=ledger.notes)


def _check_master(ledger: Ledger, topology: Topology, host: Host) -> None:
    """Report a master that is not on node 0, as far as names, addresses and networks show it."""
    found = [ledger.findings.get(fact) for fact in (Fact.MASTER_ADDR, Fact.NODE_RANK)]
    claims = [finding.claim for finding in found if finding is not None]
    address, node = topology.master_addr, topology.node_rank
    if not address or address.startswith("127.") or not topology.places:
        return
    if len(claims) == 2 and all(is_typed(claim) for claim in claims):
        return  # the user may run several nodes on one machine
    in_order = _is_in_order(ledger)
    if node and in_order and host.is_called(address):
        ledger.contradiction(
            f"{ledger.origin(Fact.MASTER_ADDR)} is this node itself, but this is node {node} "
            f"({ledger.origin(Fact.NODE_RANK)}): the master is node 0",
            ledger.correct(Fact.MASTER_ADDR, Fact.NODE_RANK),
        )
    elif any(place.rank == 0 for place in topology.places):
        where = _find_elsewhere(ledger, address, host)
        if where:
            ledger.contradiction(
                f"rank 0 is here ({_name_rank_0(ledger)}), but the master is {address}, {where}",
                f"{ledger.correct(*_find_rank_0(ledger), Fact.MASTER_ADDR)}: rank 0 listens at the master's "
                "address",
            )


def _find_elsewhere(ledger: Ledger, address: str, host: Host) -> str:
    """Return what shows that an address is another node's; empty if nothing does."""
    if host.is_called(address):
        return ""
    for claim in ledger.about(Fact.HOSTS):
        listed = claim.value if isinstance(claim.value, tuple) else ()
        if not host.is_called(*listed):
            continue
        if address in listed:
            return f"another host of {claim.origin}"
        if claim.source in ledger.speakers and host.own_addresses().isdisjoint(host.resolve(address)):
            return f"which is not this node, and not in {claim.origin}"
    return "another address of this node's network" if host.is_elsewhere(address) else ""


def _find_rank_0(ledger: Ledger) -> tuple[Fact, ...]:
    """Return the fact that shows that rank 0 is here: rank, or else node_rank."""
    return tuple(fact for fact in (Fact.RANK, Fact.NODE_RANK) if fact in ledger.findings)[:1]


def _name_rank_0(ledger: Ledger) -> str:
    return ", ".join(map(ledger.origin, _find_rank_0(ledger)))


def check_numbers(ledger: Ledger, at: Numbers) -> None:
    """Report numbers of one process that no placement allows.

    Local ranks number a node's processes in the order of their ranks, and nodes are numbered in the order of
    their lowest ranks, unless their sources say otherwise (`Evidence.in_order`).
    """
    in_order, by_domain = _is_in_order(ledger), not _is_in_order(ledger, Fact.LOCAL_RANK)
    for what, facts in _list_impossible(at, in_order=in_order, by_domain=by_domain):
        named = ", ".join(dict.fromkeys(ledger.origin(fact) for fact in facts if fact in ledger.findings))
        ledger.contradiction(f"{named}: {what}", ledger.correct(*facts))


def _list_impossible(
    at: Numbers, *, in_order: bool, by_domain: bool
) -> Iterator[tuple[str, tuple[Fact, ...]]]:
    rank, local = at.rank, at.local_rank
    world, size, node, nodes = at.world, at.local_size, at.node_rank, at.nodes
    if rank is not None and local is not None:
        if by_domain and world and size and world % size == 0 and is_by_domain(rank, local, size):
            local = rank % size  # its place among the node's ranks
        if rank < local:
            yield f"local rank {local} has {local} ranks below it", (Fact.RANK, Fact.LOCAL_RANK)
        elif world and size and rank - local > world - size:
            what = f"this node's {size} processes do not fit into a world of {world} at rank {rank}"
            yield what, (Fact.RANK, Fact.LOCAL_RANK, Fact.LOCAL_SIZE, Fact.WORLD_SIZE)
        elif nodes == 1 and rank != local:
            yield (
                "on one node rank and local rank are the same",
                (Fact.RANK, Fact.LOCAL_RANK, Fact.NODE_COUNT),
            )
    if nodes and world and size and (nodes == 1) != (world == size):
        what = "one node runs all processes, and several nodes share them"
        yield what, (Fact.NODE_COUNT, Fact.LOCAL_SIZE, Fact.WORLD_SIZE)
    elif nodes and world and size and nodes - 1 > world - size:
        need = f"{nodes - 1} other nodes need at least one process each"
        what = f"{need}, but only {world - size} of {world} processes are left"
        yield what, (Fact.NODE_COUNT, Fact.LOCAL_SIZE, Fact.WORLD_SIZE)
    if in_order and rank is not None and node is not None and local is not None:
        after = (nodes or node + 1) - 1 - node
        if rank < node + local or (rank == 0) != (node == local == 0):
            what = (
                "rank 0 is on node 0, and the lowest rank of each node is higher than that of the node before"
            )
            yield what, (Fact.RANK, Fact.LOCAL_RANK, Fact.NODE_RANK)
        elif world and local == 0 and rank > world - (size or 1) - after:
            what = f"each of the {after} nodes after this one needs a higher rank"
            yield what, (Fact.RANK, Fact.NODE_RANK, Fact.NODE_COUNT, Fact.WORLD_SIZE)


def _is_in_order(ledger: Ledger, fact: Fact = Fact.NODE_RANK) -> bool:
    """Whether the source of node_rank, or of local_rank, numbers in the order of ranks."""
    found = ledger.findings.get(fact)
    return found is None or all(
        item.in_order or item.source != found.claim.source for item in ledger.evidence
    )


def _check_sizes(ledger: Ledger) -> None:
    """Report the first contradiction between sizes, with its own fix."""
    world, size = ledger.number(Fact.WORLD_SIZE), ledger.number(Fact.LOCAL_SIZE)
    nodes = ledger.number(Fact.NODE_COUNT)
    if world and size and size > world:
        ledger.contradiction(
            f"{ledger.origin(Fact.LOCAL_SIZE)} on this node but {ledger.origin(Fact.WORLD_SIZE)} in all",
            "WORLD_SIZE is the number of processes on all nodes together: correct or unset it",
        )
    elif world and nodes and world == nodes and (size or 1) > 1:
        ledger.contradiction(
            f"{ledger.origin(Fact.WORLD_SIZE)} counts nodes ({ledger.origin(Fact.NODE_COUNT)}), but "
            f"this node runs {size} processes ({ledger.origin(Fact.LOCAL_SIZE)})",
            "set WORLD_SIZE to the number of processes, or unset it",
        )
    elif world and nodes and nodes > world:
        ledger.contradiction(
            f"{ledger.origin(Fact.NODE_COUNT)} nodes but {ledger.origin(Fact.WORLD_SIZE)} processes",
            "every node runs at least one process: correct or unset one of them",
        )
    elif world and size and nodes and nodes * size != world and _fills_evenly(ledger):
        ledger.contradiction(
            f"{ledger.origin(Fact.WORLD_SIZE)} on {nodes} nodes ({ledger.origin(Fact.NODE_COUNT)}), but "
            f"{ledger.origin(Fact.LOCAL_SIZE)} on this one: "
            "this platform starts the same number on every node",
            ledger.correct(Fact.WORLD_SIZE, Fact.NODE_COUNT, Fact.LOCAL_SIZE),
        )
    elif world and size and not nodes and world > size and _has_one_node(ledger):
        ledger.contradiction(
            f"{ledger.origin(Fact.WORLD_SIZE)}, of which {size} run on this node "
            f"({ledger.origin(Fact.LOCAL_SIZE)}), but the allocation has no other node",
            ledger.correct(Fact.WORLD_SIZE, Fact.LOCAL_SIZE),
        )
    elif world and size and nodes == 1 and world != size:
        ledger.contradiction(
            f"{ledger.origin(Fact.NODE_COUNT)} means one node, but {size} of {world} processes run on this "
            f"one ({ledger.origin(Fact.LOCAL_SIZE)}, {ledger.origin(Fact.WORLD_SIZE)})",
            "pass --nnodes N with the number of nodes, or unset the wrong variable",
        )


def _has_one_node(ledger: Ledger) -> bool:
    """Whether the allocation, which the job's processes cannot leave, has only this node."""
    return any(item.most_nodes == 1 for item in ledger.evidence)


def _fills_evenly(ledger: Ledger) -> bool:
    """Whether node_count is that of a platform with several nodes and equally many processes on each."""
    claim = ledger.findings[Fact.NODE_COUNT].claim
    even = {item.source for item in ledger.evidence if item.even}
    return claim.source in even and claim.trust is not Trust.ASKED and claim.value != 1


def check_least(ledger: Ledger) -> None:
    """Report a node_rank from the user that is below an index of this node (`Evidence.least`)."""
    for least in (item.least for item in ledger.evidence if item.least is not None):
        for claim in ledger.about(Fact.NODE_RANK):
            if claim.trust is not Trust.ASKED or not int(str(claim.value)) < int(str(least.value)):
                continue
            name = least.origin.partition("=")[0]
            ledger.contradiction(
                f"{claim.origin} but {least.origin}: this is another node",
                f"where a shell on the first node has replaced ${name}: "
                f"sh -c 'launcher run --node-rank ${name} ...'; for other nodes pass --source manual",
            )


def check_below(ledger: Ledger, index: Fact, count: Fact) -> None:
    """Report an index that is not below its count."""
    number, limit = ledger.number(index), ledger.number(count)
    if number is not None and limit is not None and number >= limit:
        ledger.contradiction(
            f"{ledger.origin(index)} but {ledger.origin(count)}: expected {index.value} in 0..{limit - 1}",
            ledger.correct(index, count),
        )


def _check_asked(ledger: Ledger) -> None:
    """Report a requested number of processes that differs from the number that the platform has started."""
    given, local_size = ledger.options.get("nproc_per_node"), ledger.number(Fact.LOCAL_SIZE)
    if given and isinstance(given.value, int) and local_size and given.value != local_size:
        ledger.contradiction(
            f"{given.origin} but {ledger.origin(Fact.LOCAL_SIZE)}: the platform has started the "
            f"processes of this node already, {local_size} of them",
            "leave out --nproc-per-node, or let the platform start one launcher per node",
            "command line and environment",
        )


def check_hosts(ledger: Ledger) -> None:
    """Report a host list whose length is not the number of nodes."""
    # Sources that give a list also claim its length as node_count, so lists of different length have been
    # compared already. This check is for a count that was derived or requested.
    hosts, count = ledger.settle(Fact.HOSTS), ledger.number(Fact.NODE_COUNT)
    stated = ledger.findings.get(Fact.NODE_COUNT)
    if not isinstance(hosts, tuple) or count is None or stated is None or stated.claim.trust is Trust.STATED:
        return
    if ledger.options.switch("standalone"):
        return
    if len(hosts) != count and ledger.findings[Fact.HOSTS].claim.trust is Trust.STATED:
        ledger.contradiction(
            f"{stated.claim.origin} but {ledger.origin(Fact.HOSTS)} lists {len(hosts)} hosts",
            "correct the number of nodes or the host list",
        )
