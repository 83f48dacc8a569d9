"""Finds numbers that cannot all be true of one job, and reports each contradiction with a fix."""

from __future__ import annotations

from launcher.core.blocks import read_blocks
from launcher.core.errors import Problem, make_problem
from launcher.core.frozen import replace
from launcher.core.model import Claim, Evidence, Fact, Topology, Trust
from launcher.identity.ledger import IDENTITY, LAUNCHED, STARTED, Ledger, is_typed, list_several, name_only
from launcher.identity.topology import is_by_domain
from launcher.machine.own_names import is_called, is_elsewhere

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.machine.host import Host


OF_NODES = (Fact.NODE_COUNT, Fact.NODE_RANK, Fact.NODE_RANGE, Fact.HOSTS, *STARTED)


def seal_lone_world(
    ledger: Ledger, evidence: tuple[Evidence, ...], around: Sequence[Evidence]
) -> tuple[Evidence, ...]:
    """Return the evidence; refuse a starter's world of this node alone if anything states several nodes.

    Each node would train alone: torchrun without ``--nnodes`` in each task of srun, mpirun in each pod.
    ``--nnodes 1`` says that this is meant. Then nothing around the starter says which node this is.

    Args:
        ledger: The claims of the options and of the sources.
        evidence: Evidence of the sources, the innermost first.
        around: Evidence of sources outside of one that seals.

    Raises:
        EnvironmentUntrusted: The world is of one node, and the job of several.
    """
    whole = _find_whole(ledger)
    others = [item for item in (*ledger.evidence, *around) if item.source not in ledger.speakers]
    known = {claim.fact for item in others for claim in item.claims}
    said = [origin for item in others for origin in list_several(item, counted=Fact.NODE_COUNT in known)]
    if whole is None or not said:
        return evidence
    if not any(c.trust is Trust.ASKED and c.value == 1 for c in ledger.about(Fact.NODE_COUNT)):
        name = _find_program(whole.source) or f"what set {name_only(whole.origin)}"
        ledger.add(ledger.refuse("lone-world", world=whole.origin, name=name, other=said[0])).check()
    return tuple(
        item
        if item.source in ledger.speakers
        else replace(item, claims=tuple(c for c in item.claims if c.fact not in OF_NODES), signs=())
        for item in evidence
    )


def _find_program(source: str) -> str:
    """Return what starts the processes of a source, for messages; empty for a source of another kind."""
    found = (block.fields for block in read_blocks("sources/table.txt") if block.name == source)
    return next(found, {}).get("program", "")


def _find_whole(ledger: Ledger) -> Claim | None:
    """Return the claim that shows that the starter's world lies wholly on this node; None without one."""
    own = {fact: c for fact in IDENTITY for c in reversed(ledger.about(fact)) if c.source in ledger.speakers}
    world, size, nodes = (own.get(fact) for fact in (Fact.WORLD_SIZE, Fact.LOCAL_SIZE, Fact.NODE_COUNT))
    if nodes is not None:
        return nodes if nodes.value == 1 else None
    return world if world is not None and (world.value == 1 or (size and size.value == world.value)) else None


def check_numbers(ledger: Ledger) -> Iterator[Problem]:
    """Report contradictory numbers and sizes; once per node, those of single processes are closed."""
    yield from ledger.find_contradictions(*IDENTITY)
    for index, count in zip(IDENTITY[::2], IDENTITY[1::2], strict=True):  # each index is below its count
        number, limit = ledger.number(index), ledger.number(count)
        if number is not None and limit is not None and number >= limit:
            named = {"index": ledger.origin(index), "count": ledger.origin(count), "name": index.value}
            yield ledger.refuse("index-beyond", **named, last=limit - 1, fix=ledger.correct(index, count))
    given, local_size = ledger.options.get("nproc_per_node"), ledger.number(Fact.LOCAL_SIZE)
    if given and isinstance(given.value, int) and local_size not in (None, given.value):
        started = ledger.origin(Fact.LOCAL_SIZE)
        yield make_problem("already-started", asked=given.origin, started=started, count=local_size)
    sizes = (Fact.WORLD_SIZE, Fact.LOCAL_SIZE, Fact.NODE_COUNT)
    world, size, nodes = map(ledger.number, sizes)
    known, least = [fact for fact in sizes if ledger.about(fact)], (size or 1) + (nodes or 1) - 1
    counted = ledger.best(Fact.NODE_COUNT)
    is_even = counted is not None and counted.trust is not Trust.ASKED and ledger.is_even(counted)
    is_alone = nodes == 1 or (nodes is None and any(item.most_nodes == 1 for item in ledger.evidence))
    if world and world < least:  # each node runs at least one process
        hint = ", not nodes" if world == nodes else ""
        yield ledger.refuse_facts("world-too-small", *known, least=least, hint=hint)
    elif world and is_alone and size and size < world:
        yield ledger.refuse_facts("world-beyond-node", *known, size=size, world=world)
    elif world and size and nodes and nodes > 1 and nodes * size != world and is_even:
        yield ledger.refuse_facts("world-uneven", *known)


