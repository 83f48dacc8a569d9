"""Settles the rendezvous of a job: what assigns the ranks, and the address and port of rank 0. Pure.

Ranks are assigned by the platform before the start, or by torchrun's rendezvous at the start. A static
rendezvous is given every node's node_rank. All others (c10d, etcd) assign node_ranks as nodes join, and again
after each failure. So do elastic jobs, whose node_count is a range.
"""

from __future__ import annotations

from launcher.core.environ import C10D, MEETS_AT_MASTER, PORT_LIMIT, STATIC, is_loopback
from launcher.core.model import DEFAULT_PORT, Claim, Fact, Scope, Trust
from launcher.identity.ledger import Ledger, Out, derive, is_typed, list_several, name_only
from launcher.options.flags import PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.core.errors import Problem
    from launcher.options.reading import Options

CONTROL_PORT = 6106
LOOPBACK = "127.0.0.1"


def choose_backend(options: Options, node_count: int | None) -> str:
    """Return the rendezvous backend of a job: the requested one, or one that supports the options.

    Args:
        options: The user's options.
        node_count: Number of nodes; None for a range.
    """
    asked = options.text("rdzv_backend")
    if node_count == 1 and asked in ("", STATIC, C10D):
        return STATIC  # there is no other node; c10d would only hide the port
    # Agents with a static rendezvous cannot tell each other to restart
    restarts = node_count is None or options.number("max_restarts", 0)
    return asked if asked and (asked != STATIC or node_count is not None) else C10D if restarts else STATIC


def gives_ranks(ledger: Ledger) -> bool:
    """Whether the rendezvous assigns the ranks at the start, so that no variable needs to state them."""
    count = None if read_range(ledger) else ledger.number(Fact.NODE_COUNT) or 1
    return choose_backend(ledger.options, count) != STATIC


def read_range(ledger: Ledger) -> tuple[int, int] | None:
    """Return (least, most) nodes if the job is elastic, else None.

    A range wins over a number, unless the user requested the number and not the range.
    """
    ranges, counts = ledger.about(Fact.NODE_RANGE), ledger.about(Fact.NODE_COUNT)
    if not ranges or (counts and counts[0].trust is Trust.ASKED and ranges[0].trust is not Trust.ASKED):
        return None
    least, _, most = str(ranges[0].value).partition(":")
    return int(least), int(most)


def settle_range(ledger: Ledger, *, is_elastic: bool) -> Iterator[Out]:
    """Leave out the claims on the range or on the node_count, whichever loses."""
    beaten, why = Fact.NODE_RANGE, "the number of nodes is fixed"
    if is_elastic:
        beaten, why = Fact.NODE_COUNT, "the job is elastic"
    yield Out([claim for claim in ledger.claims if claim.fact is beaten], why)


def settle_master(ledger: Ledger, scope: Scope, *, at_start: bool) -> Ledger:
    """Return the ledger with the address and the port of the master, or with what is wrong with them.

    Args:
        ledger: The claims.
        scope: How often the launcher was started.
        at_start: Whether ranks are assigned at the start, perhaps by a server that is not a node of the job.
    """
    single = (ledger.number(Fact.NODE_COUNT) or ledger.number(Fact.WORLD_SIZE)) == 1
    # Processes that a platform has started would each choose another port, so they use the default
    chooses = single and (scope is Scope.NODE or ledger.number(Fact.WORLD_SIZE) == 1)
    ledger = ledger.fold(
        _leave_out_elsewhere if single else _leave_out_unforwarded,
        lambda _: _add_defaults(single=single, chooses=chooses),
    )
    if meets_elsewhere(ledger, at_start=at_start) or not ledger.about(Fact.MASTER_ADDR):
        return ledger
    if not single:
        ledger = ledger.fold(_leave_out_loopback, lambda it: _judge_loopback(it, at_start=at_start))
    return ledger.fold(lambda it: _check_port(it, scope, chooses=chooses))


def _add_defaults(*, single: bool, chooses: bool) -> Iterator[Claim]:
    if single:
        # Wins over INDIRECT claims: the host name that mpirun reports need not resolve inside a container
        yield derive(Fact.MASTER_ADDR, LOOPBACK, "one node", Trust.DERIVED)
    free = derive(Fact.MASTER_PORT, 0, "one node: any free port", Trust.DERIVED)
    yield free if chooses else derive(Fact.MASTER_PORT, DEFAULT_PORT, "default")


def meets_elsewhere(ledger: Ledger, *, at_start: bool) -> bool:
    """Whether the rendezvous is a server that is no node of the job.

    ``at_start``: whether ranks are assigned at the start.
    """
    return at_start and ledger.options.text("rdzv_backend", "static") not in MEETS_AT_MASTER


def _check_port(ledger: Ledger, scope: Scope, *, chooses: bool) -> Iterator[Problem]:
    """Report a port that each of several launchers would choose."""
    is_free = not ledger.number(Fact.MASTER_PORT)
    if is_free and scope is Scope.PROCESS and ledger.options.switch("standalone"):
        yield ledger.refuse("standalone-process")
    elif is_free and not chooses:
        yield ledger.refuse("own-ports", port=ledger.origin(Fact.MASTER_PORT))


