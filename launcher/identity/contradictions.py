"""Finds numbers that cannot all be true of one job, and reports each contradiction with a fix."""

from __future__ import annotations

from launcher.core.blocks import read_blocks
from launcher.core.errors import make_problem
from launcher.core.frozen import replace
from launcher.core.model import Claim, Evidence, Fact, Topology, Trust
from launcher.identity.ledger import IDENTITY, LAUNCHED, STARTED, Ledger, is_typed, list_several
from launcher.identity.topology import is_by_domain
from launcher.machine.own_names import is_called, is_elsewhere

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.core.errors import Problem
    from launcher.machine.host import Host


PAIRS = (
    (Fact.RANK, Fact.WORLD_SIZE),
    (Fact.LOCAL_RANK, Fact.LOCAL_SIZE),
    (Fact.NODE_RANK, Fact.NODE_COUNT),
)
"""Each index, and the count that it is below."""
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
    if any(c.trust is Trust.ASKED and c.value == 1 for c in ledger.about(Fact.NODE_COUNT)):
        return tuple(item if item.source in ledger.speakers else _without_nodes(item) for item in evidence)
    name = _find_program(whole.source) or f"what set {whole.origin.partition('=')[0]}"
    where, world = ledger.where(), whole.origin
    problem = make_problem("lone-world", where=where, world=world, name=name, other=said[0])
    ledger.fold(lambda _: [problem]).check()
    return evidence


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


def _without_nodes(item: Evidence) -> Evidence:
    return replace(item, claims=tuple(c for c in item.claims if c.fact not in OF_NODES), signs=())


def check_numbers(ledger: Ledger) -> Iterator[Problem]:
    """Report contradictory numbers; once per node, those of single processes are closed."""
    yield from ledger.find_contradictions(*IDENTITY)
    for index, count in PAIRS:
        yield from check_below(ledger, index, count)
    yield from _check_asked(ledger)
    yield from _check_sizes(ledger)


def check_alone(ledger: Ledger) -> Iterator[Problem]:
    """Report a starter that shows several processes on this node but gives no rank: not once per node."""
    nodes, ranked = ledger.best(Fact.NODE_COUNT), {claim.source for claim in ledger.about(Fact.RANK)}
    if ledger.problems or nodes is None or nodes.trust is Trust.ASKED:
        return  # the user knows how often the launcher was started
    several = (c for c in ledger.list_several() if c.source not in ranked and _find_program(c.source))
    claim = next(several, None)
    if claim is not None:
        starter, name = _find_program(claim.source), claim.origin.partition("=")[0]
        where, found = ledger.where(), claim.origin
        yield make_problem("rank-not-passed", where=where, found=found, starter=starter, name=name)


def check_place(ledger: Ledger) -> Iterator[Problem]:
    """Report numbers of one process that no placement allows, if there is no plainer contradiction.

    Local ranks number a node's processes in the order of their ranks, and nodes are numbered in the order of
    their lowest ranks, unless their sources say otherwise (`Evidence.in_order`).
    """
    if ledger.has_contradiction():
        return
    rank, world, local, size, node, nodes = map(ledger.number, IDENTITY)
    if rank is None or local is None:
        return
    is_shuffled = not _is_in_order(ledger, Fact.LOCAL_RANK) and world and size and world % size == 0
    if is_shuffled and size and is_by_domain(rank, local, size):
        local = rank % size  # its place among the node's ranks
    if rank < local:
        what = f"local rank {local} has {local} ranks below it"
        yield _refuse(ledger, what, Fact.RANK, Fact.LOCAL_RANK)
    elif world and size and rank - local > world - size:
        what = f"this node's {size} processes do not fit into a world of {world} at rank {rank}"
        yield _refuse(ledger, what, Fact.RANK, Fact.LOCAL_RANK, Fact.LOCAL_SIZE, Fact.WORLD_SIZE)
    elif nodes == 1 and rank != local:
        what = "on one node rank and local rank are the same"
        yield _refuse(ledger, what, Fact.RANK, Fact.LOCAL_RANK, Fact.NODE_COUNT)
    if node is None or not _is_in_order(ledger):
        return
    after = (nodes or node + 1) - 1 - node
    if rank < node + local or (rank == 0) != (node == local == 0):
        what = "rank 0 is on node 0, and the lowest rank of each node is higher than that of the node before"
        yield _refuse(ledger, what, Fact.RANK, Fact.LOCAL_RANK, Fact.NODE_RANK)
    elif world and local == 0 and rank > world - (size or 1) - after:
        what = f"each of the {after} nodes after this one needs a higher rank"
        yield _refuse(ledger, what, Fact.RANK, Fact.NODE_RANK, Fact.NODE_COUNT, Fact.WORLD_SIZE)