def check_alone(ledger: Ledger) -> Iterator[Problem]:
    """Report a starter that shows several processes on this node but gives no rank: not once per node."""
    nodes, node = ledger.best(Fact.NODE_COUNT), ledger.best(Fact.NODE_RANK)
    asked = [claim for claim in (nodes, node) if claim is not None and claim.trust is Trust.ASKED]
    if ledger.problems or nodes is None or (nodes in asked and (nodes.value == 1 or node in asked)):
        return  # the user knows how often the launcher was started
    ranked = {claim.source for claim in ledger.about(Fact.RANK)}
    for claim in ledger.list_several():
        if claim.source not in ranked and (starter := _find_program(claim.source)):
            name = name_only(claim.origin)
            yield ledger.refuse("rank-not-passed", found=claim.origin, starter=starter, name=name)
            return


def check_place(ledger: Ledger) -> Iterator[Problem]:
    """Report numbers of one process that no placement allows, if there is no plainer contradiction.

    Local ranks number a node's processes in the order of their ranks, and nodes are numbered in the order of
    their lowest ranks, unless their sources say otherwise (`Evidence.in_order`).
    """
    rank, world, local, size, node, nodes = map(ledger.number, IDENTITY)
    if rank is None or local is None or ledger.has_problem("contradiction"):
        return
    is_shuffled = not _is_in_order(ledger, Fact.LOCAL_RANK) and world and size and world % size == 0
    if is_shuffled and size and is_by_domain(rank, local, size):
        local = rank % size  # its place among the node's ranks
    of_process, of_sizes = (Fact.RANK, Fact.LOCAL_RANK), (Fact.LOCAL_SIZE, Fact.WORLD_SIZE)
    numbers = {"rank": rank, "local": local, "size": size, "world": world}
    if rank < local:
        yield ledger.refuse_facts("rank-below-local", *of_process, **numbers)
    elif world and size and rank - local > world - size:
        yield ledger.refuse_facts("node-beyond-world", *of_process, *of_sizes, **numbers)
    elif nodes == 1 and rank != local:
        yield ledger.refuse_facts("rank-not-local", *of_process, Fact.NODE_COUNT)
    if node is None or not _is_in_order(ledger):
        return
    after = (nodes or node + 1) - 1 - node
    if rank < node + local or (rank == 0) != (node == local == 0):
        yield ledger.refuse_facts("node-out-of-order", *of_process, Fact.NODE_RANK)
    elif world and local == 0 and rank > world - (size or 1) - after:
        of_nodes = (Fact.NODE_RANK, Fact.NODE_COUNT)
        yield ledger.refuse_facts("rank-too-high", Fact.RANK, *of_nodes, Fact.WORLD_SIZE, after=after)


