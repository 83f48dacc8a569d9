"""How the processes meet: what gives out the ranks, and the address and port of rank 0. Pure.

The platform gives out ranks before the start, or torchrun's rendezvous does at it.
A static rendezvous is told every node's index. All others (c10d, etcd) give out indices as nodes come,
and again after each failure; so do elastic jobs, whose number of nodes is a range.
"""

from __future__ import annotations

from launcher.core.environ import DEFAULT_PORT, MEETS_AT_MASTER, is_loopback
from launcher.core.model import Fact, Lost, Scope, Trust
from launcher.identity.ledger import is_typed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.identity.ledger import Ledger
    from launcher.options.reading import Options

STATIC, C10D = "static", "c10d"
FREE = "one node: a port that is free"
LOOPBACK = "127.0.0.1"
MANUAL = "manual"
"""The source of what the user asks for."""
ALL_HERE = "; where all processes are on this node, set LOCAL_WORLD_SIZE as well"


def choose_backend(options: Options, node_count: int | None) -> str:
    """Return the rendezvous of a job: as asked, or the one that can do what was asked.

    Args:
        options: What the user asked for.
        node_count: Number of nodes; None for a range.
    """
    asked = options.text("rdzv_backend")
    if node_count == 1 and asked in ("", STATIC, C10D):
        return STATIC  # there is no other node; c10d would only hide the port
    if asked and (asked != STATIC or node_count is not None):
        return asked
    # Static agents cannot tell each other to start again
    return C10D if node_count is None or options.number("max_restarts", 0) else STATIC


def gives_ranks(options: Options, node_count: int | None) -> bool:
    """Whether ranks are known only once the nodes have met; ``node_count`` is None for a range."""
    return choose_backend(options, node_count) != STATIC


def read_range(ledger: Ledger) -> tuple[int, int] | None:
    """Return (least, most) nodes if the job is elastic: a range wins, unless a number was asked for."""
    ranges, counts = ledger.about(Fact.NODE_RANGE), ledger.about(Fact.NODE_COUNT)
    if not ranges or (counts and counts[0].trust is Trust.ASKED and ranges[0].trust is not Trust.ASKED):
        return None
    least, _, most = str(ranges[0].value).partition(":")
    return int(least), int(most)


def settle_range(ledger: Ledger, node_range: tuple[int, int] | None) -> None:
    """Let the range or the count win for good, and remember the other as lost."""
    beaten = Fact.NODE_RANGE if node_range is None else Fact.NODE_COUNT
    winner = Fact.NODE_COUNT if node_range is None else Fact.NODE_RANGE
    lost = [claim for claim in ledger.claims if claim.fact is beaten]
    ledger.claims = [claim for claim in ledger.claims if claim.fact is not beaten]
    ledger.findings.pop(beaten, None)
    why = "the number of nodes is fixed" if node_range is None else "the job is elastic"
    ledger.beaten[winner] = tuple(Lost(claim, why) for claim in lost)
    if lost or node_range is not None:
        ledger.settle(winner)


def knows_who_is_who(ledger: Ledger) -> bool:
    """Whether a rendezvous will tell which node this is, so that no variable must."""
    if read_range(ledger) is not None:
        return True
    counts = ledger.about(Fact.NODE_COUNT)
    count = counts[0].value if counts else 1
    return isinstance(count, int) and gives_ranks(ledger.options, count)


def settle_master(
    ledger: Ledger, single: bool, scope: Scope, is_own: Callable[..., bool], *, at_start: bool
) -> tuple[str, int]:
    """Settle address and port.

    Args:
        ledger: What is known.
        single: All processes run on this node.
        scope: How often the launcher was started.
        is_own: Whether one of some names and addresses is literally this node's.
        at_start: Ranks are given out at the start, perhaps at a server that is no node of the job.

    Returns:
        The address, empty if there is none (and a problem, unless the nodes meet elsewhere), and the
        port; 0 stands for one that is free.
    """
    if single:
        _leave_out_elsewhere(ledger, is_own)
        # Before circumstance: mpirun's idea of its own name need not resolve inside a container
        ledger.add(Fact.MASTER_ADDR, LOOPBACK, "one node", Trust.DERIVED)
    chooses = single and (scope is Scope.NODE or ledger.number(Fact.WORLD_SIZE) == 1)
    # Processes that a platform has started cannot agree on a port that each would choose
    if chooses:
        ledger.add(Fact.MASTER_PORT, 0, FREE, Trust.DERIVED)
    else:
        ledger.add(Fact.MASTER_PORT, DEFAULT_PORT, "default")
    if at_start and ledger.options.text("rdzv_backend", "static") not in MEETS_AT_MASTER:
        return "", DEFAULT_PORT
    address = ledger.settle(Fact.MASTER_ADDR)
    port = ledger.number(Fact.MASTER_PORT) or 0
    if address is None:
        _miss_address(ledger)
        return "", port
    _check_rank_0_is_master(ledger)
    if not single and is_loopback(str(address)):
        _judge_loopback(ledger, at_start=at_start)
    if port == 0 and scope is Scope.PROCESS and ledger.options.switch("standalone"):
        ledger.contradiction(
            "--standalone is for one launcher per node, but the platform has started each process",
            "leave --standalone out, or pass --scope node for a job of its own on each node",
        )
    elif port == 0 and not chooses:
        ledger.contradiction(
            f"{ledger.origin(Fact.MASTER_PORT)} is a port that each launcher would choose by itself",
            "name a port that is free on node 0",
        )
    return str(address), port


