"""Decides the Allocation, which is what the platform gave us, from the Evidence of all sources.

It is a fold: each rule sees the claims of the ones before it, and yields what follows from them (see
`launcher.identity.ledger`). All problems are reported together and not one per attempt. A guess never
replaces a problem.
"""

from __future__ import annotations

from launcher.core.blocks import read_blocks
from launcher.core.errors import Problem, make_problem
from launcher.core.frozen import replace
from launcher.core.model import DEFAULT_PORT, Allocation, Claim, Fact, Machine, Scope, Trust
from launcher.identity import contradictions, inherited, rendezvous
from launcher.identity.ledger import DEFAULTS, IDENTITY, RULE, STARTED, Ledger, derive, is_typed, name_only
from launcher.identity.scope import TWO, add_local_size, decide_scope, settle_processes
from launcher.identity.topology import list_places
from launcher.options.reading import DEFAULTS as FILES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

IDENTIFYING = ((Fact.NODE_COUNT, Fact.NODE_RANK), (Fact.WORLD_SIZE, Fact.RANK))
"""Each pair identifies this process, even if a variable hints at several nodes (MASTER_ADDR under mpirun)."""
LAUNCHERS = (*STARTED, Fact.LOCAL_SIZE)
"""Facts that count launchers at NODE scope, where a plan counts processes."""
OF_NODE = (Fact.NODE_RANK, Fact.NODE_COUNT)
OF_TASK = (*OF_NODE, Fact.WORLD_SIZE)
"""Facts of a process of the job without a rank: only its name must be known."""
HEAD = "the job is started from this node: the command's own launcher finds the nodes and runs once"


def decide(
    ledger: Ledger, machine: Machine, *, starts_processes: bool = False, starts_job: bool = False
) -> tuple[Allocation, Ledger]:
    """Decide what the platform gave us.

    Args:
        ledger: The claims of the options and of the sources.
        machine: The devices and CPUs of this node, which may set the number of processes.
        starts_processes: Whether the command starts the processes of a node itself.
        starts_job: Whether it also starts those of other nodes, as mpirun does.

    Returns:
        The allocation, and the ledger with provenance and notes.

    Raises:
        EnvironmentUntrusted: All malformed, missing and contradictory values together.
        HardwareMissing: This node lacks the devices that the number of processes requires.
    """
    scope, is_head = Scope.NODE, starts_job and _is_head(ledger)
    if not is_head:
        ledger = ledger.fold(_add_single_machine)
        scope, ledger = decide_scope(ledger, machine, starts_processes=starts_processes)
    node_range = None if scope is Scope.PROCESS else rendezvous.read_range(ledger)
    ledger = ledger.fold(lambda it: rendezvous.settle_range(it, is_elastic=node_range is not None))
    task = "" if is_head else next((item.task for item in ledger.evidence if item.task), "")
    at_start = is_head
    facts: tuple[Fact, ...] = IDENTITY
    needed: list[Fact] = []
    if is_head:
        facts = ()
        ledger = settle_processes(ledger, machine).add(HEAD)
    elif task:
        facts = OF_TASK
        ledger = ledger.fold(lambda it: it.find_contradictions(*facts, Fact.LOCAL_SIZE))
    elif scope is Scope.PROCESS:
        needed = [*STARTED]
        ledger = ledger.fold(
            *(inherited.sift_count, inherited.sift_size, add_local_size, _add_first),
            *(inherited.sift_node, _add_node_count, _add_first, _add_node_rank, _note_unknown),
        )
    else:
        facts = OF_NODE
        ledger = ledger.fold(lambda it: it.find_contradictions(*LAUNCHERS), contradictions.check_alone)
        ledger = ledger.fold(lambda it: _read_ranks(it, node_range))
        ledger = settle_processes(replace(ledger, closed=LAUNCHERS), machine).fold(_add_first)
        at_start = rendezvous.gives_ranks(ledger)
        needed = [*([] if node_range else [Fact.NODE_COUNT]), *([] if at_start else [Fact.NODE_RANK])]
    if facts and not task:
        ledger = ledger.fold(contradictions.check_numbers, contradictions.check_place)
    found = (Fact.HOSTS, Fact.NODE_COUNT, Fact.NODE_RANGE, *facts, *([Fact.LOCAL_SIZE] if task else []))
    address, port = "", DEFAULT_PORT
    if not is_head:
        ledger = rendezvous.settle_master(ledger, scope, at_start=at_start)
        if not rendezvous.meets_elsewhere(ledger, at_start=at_start):
            found = (*found, Fact.MASTER_ADDR, Fact.MASTER_PORT)
            needed.append(Fact.MASTER_ADDR)
            master = ledger.best(Fact.MASTER_ADDR)
            address, port = str(master.value) if master else "", ledger.number(Fact.MASTER_PORT) or 0
    seats = [contradictions.check_seat] if scope is Scope.NODE and not is_head else []
    ledger = ledger.fold(contradictions.check_hosts, contradictions.check_least, *seats)
    ledger = ledger.fold(lambda it: _find_missing(it, needed))
    ledger.check()
    ledger = replace(ledger, findings={**ledger.find(*found), **ledger.findings})
    numbers: dict[str, Any] = dict.fromkeys(fact.value for fact in OF_NODE)
    numbers |= {fact.value: ledger.number(fact) for fact in facts}
    hosts = next((claim.hosts for claim in ledger.about(Fact.HOSTS)), ())
    allocation = Allocation(
        source=_name_sources(ledger),
        scope=scope,
        master_addr=address,
        master_port=port,
        hosts=hosts if numbers["node_count"] in (None, len(hosts)) else (),
        ranks_at_start=at_start,
        node_range=node_range,
        task=task,
        **numbers,
    )
    return allocation, ledger