def check_master(ledger: Ledger, topology: Topology, host: Host) -> Iterator[Problem]:
    """Report a master that is not on node 0, as far as names, addresses and networks show it."""
    claims = [ledger.best(fact) for fact in (Fact.MASTER_ADDR, Fact.NODE_RANK)]
    address, node = topology.master_addr, topology.node_rank
    are_typed = all(claim is not None and is_typed(claim) for claim in claims)
    if not address or address.startswith("127.") or not topology.places or are_typed:
        return  # of a user who typed both, several nodes may be on one machine
    first = topology.places[0]
    # The launcher around this one has checked its own: then the user may run several nodes on one machine
    is_lowest = first.local_rank == 0 and not any(item.source == LAUNCHED for item in ledger.evidence)
    is_after = (is_lowest and first.rank > 0) or (node and _is_in_order(ledger))
    if is_after and is_called(host, address):
        fact, what = (Fact.NODE_RANK, f"this is node {node}") if node else (Fact.RANK, "rank 0 is on another")
        fix, master = "pass --master-addr HOST (the host of rank 0)", ledger.origin(Fact.MASTER_ADDR)
        if claims[0] is not None and claims[0].trust < Trust.INDIRECT:
            fix = ledger.correct(Fact.MASTER_ADDR, fact)
        yield ledger.refuse("master-here", master=master, why=what, origin=ledger.origin(fact), fix=fix)
    elif any(place.rank == 0 for place in topology.places) and (
        place := _find_elsewhere(ledger, address, host)
    ):
        shown_by = [fact for fact in (Fact.RANK, Fact.NODE_RANK) if ledger.about(fact)][:1]
        origin, fix = ", ".join(map(ledger.origin, shown_by)), ledger.correct(*shown_by, Fact.MASTER_ADDR)
        yield ledger.refuse("master-elsewhere", origin=origin, address=address, place=place, fix=fix)


def _find_elsewhere(ledger: Ledger, address: str, host: Host) -> str:
    """Return what shows that an address is another node's; empty if nothing does."""
    if is_called(host, address):
        return ""
    for claim in ledger.about(Fact.HOSTS):
        is_here = is_called(host, *claim.hosts)
        if is_here and address in claim.hosts:
            return f"another host of {claim.origin}"
        of_starter = is_here and claim.source in ledger.speakers
        if of_starter and host.own_addresses().isdisjoint(host.resolve(address)):
            return f"which is not this node, and not in {claim.origin}"
    return "another address of this node's network" if is_elsewhere(host, address) else ""


def _is_in_order(ledger: Ledger, fact: Fact = Fact.NODE_RANK) -> bool:
    """Whether the source of node_rank, or of local_rank, numbers in the order of ranks."""
    claim = ledger.best(fact)
    return claim is None or all(item.in_order or item.source != claim.source for item in ledger.evidence)


def check_seat(ledger: Ledger) -> Iterator[Problem]:
    """Report a node_rank whose source lists this node at another place: it is of another node.

    Of node 0 `check_master` says more.
    """
    rank = ledger.best(Fact.NODE_RANK)
    seats = ledger.list_seats(rank) if rank and rank.value and _is_in_order(ledger) else []
    if rank and seats and rank.value not in seats:
        fix = ledger.correct(Fact.NODE_RANK, Fact.HOSTS)
        yield ledger.refuse("other-seat", rank=rank.origin, seat=seats[0], fix=fix)


def check_least(ledger: Ledger) -> Iterator[Problem]:
    """Report a node_rank from the user that is below an index of this node (`Evidence.least`)."""
    for least in (item.least for item in ledger.evidence if item.least is not None):
        for claim in ledger.about(Fact.NODE_RANK):
            if claim.trust is Trust.ASKED and int(str(claim.value)) < int(str(least.value)):
                name = name_only(least.origin)
                yield ledger.refuse("other-node", asked=claim.origin, least=least.origin, name=name)


def check_hosts(ledger: Ledger) -> Iterator[Problem]:
    """Report a host list whose length is not the number of nodes."""
    # Sources that give a list also claim its length as node_count, so lists of different length have been
    # compared already. This check is for a count that was derived or requested.
    listed, count = ledger.best(Fact.HOSTS), ledger.best(Fact.NODE_COUNT)
    if listed is None or count is None or count.trust is Trust.STATED or ledger.options.switch("standalone"):
        return
    if listed.trust is Trust.STATED and (length := len(listed.hosts)) != count.value:
        yield ledger.refuse("other-length", count=count.origin, listed=listed.origin, length=length)