def _judge_loopback(ledger: Ledger, *, at_start: bool) -> None:
    """Obey a user who has typed a job of several nodes on this machine; refuse any other master that is us.

    A variable can be an image's, and each of a platform's nodes would be a job of its own.
    """
    address = ledger.findings[Fact.MASTER_ADDR].claim
    if any(item.seals and item.source == address.source for item in ledger.evidence):
        return  # the workers of torchrun, or of the launcher around this one, have met there
    origin = address.origin
    size = Fact.NODE_RANGE if Fact.NODE_RANGE in ledger.findings else Fact.NODE_COUNT
    facts = [Fact.MASTER_ADDR, size, *([] if at_start else [Fact.NODE_RANK])]
    if _knows_of_nodes(ledger):
        facts = []
    if facts and all(fact in ledger.findings and is_typed(ledger.findings[fact].claim) for fact in facts):
        ledger.notes.append(f"{origin} is this machine: all nodes of this job run here")
        return
    is_asked = address.trust is Trust.ASKED and not _knows_of_nodes(ledger)
    more = "; several nodes on this machine: type --nnodes N, --node-rank R and --master-addr ADDRESS"
    ledger.contradiction(
        f"{origin} is this node itself, but the job has several nodes",
        _fix_address(origin) + (more if is_asked else ""),
    )


def _knows_of_nodes(ledger: Ledger) -> bool:
    """Whether a platform says that there are several nodes, or which of them this is."""
    of_platforms = [claim for item in ledger.evidence[1:] for claim in item.claims if claim.source != MANUAL]
    return any(
        claim.fact in (Fact.NODE_RANK, Fact.HOSTS, Fact.NODE_RANGE)
        or (claim.fact is Fact.NODE_COUNT and claim.value != 1)
        for claim in of_platforms
    )


def _leave_out_elsewhere(ledger: Ledger, is_own: Callable[..., bool]) -> None:
    """Leave out a master that a variable puts on another machine than the only node."""
    claims = [c for c in ledger.about(Fact.MASTER_ADDR) if c.trust in (Trust.STATED, Trust.DERIVED)]
    away = [c for c in claims if not is_loopback(str(c.value)) and not is_own(str(c.value))]
    ledger.leave_out(away, "all processes are on this node, and it is no name or address of it")


def _miss_address(ledger: Ledger) -> None:
    """Report that nothing says where rank 0 is, unless what is wrong already explains it."""
    counts = (Fact.WORLD_SIZE, Fact.NODE_COUNT, Fact.NODE_RANGE)
    sizes = ", ".join(ledger.origin(fact) for fact in counts if fact in ledger.findings)
    if sizes and not ledger.is_broken():
        there, more = ("are", "") if _spans_nodes(ledger) else ("may be", ALL_HERE)
        ledger.missing(
            f"master_addr is not stated by any variable, and there {there} several nodes ({sizes})",
            f"pass --master-addr HOST (the host of rank 0), or set MASTER_ADDR on every node{more}",
        )


def _spans_nodes(ledger: Ledger) -> bool:
    """Whether it is known that there are several nodes, rather than not known that there is one."""
    nodes, size = ledger.number(Fact.NODE_COUNT), ledger.number(Fact.LOCAL_SIZE)
    return Fact.NODE_RANGE in ledger.findings or (nodes or 1) > 1 or size is not None


def _fix_address(origin: str) -> str:
    """Return how to name another master, where one was named like this."""
    flag = next((word for word in origin.split(" ") if word.startswith("-")), "")
    if origin.startswith("-"):
        return f"{flag} with the address of node 0"
    if flag:  # of a command that is a launcher: torchrun --rdzv_endpoint localhost:0
        return f"{flag} with the address of node 0, or leave it out where the platform names that"
    name = origin.partition(" ")[0].partition("=")[0]
    return f"set {name} to the address of node 0, or unset it"


def _check_rank_0_is_master(ledger: Ledger) -> None:
    """Rank 0 listens at the master's address: what names the master must not place it elsewhere."""
    master = ledger.findings[Fact.MASTER_ADDR].claim
    found = ledger.findings.get(Fact.RANK) or ledger.findings.get(Fact.NODE_RANK)
    if found is None or master.trust is Trust.ASKED or found.claim.trust is Trust.ASKED:
        return
    per_node = found.claim.fact is Fact.NODE_RANK
    places = [claim for item in ledger.evidence for claim in item.claims if claim.fact is Fact.NODE_RANK]
    for claim in places:
        first, there = found.claim.value == 0, claim.value == 0
        if claim.source == master.source and ((first and not there) or (per_node and there and not first)):
            ledger.contradiction(
                f"{found.claim.origin}, but this is node {claim.value} ({claim.origin}), and node 0 is the "
                f"master ({master.origin})",
                "rank 0 belongs on the master: start there first, unset the wrong variable, or pass "
                "--master-addr HOST",
            )


def is_all_here(ledger: Ledger) -> bool:
    """Whether all processes of the job run on this node."""
    world, size = ledger.number(Fact.WORLD_SIZE), ledger.number(Fact.LOCAL_SIZE)
    nodes = ledger.number(Fact.NODE_COUNT)
    return nodes == 1 or (nodes is None and world is not None and world in (1, size))