def _refuse(ledger: Ledger, what: str, *facts: Fact) -> Problem:
    named = ", ".join(dict.fromkeys(ledger.origin(fact) for fact in facts if ledger.about(fact)))
    fix = ledger.correct(*facts)
    return make_problem("impossible-place", where=ledger.where(), values=named, why=what, fix=fix)


def check_master(ledger: Ledger, topology: Topology, host: Host) -> None:
    """Refuse a master that is not on node 0, as far as this node's names, addresses and networks show it.

    Raises:
        EnvironmentUntrusted: Values cannot all be true.
    """
    ledger.fold(lambda it: _check_master(it, topology, host)).check()


def _check_master(ledger: Ledger, topology: Topology, host: Host) -> Iterator[Problem]:
    """Report a master that is not on node 0, as far as names, addresses and networks show it."""
    claims = [ledger.best(fact) for fact in (Fact.MASTER_ADDR, Fact.NODE_RANK)]
    address, node = topology.master_addr, topology.node_rank
    if not address or address.startswith("127.") or not topology.places:
        return
    if all(claim is not None and is_typed(claim) for claim in claims):
        return  # the user may run several nodes on one machine
    first = topology.places[0]
    # The launcher around this one has checked its own: then the user may run several nodes on one machine
    is_lowest = first.local_rank == 0 and not any(item.source == LAUNCHED for item in ledger.evidence)
    is_after = (is_lowest and first.rank > 0) or (node and _is_in_order(ledger))
    if is_after and is_called(host, address):
        fact, what = (Fact.NODE_RANK, f"this is node {node}") if node else (Fact.RANK, "rank 0 is on another")
        fix, master = "pass --master-addr HOST (the host of rank 0)", ledger.origin(Fact.MASTER_ADDR)
        if claims[0] is not None and claims[0].trust < Trust.INDIRECT:
            fix = ledger.correct(Fact.MASTER_ADDR, fact)
        where, origin = ledger.where(), ledger.origin(fact)
        yield make_problem("master-here", where=where, master=master, why=what, origin=origin, fix=fix)
    elif any(place.rank == 0 for place in topology.places):
        shown_by = [fact for fact in (Fact.RANK, Fact.NODE_RANK) if ledger.about(fact)][:1]
        if place := _find_elsewhere(ledger, address, host):
            yield make_problem(
                "master-elsewhere",
                where=ledger.where(),
                origin=", ".join(map(ledger.origin, shown_by)),
                address=address,
                place=place,
                fix=ledger.correct(*shown_by, Fact.MASTER_ADDR),
            )


def _find_elsewhere(ledger: Ledger, address: str, host: Host) -> str:
    """Return what shows that an address is another node's; empty if nothing does."""
    if is_called(host, address):
        return ""
    for claim in ledger.about(Fact.HOSTS):
        listed = claim.value if isinstance(claim.value, tuple) else ()
        if not is_called(host, *listed):
            continue
        if address in listed:
            return f"another host of {claim.origin}"
        if claim.source in ledger.speakers and host.own_addresses().isdisjoint(host.resolve(address)):
            return f"which is not this node, and not in {claim.origin}"
    return "another address of this node's network" if is_elsewhere(host, address) else ""