def _leave_out_loopback(ledger: Ledger) -> Iterator[Out]:
    """Leave out a variable with a loopback master if a platform names one: an image's, or node 0's own."""
    claims = [c for c in ledger.about(Fact.MASTER_ADDR) if c.trust in (Trust.STATED, Trust.DERIVED)]
    local = [claim for claim in claims if is_loopback(str(claim.value)) and not _is_sealed(ledger, claim)]
    if len(local) < len(claims):
        yield Out(local, "on each node it is the node's own name for itself")


def _is_sealed(ledger: Ledger, claim: Claim) -> bool:
    """Whether torchrun or the launcher around this one has set a master, whose processes have met there."""
    return any(item.seals and item.source == claim.source for item in ledger.evidence)


def _judge_loopback(ledger: Ledger, *, at_start: bool) -> Iterator[Problem | str]:
    """Report a loopback master of a job with several nodes, unless the user typed such a job on one machine.

    A variable may come from an image. On a platform's nodes, each node would become a separate job.
    """
    address = ledger.about(Fact.MASTER_ADDR)[0]
    if not is_loopback(str(address.value)) or _is_sealed(ledger, address):
        return
    size = Fact.NODE_RANGE if ledger.about(Fact.NODE_RANGE) else Fact.NODE_COUNT
    claims = [ledger.best(fact) for fact in (Fact.MASTER_ADDR, size, *([] if at_start else [Fact.NODE_RANK]))]
    is_platforms = any(item.source != "manual" and [*list_several(item)] for item in ledger.evidence[1:])
    if not is_platforms and all(claim is not None and is_typed(claim) for claim in claims):
        yield f"{address.origin} is this machine: all nodes of this job run here"
        return
    more = "; several nodes on this machine: type --nnodes N, --node-rank R and --master-addr ADDRESS"
    fix = _fix_address(address.origin) + (more if address.trust is Trust.ASKED and not is_platforms else "")
    yield ledger.refuse("master-loopback", master=address.origin, fix=fix)


def list_elsewhere(ledger: Ledger) -> Iterator[Claim]:
    """Yield the claims of a master on another machine, except the user's."""
    for claim in ledger.about(Fact.MASTER_ADDR):
        address = str(claim.value)
        if claim.trust is not Trust.ASKED and not is_loopback(address) and not ledger.is_own(address):
            yield claim


def _leave_out_elsewhere(ledger: Ledger) -> Iterator[Out]:
    """Leave out a master that a variable places on another machine than the only node."""
    away = [claim for claim in list_elsewhere(ledger) if claim.trust is not Trust.INDIRECT]
    yield Out(away, "all processes are on this node, and this is not a name or address of it")


def _leave_out_unforwarded(ledger: Ledger) -> Iterator[Out]:
    """Leave out a port in a variable that the starter of this process keeps to its own node."""
    starters = [item for item in ledger.evidence if item.source in ledger.speakers]
    forwards = next((item.forwards for item in starters if item.forwards is not None), None)
    for claim in ledger.about(Fact.MASTER_PORT) if forwards is not None else ():
        name = name_only(claim.origin)
        stars = tuple(known[:-1] for known in forwards or () if known.endswith("*"))
        is_variable = claim.trust is not Trust.ASKED or name.startswith(PREFIX)
        if is_variable and name not in (forwards or ()) and not name.startswith(stars):
            why = f"mpirun may keep it to this node (fix: mpirun -x {name}, or --master-port N on every node)"
            yield Out([claim], why)


def list_sizes(ledger: Ledger) -> str:
    """Return the origins of what shows how large the job is."""
    counts = (Fact.WORLD_SIZE, Fact.NODE_COUNT, Fact.NODE_RANGE)
    return ", ".join(ledger.origin(fact) for fact in counts if ledger.about(fact))


def miss_address(ledger: Ledger) -> Problem:
    """Return the problem that the address of rank 0 is missing."""
    nodes, size = ledger.number(Fact.NODE_COUNT), ledger.number(Fact.LOCAL_SIZE)
    spans = bool(ledger.about(Fact.NODE_RANGE)) or (nodes or 1) > 1 or size is not None
    return ledger.refuse("missing-master" if spans else "maybe-missing-master", sizes=list_sizes(ledger))


def _fix_address(origin: str) -> str:
    """Return the fix that names another master, by the flag or variable of the wrong one."""
    name = name_only(origin)
    # A flag of a command that is a launcher itself: torchrun --rdzv_endpoint localhost:0
    more = "" if origin.startswith("-") else ", or leave it out where the platform names that"
    by_flag = f"{name} with the address of node 0{more}"
    return by_flag if name.startswith("-") else f"set {name} to the address of node 0, or unset it"


def plan_control_ports(options: Options, used: frozenset[int]) -> tuple[int, ...]:
    """Return the ports at which node 0's launcher may listen for the others, without those that are used."""
    asked = options.get("control_port")
    first = int(options.number("control_port", CONTROL_PORT))
    tried = range(first, min(first + (1 if asked else 8), PORT_LIMIT))
    return tuple(port for port in tried if port not in used) or (first,)
