"""What cannot all be true of one job: numbers that were found, one against the other, each with a fix."""

from __future__ import annotations

from launcher.ledger import Ledger
from launcher.model import Fact, Trust


def check_process(ledger: Ledger) -> None:
    """Report numbers of a launcher started once per process that contradict each other."""
    check_below(ledger, Fact.RANK, Fact.WORLD_SIZE)
    check_below(ledger, Fact.LOCAL_RANK, Fact.LOCAL_SIZE)
    check_below(ledger, Fact.NODE_RANK, Fact.NODE_COUNT)
    _check_asked(ledger)
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
    elif world and nodes and nodes > 1 and world == size:
        ledger.contradiction(
            f"{ledger.origin(Fact.NODE_COUNT)} means {nodes} nodes, but all {world} processes run on "
            f"this one ({ledger.origin(Fact.LOCAL_SIZE)})",
            "pass --nnodes 1 if that is meant, or start the processes on all nodes",
        )
    elif world and nodes and nodes > world:
        ledger.contradiction(
            f"{ledger.origin(Fact.NODE_COUNT)} nodes but {ledger.origin(Fact.WORLD_SIZE)} processes",
            "every node runs at least one process: correct or unset one of them",
        )


def check_below(ledger: Ledger, index: Fact, count: Fact) -> None:
    """Report an index that its count does not have."""
    number, limit = ledger.number(index), ledger.number(count)
    if number is not None and limit is not None and number >= limit:
        ledger.contradiction(
            f"{ledger.origin(index)} but {ledger.origin(count)}: expected {index.value} in 0..{limit - 1}",
            ledger.correct(index, count),
        )


def _check_asked(ledger: Ledger) -> None:
    """Report a number of processes that was asked for where the platform has started another already."""
    given, local_size = ledger.options.get("nproc_per_node"), ledger.number(Fact.LOCAL_SIZE)
    if given and isinstance(given.value, int) and local_size and given.value != local_size:
        ledger.contradiction(
            f"{given.origin} but {ledger.origin(Fact.LOCAL_SIZE)}: the platform has started the "
            f"processes of this node already, {local_size} of them",
            "leave out --nproc-per-node, or let the platform start one launcher per node",
            "command line and environment",
        )


def check_hosts(ledger: Ledger) -> None:
    """Report a host list of another length than the number of nodes."""
    # A list is also a claim on the node count, so two lists of different length have met already;
    # this is for a count that was derived or asked
    hosts, count = ledger.settle(Fact.HOSTS), ledger.number(Fact.NODE_COUNT)
    stated = ledger.findings.get(Fact.NODE_COUNT)
    if not isinstance(hosts, tuple) or count is None or stated is None or stated.claim.trust is Trust.STATED:
        return
    if len(hosts) != count and ledger.findings[Fact.HOSTS].claim.trust is Trust.STATED:
        ledger.contradiction(
            f"{stated.claim.origin} but {ledger.origin(Fact.HOSTS)} lists {len(hosts)} hosts",
            "correct the number of nodes or the host list",
        )