def _is_head(ledger: Ledger) -> bool:
    """Whether we run where a whole job is started from (a batch script, the launcher pod of an MPIJob).

    There are signs of other nodes, and no claim that a launcher was started on each of them.
    """
    started = any(ledger.about(fact) for fact in (*STARTED, Fact.NODE_RANK))
    asked = ledger.options.text("scope") == Scope.PROCESS.value
    return not started and not asked and any(item.signs for item in ledger.evidence)


def _add_single_machine(ledger: Ledger) -> Iterator[Claim | Problem]:
    # Only if there is no sign of other nodes: a sign without an identity is an error, not node 0
    facts = (*STARTED, Fact.NODE_RANK, Fact.NODE_COUNT, Fact.NODE_RANGE)
    claims = [claim for fact in facts for claim in ledger.about(fact)]
    only_node_0 = all(c.fact is Fact.NODE_RANK and c.value == 0 and is_typed(c) for c in claims)
    signs = [sign for item in ledger.evidence for sign in item.signs]
    if only_node_0 or not any(claim.source != DEFAULTS or ledger.speakers for claim in claims):
        fix = "pass --nnodes N --node-rank R, or --nnodes 1 for a single node"
        signs += [(claim.origin, fix) for claim in rendezvous.list_elsewhere(ledger)]
    if signs:
        is_known = rendezvous.gives_ranks(ledger) or any(_identifies(ledger, *it) for it in IDENTIFYING)
        for origin, fix in signs if not is_known else ():
            where = "command line" if origin.startswith("--") else "environment"
            yield make_problem("no-identity", where=where, found=origin, fix=fix)
    elif only_node_0 and ledger.options.text("source", "manual") != "manual":
        asked = ledger.options.origins("source")[0]
        yield ledger.refuse("source-without-place", asked=asked)
    elif only_node_0:  # which means a single node, as for torchrun
        nothing = "nothing in the environment hints at other nodes"
        yield derive(Fact.NODE_COUNT, 1, nothing)
        yield derive(Fact.NODE_RANK, 0, nothing)


def _identifies(ledger: Ledger, count: Fact, index: Fact) -> bool:
    # Images have RANK=0 and WORLD_SIZE=1 as defaults: these do not refute a sign of several nodes
    by_hand = {DEFAULTS, *(item.source for item in ledger.evidence if item.lone)}
    found = [claim for claim in ledger.about(count) if claim.value != 1 or claim.source not in by_hand]
    return bool(found and ledger.about(index))


def _read_ranks(ledger: Ledger, node_range: tuple[int, int] | None) -> Iterator[Claim | Problem]:
    """Read a starter's ranks as node_ranks, for a launcher that was started once per node."""
    known, ranks = ledger.about(Fact.NODE_RANK), ledger.about(Fact.RANK)
    for claim in ranks:
        if not known or claim.source in ledger.speakers:  # else an image's, without a world or in one of 1
            trust = max(Trust.DERIVED, claim.trust)  # starters may order the nodes differently
            origin = f"{claim.origin}, one per node"
            yield replace(claim, fact=Fact.NODE_RANK, origin=origin, trust=trust)
    for claim in ledger.about(Fact.WORLD_SIZE) if node_range is None else ():
        if any(rank.source == claim.source for rank in ranks):  # without a rank it may count processes
            yield replace(claim, fact=Fact.NODE_COUNT, origin=f"{claim.origin}, one per node")


def _add_first(ledger: Ledger) -> Iterator[Claim]:
    """Add that the only process of a node, or the only node, is the first one."""
    for count, index in ((Fact.LOCAL_SIZE, Fact.LOCAL_RANK), (Fact.NODE_COUNT, Fact.NODE_RANK)):
        if ledger.number(count) == 1 and not ledger.about(index):
            yield derive(index, 0, ledger.origin(count))


