"""What sources around the starter say of the nodes: which of it is true of this process.

`mpiexec`, `srun` and `flux run` hand the submitter's variables to all processes, so that an index among them
can be another node's, and a count another job's. Rank and sizes, which the starter states, are the test: in a
job whose nodes all run as many processes as this one, few places are left for a rank.
"""

from __future__ import annotations

from launcher.core.model import Fact, Trust
from launcher.identity.ledger import Ledger, is_typed
from launcher.identity.topology import find_node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.core.model import Claim


def sift_sizes(ledger: Ledger) -> None:
    """Leave out what nothing proves of number of nodes and local size.

    For a launcher that was started once per process, as `sift_node`.
    """
    _sift_count(ledger)
    _sift_size(ledger)


def _sift_count(ledger: Ledger) -> None:
    """Leave out a number of nodes that this job's processes do not fill evenly: it may be an outer job's."""
    world, size = ledger.number(Fact.WORLD_SIZE), _known_size(ledger)
    even = {item.source for item in ledger.evidence if item.even}  # another size there is a contradiction
    for claim in list(_inherited(ledger, Fact.NODE_COUNT)):
        count = claim.value
        # One node, or all processes here: right, or a contradiction that is named elsewhere
        if not world or not size or not isinstance(count, int) or 1 in (count, world // size):
            continue
        if count * size != world and count - 1 <= world - size and claim.source not in even:
            hosts = [other for other in ledger.about(Fact.HOSTS) if other.source == claim.source]
            why = f"{size} of {world} processes run on this node, which proves no such number of nodes"
            ledger.leave_out([claim, *hosts], why)


def _sift_size(ledger: Ledger) -> None:
    """Leave out a local size that is not every node's."""
    world, nodes = ledger.number(Fact.WORLD_SIZE), ledger.number(Fact.NODE_COUNT)
    wrong = [
        claim
        for claim in _inherited(ledger, Fact.LOCAL_SIZE)
        if _states(ledger, Fact.LOCAL_SIZE) is None
        and not (world and nodes and isinstance(claim.value, int) and claim.value * nodes == world)
    ]
    ledger.leave_out(wrong, "nothing proves that it is this node's")


def sift_node(ledger: Ledger) -> None:
    """Leave out a node index that nothing proves; report one that does not fit the rank and the sizes."""
    if _states(ledger, Fact.NODE_RANK) is not None:
        return
    places = _list_places(ledger)
    for claim in list(_inherited(ledger, Fact.NODE_RANK)):
        if places is None:
            ledger.leave_out([claim], "it is inherited, and nothing proves that this node is meant")
        elif claim.value not in places:
            _refuse_or_leave(ledger, claim)
        elif claim.value != places[0]:
            ledger.leave_out([claim], f"this rank may stand on node {places[0]} or {places[1]}")
    for claim in ledger.about(Fact.NODE_RANK):
        if (
            claim.trust is Trust.ASKED
            and is_typed(claim)
            and places is not None
            and claim.value not in places
        ):
            _refuse_or_leave(ledger, claim)


def _refuse_or_leave(ledger: Ledger, claim: Claim) -> None:
    """Refuse an index that was said; leave out one that a list of hosts gave, in an order of its own."""
    if claim.trust is Trust.DERIVED:
        ledger.leave_out([claim], "its list has the nodes in another order than the ranks")
        return
    ledger.settle(Fact.LOCAL_SIZE)
    rank, size = ledger.origin(Fact.RANK), ledger.origin(Fact.LOCAL_SIZE)
    verb = "leave out" if is_typed(claim) else "unset"
    ledger.contradiction(
        f"{claim.origin} but {rank} with {size} on each node: node {claim.value} has no such rank",
        f"{verb} {claim.origin.replace('=', ' ').split(' ', 1)[0]}: it is another node's",
    )


def _list_places(ledger: Ledger) -> list[int] | None:
    """Return the nodes that this rank can stand on, in blocks first; None where nodes may be uneven."""
    rank, local = ledger.number(Fact.RANK), ledger.number(Fact.LOCAL_RANK)
    world, size = ledger.number(Fact.WORLD_SIZE), _known_size(ledger)
    nodes = ledger.number(Fact.NODE_COUNT)
    if rank is None or local is None or not size or not nodes or world != nodes * size:
        return None
    return list(dict.fromkeys(node for node in find_node(rank, local, size, nodes) if node is not None))


def _known_size(ledger: Ledger) -> int | None:
    """Return how many processes the starter runs here, or what follows from its numbers."""
    return next((c.value for c in ledger.about(Fact.LOCAL_SIZE) if isinstance(c.value, int)), None)


def _states(ledger: Ledger, fact: Fact) -> object:
    """Return what the sources that speak of this process say of a fact."""
    return next((c.value for c in ledger.about(fact) if c.source in ledger.speakers), None)


def _inherited(ledger: Ledger, fact: Fact) -> Iterator[Claim]:
    return (claim for claim in ledger.about(fact) if ledger.is_inherited(claim))