def _is_in_order(ledger: Ledger, fact: Fact = Fact.NODE_RANK) -> bool:
    """Whether the source of node_rank, or of local_rank, numbers in the order of ranks."""
    claim = ledger.best(fact)
    return claim is None or all(item.in_order or item.source != claim.source for item in ledger.evidence)


def _check_sizes(ledger: Ledger) -> Iterator[Problem]:
    """Report sizes that do not fit together: each node runs at least one process."""
    sizes = (Fact.WORLD_SIZE, Fact.LOCAL_SIZE, Fact.NODE_COUNT)
    world, size, nodes = map(ledger.number, sizes)
    if not world:
        return
    known = [fact for fact in sizes if ledger.about(fact)]
    others = (nodes or 1) - 1
    is_alone = nodes == 1 or (nodes is None and any(item.most_nodes == 1 for item in ledger.evidence))
    if world < (size or 1) + others:
        hint = ", not nodes" if world == nodes else ""
        what = f"at least {(size or 1) + others} processes expected in all{hint}"
    elif is_alone and size and size < world:
        what = f"{size} of {world} processes run on this node, which is the only one"
    elif size and nodes and nodes * size != world and _fills_evenly(ledger):
        what = "this platform starts the same number on every node"
    else:
        return
    yield _refuse(ledger, what, *known)


def _fills_evenly(ledger: Ledger) -> bool:
    """Whether node_count is that of a platform with several nodes and equally many processes on each."""
    claim = ledger.best(Fact.NODE_COUNT)
    several = claim is not None and claim.trust is not Trust.ASKED and claim.value != 1
    return claim is not None and several and ledger.is_even(claim.source)


def check_least(ledger: Ledger) -> Iterator[Problem]:
    """Report a node_rank from the user that is below an index of this node (`Evidence.least`)."""
    for least in (item.least for item in ledger.evidence if item.least is not None):
        for claim in ledger.about(Fact.NODE_RANK):
            if claim.trust is Trust.ASKED and int(str(claim.value)) < int(str(least.value)):
                name = least.origin.partition("=")[0]
                where, asked = ledger.where(), claim.origin
                yield make_problem("other-node", where=where, asked=asked, least=least.origin, name=name)


def check_below(ledger: Ledger, index: Fact, count: Fact) -> Iterator[Problem]:
    """Report an index that is not below its count."""
    number, limit = ledger.number(index), ledger.number(count)
    if number is not None and limit is not None and number >= limit:
        yield make_problem(
            "index-beyond",
            where=ledger.where(),
            index=ledger.origin(index),
            count=ledger.origin(count),
            name=index.value,
            last=limit - 1,
            fix=ledger.correct(index, count),
        )


def _check_asked(ledger: Ledger) -> Iterator[Problem]:
    """Report a requested number of processes that differs from the number that the platform has started."""
    given, local_size = ledger.options.get("nproc_per_node"), ledger.number(Fact.LOCAL_SIZE)
    if given and isinstance(given.value, int) and local_size and given.value != local_size:
        started = ledger.origin(Fact.LOCAL_SIZE)
        yield make_problem("already-started", asked=given.origin, started=started, count=local_size)


def check_hosts(ledger: Ledger) -> Iterator[Problem]:
    """Report a host list whose length is not the number of nodes."""
    # Sources that give a list also claim its length as node_count, so lists of different length have been
    # compared already. This check is for a count that was derived or requested.
    listed, count = ledger.best(Fact.HOSTS), ledger.best(Fact.NODE_COUNT)
    if listed is None or count is None or count.trust is Trust.STATED or ledger.options.switch("standalone"):
        return
    hosts = listed.value if isinstance(listed.value, tuple) else ()
    if len(hosts) != count.value and listed.trust is Trust.STATED:
        where, length = ledger.where(), len(hosts)
        yield make_problem(
            "other-length", where=where, count=count.origin, listed=listed.origin, length=length
        )