def _add_node_count(ledger: Ledger) -> Iterator[Claim]:
    world = ledger.number(Fact.WORLD_SIZE)
    if world is not None and world == ledger.number(Fact.LOCAL_SIZE):
        yield derive(Fact.NODE_COUNT, 1, f"{ledger.origin(Fact.WORLD_SIZE)}, all on this node")


def _add_node_rank(ledger: Ledger) -> Iterator[Claim]:
    """Add the node_rank that the sizes prove; the quotient alone proves nothing.

    ``rank // local_size`` is wrong for cyclic and for uneven placement, and one process cannot see either: a
    node of an uneven job may well run the mean number of processes. All nodes are alike if there are two, if
    each process has a node, or if the source of the node_count says so. Then the local rank must exclude
    cyclic placement.
    """
    rank, world, local, size, *_ = map(ledger.number, IDENTITY)
    nodes = ledger.best(Fact.NODE_COUNT)
    if rank is None or local is None or not size or nodes is None or not isinstance(nodes.value, int):
        return
    is_stated = nodes.value > 1 and nodes.trust <= Trust.STATED
    is_even = nodes.value == TWO or size == 1 or ledger.is_even(nodes)
    is_block = rank % size == local and list_places(rank, local, size, nodes.value) == [rank // size]
    if is_stated and world == nodes.value * size and is_even and is_block:
        origin = f"{ledger.origin(Fact.RANK)} // {ledger.origin(Fact.LOCAL_SIZE)}, in blocks"
        yield derive(Fact.NODE_RANK, rank // size, origin)


def _note_unknown(ledger: Ledger) -> Iterator[str]:
    is_missing = not ledger.is_broken() and any(ledger.number(fact) is None for fact in STARTED)
    for fact in (Fact.NODE_RANK, Fact.LOCAL_SIZE) if not is_missing else ():
        if not ledger.about(fact):
            yield f"nothing states or proves {_find_text(fact, 'unknown')}"


def _find_text(fact: Fact, field: str) -> str:
    """Return a text about a fact in ``facts.txt``; empty if it has none."""
    found = (block for block in read_blocks("identity/facts.txt") if block.name == fact.value)
    return next(found).fields.get(field, "")


def _find_missing(ledger: Ledger, needed: Sequence[Fact]) -> Iterator[Problem]:
    """Report what is not known, as one problem, unless another one explains it."""
    facts = [] if ledger.is_broken() else [fact for fact in needed if ledger.best(fact) is None]
    if Fact.MASTER_ADDR in facts and not rendezvous.list_sizes(ledger):
        facts.remove(Fact.MASTER_ADDR)
    if facts == [Fact.MASTER_ADDR]:
        yield rendezvous.miss_address(ledger)
    elif facts:
        given = [claim for claim in ledger.claims if claim.fact in IDENTITY and claim.source != RULE]
        origins = list(dict.fromkeys(claim.origin for claim in given))
        known = f"{', '.join(origins) or 'the job'} need{'' if len(origins) > 1 else 's'}"
        *names, last = (f"a {_find_text(fact, 'called') or fact.value.replace('_', ' ')}" for fact in facts)
        lacking = f"{', '.join(names)}{' and ' if names else ''}{last}"
        fix = _fix_missing(ledger, facts, given)
        yield ledger.refuse("missing-facts", known=known, lacking=lacking, fix=fix)


def _fix_missing(ledger: Ledger, facts: Sequence[Fact], given: Sequence[Claim]) -> str:
    """Return how to state missing facts; ``given``: the claims on the identity of this process."""
    is_one = len(facts) == 1
    by_hand = [c for c in given if (c.source == DEFAULTS if is_one else c.fact in STARTED)]
    left = ", ".join(sorted({name_only(claim.origin) for claim in by_hand}))
    if is_one:
        return _find_text(facts[0], "fix") + (f"; or unset {left} for a single node" if left else "")
    nodes = ledger.number(Fact.NODE_COUNT) or 0
    if (ledger.number(Fact.WORLD_SIZE) or 0) > nodes > 0:  # one launcher per node would start too few
        variables = " and ".join(fact.value.upper() for fact in facts)
        return f"set {variables} in each process, or pass --scope node if started once per node"
    more = "and" if nodes > 1 else "for a single node; for several unset it and"
    alone = f"unset {left} {more} " if left else ""
    count = "--nnodes N " if left or Fact.NODE_COUNT in facts else ""
    return f"{alone}pass --hosts HOST,... on every node, or {count}--node-rank R --master-addr HOST"


def _name_sources(ledger: Ledger) -> str:
    """Name the sources whose claims won, e.g. ``"open_mpi + azure_batch"``."""
    winners = {finding.claim.source for finding in ledger.findings.values()}
    winners.discard(FILES)  # defaults from configuration files do not start anything
    named = [item.source for item in ledger.evidence if item.source in winners]
    return " + ".join(dict.fromkeys(named)) or "local"
