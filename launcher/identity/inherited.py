"""Rules for claims that may be another process's: those of sources around the starter of this one.

Their rank, world_size and local_rank never fill a gap (`launcher.identity.ledger`). Their node_rank may be
another node's, and their counts another job's. We test them against rank and sizes, which the starter states:
in a job whose nodes all run as many processes as this one, only few nodes can have a given rank. These rules
are for a launcher that was started once per process.
"""

from __future__ import annotations

from launcher.core.model import Claim, Fact, Trust
from launcher.identity.ledger import Ledger, Out, is_typed, name_only
from launcher.identity.topology import is_by_domain, list_places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.core.errors import Problem


def sift_count(ledger: Ledger) -> Iterator[Out]:
    """Leave out a node_count that the job's processes do not fill evenly: it may be an outer job's."""
    world, size = ledger.number(Fact.WORLD_SIZE), ledger.number(Fact.LOCAL_SIZE)
    if not world or not size:
        return
    for claim in _inherited(ledger, Fact.NODE_COUNT):
        count = claim.value
        # One node, or more than half of the processes here: correct, or reported elsewhere as a contradiction
        if not isinstance(count, int) or 1 in (count, world // size) or ledger.is_even(claim):
            continue
        if count * size != world and count - 1 <= world - size:
            hosts = [other for other in ledger.about(Fact.HOSTS) if other.source == claim.source]
            why = f"{size} of {world} processes run on this node, which does not prove this number of nodes"
            yield Out([claim, *hosts], why)


def sift_size(ledger: Ledger) -> Iterator[Out]:
    """Leave out an inherited local_size whose product with node_count is not world_size.

    Nothing is left out if a source about this process states local_size.
    """
    world, nodes = ledger.number(Fact.WORLD_SIZE), ledger.number(Fact.NODE_COUNT)
    size = world // nodes if world and nodes and world % nodes == 0 else None
    found = [] if _is_stated(ledger, Fact.LOCAL_SIZE) else _inherited(ledger, Fact.LOCAL_SIZE)
    yield Out([claim for claim in found if claim.value != size], "nothing proves that it is this node's")


def sift_node(ledger: Ledger) -> Iterator[Out | Problem]:
    """Leave out a node_rank that nothing proves; report one that does not fit the rank and the sizes."""
    if _is_stated(ledger, Fact.NODE_RANK):
        return
    places = _list_places(ledger)
    count = ledger.best(Fact.NODE_COUNT)
    is_own_job = count is not None and count.value == 1 and is_typed(count)
    for claim in ledger.about(Fact.NODE_RANK):
        if not ledger.is_inherited(claim):
            if claim.trust is Trust.ASKED and places is not None and claim.value not in places:
                yield _refuse_or_leave(ledger, claim)
        elif is_own_job and claim.trust is not Trust.ASKED:
            yield Out([claim], f"{ledger.origin(Fact.NODE_COUNT)}: this node is a separate job")
        elif (seats := ledger.list_seats(claim)) and claim.value not in seats:
            yield Out([claim], "it is of another node: its own list has this one elsewhere")
        elif places is None:
            yield Out([claim], "it is inherited, and nothing proves that it is this node's")
        elif claim.value not in places:
            yield _refuse_or_leave(ledger, claim)
        elif claim.value != places[0]:
            yield Out([claim], f"this rank may be on node {places[0]} or {places[1]}")


def _refuse_or_leave(ledger: Ledger, claim: Claim) -> Out | Problem:
    """Report a node_rank that does not fit; only leave it out if it is from a host list.

    A host list may have another order than the ranks.
    """
    if claim.trust is Trust.DERIVED:
        return Out([claim], "its list orders the nodes differently from the ranks")
    rank, size = ledger.origin(Fact.RANK), ledger.origin(Fact.LOCAL_SIZE)
    named = {"claimed": claim.origin, "node": claim.value, "name": name_only(claim.origin)}
    verb = "leave out" if is_typed(claim) else "unset"
    return ledger.refuse("no-such-place", rank=rank, size=size, verb=verb, **named)


def _list_places(ledger: Ledger) -> list[int] | None:
    """Return the nodes that can have this rank, that of placement in blocks first.

    None if numbers are missing, or if nodes may run different numbers of processes.
    """
    rank, local = ledger.number(Fact.RANK), ledger.number(Fact.LOCAL_RANK)
    world, size = ledger.number(Fact.WORLD_SIZE), ledger.number(Fact.LOCAL_SIZE)
    nodes = ledger.number(Fact.NODE_COUNT)
    if rank is None or local is None or not size or not nodes or world != nodes * size:
        return None
    places = list_places(rank, local, size, nodes)
    return places or ([rank // size] if is_by_domain(rank, local, size) else [])


def _is_stated(ledger: Ledger, fact: Fact) -> bool:
    """Whether a source about this process states a fact."""
    return any(claim.source in ledger.speakers for claim in ledger.about(fact))


def _inherited(ledger: Ledger, fact: Fact) -> list[Claim]:
    return [claim for claim in ledger.about(fact) if ledger.is_inherited(claim)]
