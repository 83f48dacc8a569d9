"""Decides the Allocation, which is what the platform gave us, from the Evidence of all sources.

All problems are reported together and not one per attempt. A guess never replaces a problem.
"""

from __future__ import annotations

from launcher.core.environ import DEFAULT_PORT, is_loopback
from launcher.core.errors import EnvironmentUntrusted, Problem
from launcher.core.model import Allocation, Claim, Evidence, Fact, Machine, Scope, Trust
from launcher.identity.contradictions import check_below, check_hosts, check_least, check_process
from launcher.identity.ledger import (
    DEFAULTS,
    IDENTITY,
    RULE,
    STARTED,
    Ledger,
    is_typed,
    name_fact,
    say_needs,
    sift_node,
    sift_sizes,
)
from launcher.identity.rendezvous import (
    gives_ranks,
    is_all_here,
    knows_who_is_who,
    read_range,
    settle_master,
    settle_range,
)
from launcher.identity.scope import add_local_size, decide_scope, settle_processes
from launcher.identity.topology import find_node
from launcher.options.reading import DEFAULTS as FILES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from launcher.options.reading import Options

IDENTIFYING = ((Fact.NODE_COUNT, Fact.NODE_RANK), (Fact.WORLD_SIZE, Fact.RANK))
"""Each pair identifies this process, even if a variable hints at several nodes (MASTER_ADDR under mpirun)."""


def decide(
    evidence: Sequence[Evidence],
    options: Options,
    machine: Machine,
    *,
    is_own: Callable[..., bool],
    starts_processes: bool = False,
    starts_job: bool = False,
) -> tuple[Allocation, Ledger]:
    """Decide what the platform gave us.

    Args:
        evidence: Evidence of the sources, the innermost first.
        options: The user's options.
        machine: The devices and CPUs of this node, which may set the number of processes.
        is_own: Function that tells whether one of some names and addresses is literally this node's.
        starts_processes: Whether the command starts the processes of a node itself.
        starts_job: Whether it also starts those of other nodes, as mpirun does.

    Returns:
        The allocation, and the ledger with provenance and notes.

    Raises:
        EnvironmentUntrusted: All malformed, missing and contradictory values together.
        HardwareMissing: This node lacks the devices that the number of processes requires.
    """
    ledger = Ledger(evidence, options)
    alone = starts_job and _is_head(ledger)
    if not alone:
        _add_single_machine(ledger, is_own)
    scope = Scope.NODE if alone else decide_scope(ledger, machine, starts_processes=starts_processes)
    node_range = None if scope is Scope.PROCESS else read_range(ledger)
    settle_range(ledger, node_range)
    task = "" if alone else next((item.task for item in evidence if item.task), "")
    if alone:
        settled = _settle_head(ledger, machine)
    else:
        settled = _settle(ledger, machine, scope, node_range, task, is_own)
    check_hosts(ledger)
    check_least(ledger)
    ledger.join_missing()
    if ledger.problems:
        raise EnvironmentUntrusted(*ledger.problems, notes=ledger.notes)
    hosts = ledger.settle(Fact.HOSTS)
    listed = isinstance(hosts, tuple) and settled["node_count"] in (None, len(hosts))
    settled["hosts"] = hosts if listed else ()
    source = _name_sources(ledger)
    return Allocation(source=source, scope=scope, node_range=node_range, task=task, **settled), ledger


def _settle(
    ledger: Ledger,
    machine: Machine,
    scope: Scope,
    node_range: tuple[int, int] | None,
    task: str,
    is_own: Callable[..., bool],
) -> dict[str, Any]:
    """Settle the node and process that this is, and the address of rank 0.

    Returns:
        Fields of an `Allocation`, by name.
    """
    at_start = False
    if task or scope is Scope.PROCESS:
        settled = _settle_task(ledger) if task else _settle_process(ledger, is_own)
        single = is_all_here(ledger)
    else:
        settled, at_start = _settle_node(ledger, machine, node_range)
        single = settled["node_count"] == 1
    address, port = settle_master(ledger, single, scope, is_own, at_start=at_start)
    return {**settled, "master_addr": address, "master_port": port, "ranks_at_start": at_start}


def _is_head(ledger: Ledger) -> bool:
    """Whether we run where a whole job is started from (a batch script, the launcher pod of an MPIJob).

    There are signs of other nodes, and no claim that a launcher was started on each of them.
    """
    started = any(ledger.about(fact) for fact in (*STARTED, Fact.NODE_RANK))
    asked = ledger.options.text("scope") == Scope.PROCESS.value
    return not started and not asked and any(item.signs for item in ledger.evidence)


def _settle_head(ledger: Ledger, machine: Machine) -> dict[str, Any]:
    """Settle only the processes per node: the launcher in the command finds the nodes."""
    settle_processes(ledger, machine)
    ledger.notes.append(
        "the job is started from this node: the command's own launcher finds the nodes and runs once"
    )
    nowhere = {"master_addr": "", "master_port": DEFAULT_PORT}
    return {"node_rank": None, "node_count": None, "ranks_at_start": True, **nowhere}


def _add_single_machine(ledger: Ledger, is_own: Callable[..., bool]) -> None:
    # Only if there is no sign of other nodes: a sign without an identity is an error, not node 0
    facts = (*STARTED, Fact.NODE_RANK, Fact.NODE_COUNT, Fact.NODE_RANGE)
    only_node_0 = _is_typed_node_0(ledger, facts)
    known = any(ledger.about(fact) for fact in facts) and not only_node_0
    signs = [sign for item in ledger.evidence for sign in item.signs]
    if only_node_0 or not any(
        claim.source != DEFAULTS or ledger.speakers for fact in facts for claim in ledger.about(fact)
    ):
        signs += _sign_master(ledger, is_own)
    if known and not signs:
        return
    if not signs and ledger.options.text("source", "manual") != "manual":
        ledger.missing(
            f"{ledger.options.origins('source')[0]} gives neither the node nor the rank of this process, "
            "and no other source is read",
            "leave it out, or pass --nnodes N --node-rank R --master-addr HOST; --nnodes 1 for one node",
        )
        return
    if not signs:
        nothing = "nothing in the environment hints at other nodes"
        ledger.add(Fact.NODE_COUNT, 1, nothing)
        ledger.add(Fact.NODE_RANK, 0, nothing)
        return
    if knows_who_is_who(ledger) or any(_identifies(ledger, count, index) for count, index in IDENTIFYING):
        return
    for origin, fix in signs:
        ledger.problems.append(
            Problem(
                "no-identity",
                f"can't tell which node or rank this is (found: {origin})",
                "command line" if origin.startswith("--") else "environment",
                fix,
            )
        )


def _is_typed_node_0(ledger: Ledger, facts: Sequence[Fact]) -> bool:
    """Whether there is no claim but a ``--node-rank 0`` flag, which means a single node, as for torchrun."""
    claims = [claim for fact in facts for claim in ledger.about(fact)]
    return all(claim.fact is Fact.NODE_RANK and claim.value == 0 and is_typed(claim) for claim in claims)


def _sign_master(ledger: Ledger, is_own: Callable[..., bool]) -> list[tuple[str, str]]:
    """Return claims of a master on another machine, except the user's, as signs of several nodes.

    Each sign is (origin, fix).
    """
    fix = "pass --nnodes N --node-rank R, or --nnodes 1 for a single node"
    elsewhere = [
        claim
        for claim in ledger.about(Fact.MASTER_ADDR)
        if claim.trust is not Trust.ASKED
        and not is_loopback(str(claim.value))
        and not is_own(str(claim.value))
    ]
    return [(claim.origin, fix) for claim in elsewhere]


def _identifies(ledger: Ledger, count: Fact, index: Fact) -> bool:
    # Images have RANK=0 and WORLD_SIZE=1 as defaults: these do not refute a sign of several nodes
    by_hand = {DEFAULTS, *(item.source for item in ledger.evidence if item.lone)}
    found = [claim for claim in ledger.about(count) if claim.value != 1 or claim.source not in by_hand]
    return bool(found and ledger.about(index))


def _settle_node(
    ledger: Ledger, machine: Machine, node_range: tuple[int, int] | None
) -> tuple[dict[str, int | None], bool]:
    """Settle a launcher that was started once per node: the starter's ranks are node_ranks.

    Returns:
        Fields of an `Allocation` about the node, and whether ranks are assigned at the start.
    """
    ledger.settle(Fact.RANK)  # reports contradictions between the claims of the starters
    ledger.settle(Fact.WORLD_SIZE)
    known, ranks = ledger.about(Fact.NODE_RANK), ledger.about(Fact.RANK)
    for claim in [*ranks, *ledger.about(Fact.WORLD_SIZE)]:
        if claim.fact is Fact.RANK and known and claim.source not in ledger.speakers:
            continue  # a RANK without a WORLD_SIZE, or with WORLD_SIZE=1: an image's default
        if claim.fact is Fact.WORLD_SIZE and not any(rank.source == claim.source for rank in ranks):
            continue  # a world_size without a rank may count processes
        if claim.fact is Fact.RANK:
            fact, trust = Fact.NODE_RANK, Trust.DERIVED  # starters may order the nodes differently
        elif node_range is None:
            fact, trust = Fact.NODE_COUNT, claim.trust
        else:
            continue
        origin = f"{claim.origin}, one per node"
        ledger.claims.append(Claim(fact, claim.value, origin, claim.source, max(trust, claim.trust)))
    for fact in (*STARTED, Fact.LOCAL_SIZE):
        ledger.findings.pop(fact, None)  # these counted launchers, but a plan counts processes
    settle_processes(ledger, machine)
    count, rank = ledger.number(Fact.NODE_COUNT), ledger.number(Fact.NODE_RANK)
    if count == 1 and rank is None:
        ledger.add(Fact.NODE_RANK, 0, ledger.origin(Fact.NODE_COUNT))
        rank = ledger.number(Fact.NODE_RANK)
    at_start = gives_ranks(ledger.options, None if node_range else count or 1)
    if node_range is None:
        _require(ledger, Fact.NODE_COUNT, count, "--nnodes N")
    if not at_start:
        _require(ledger, Fact.NODE_RANK, rank, "--node-rank R")
    check_below(ledger, Fact.NODE_RANK, Fact.NODE_COUNT)
    return {"node_rank": rank, "node_count": count}, at_start


def _settle_task(ledger: Ledger) -> dict[str, int | None]:
    """Settle a process of the job without a rank: only its name must be known, all numbers may be None."""
    return {
        "node_rank": ledger.number(Fact.NODE_RANK),
        "node_count": ledger.number(Fact.NODE_COUNT),
        "world_size": ledger.number(Fact.WORLD_SIZE),
    }


def _settle_process(ledger: Ledger, is_own: Callable[..., bool]) -> dict[str, int | None]:
    """Settle a launcher that was started once per process, with only stated or proven numbers."""
    sift_sizes(ledger)
    add_local_size(ledger)
    local_size, world = ledger.number(Fact.LOCAL_SIZE), ledger.number(Fact.WORLD_SIZE)
    rank = ledger.number(Fact.RANK)
    if local_size == 1 and not ledger.about(Fact.LOCAL_RANK):
        ledger.add(Fact.LOCAL_RANK, 0, ledger.origin(Fact.LOCAL_SIZE))
    sift_node(ledger, is_own)
    local_rank = ledger.number(Fact.LOCAL_RANK)
    _require(ledger, Fact.RANK, rank, "RANK, or start with mpirun, srun or torchrun")
    _require(ledger, Fact.WORLD_SIZE, world, "WORLD_SIZE, or start with mpirun, srun or torchrun")
    _require(
        ledger,
        Fact.LOCAL_RANK,
        local_rank,
        "LOCAL_RANK, or pass --scope node if started once per node",
    )
    _add_nodes(ledger)
    check_process(ledger)
    return {
        "rank": rank,
        "world_size": world,
        "local_rank": local_rank,
        "local_size": local_size,
        "node_rank": ledger.number(Fact.NODE_RANK),
        "node_count": ledger.number(Fact.NODE_COUNT),
    }


def _add_nodes(ledger: Ledger) -> None:
    """Add the node_count and node_rank that the sizes prove; the quotient alone proves nothing.

    ``rank // local_size`` is wrong for cyclic and for uneven placement, and one process cannot see either. We
    use it only if the node_count is known from elsewhere and divides the world evenly, and if the local rank
    fits.
    """
    world, size = ledger.number(Fact.WORLD_SIZE), ledger.number(Fact.LOCAL_SIZE)
    rank, local = ledger.number(Fact.RANK), ledger.number(Fact.LOCAL_RANK)
    if world is not None and world == size:
        ledger.add(Fact.NODE_COUNT, 1, f"{ledger.origin(Fact.WORLD_SIZE)}, all on this node")
    nodes = ledger.number(Fact.NODE_COUNT)
    if nodes == 1:
        ledger.add(Fact.NODE_RANK, 0, ledger.origin(Fact.NODE_COUNT))
    elif rank is not None and size and _is_in_blocks(ledger, rank, local, size, world):
        origin = f"{ledger.origin(Fact.RANK)} // {ledger.origin(Fact.LOCAL_SIZE)}, in blocks"
        ledger.add(Fact.NODE_RANK, rank // size, origin)
    if ledger.missed:
        return
    if not ledger.about(Fact.NODE_RANK):
        ledger.notes.append(
            "nothing states or proves the index of this node: NODE_RANK and GROUP_RANK are "
            "not set (fix: --node-rank R)"
        )
    if not ledger.about(Fact.LOCAL_SIZE):
        ledger.notes.append(
            "nothing states or proves how many processes this node runs: LOCAL_WORLD_SIZE is "
            "not set (fix: --nnodes N, or set LOCAL_WORLD_SIZE)"
        )


def _is_in_blocks(ledger: Ledger, rank: int, local: int | None, size: int, world: int | None) -> bool:
    """Whether the rank is placed in blocks on equal nodes, and cyclic placement gives no other node."""
    nodes = ledger.number(Fact.NODE_COUNT)
    if nodes is None or local is None or world != nodes * size:
        return False
    block, dealt = find_node(rank, local, size, nodes)
    stated = ledger.findings[Fact.NODE_COUNT].claim.trust <= Trust.STATED
    return stated and block is not None and dealt in (None, block)


def _require(ledger: Ledger, fact: Fact, value: int | None, fix: str) -> None:
    if value is None and not ledger.is_broken():
        known = [claim for claim in ledger.claims if claim.fact in IDENTITY and claim.source != RULE]
        others = sorted({claim.origin for claim in known})
        left = [claim.origin.partition("=")[0] for claim in known if claim.source == DEFAULTS]
        if left:
            fix += f"; or unset {', '.join(sorted(set(left)))} for a single node"
        ledger.missing(
            f"{say_needs(others)} {name_fact(fact)}",
            f"set {fix}" if fix[0].isupper() else f"pass {fix}",
            fact,
        )


def _name_sources(ledger: Ledger) -> str:
    """Name the sources whose claims won, e.g. ``"open_mpi + azure_batch"``."""
    winners = {finding.claim.source for finding in ledger.findings.values()}
    winners.discard(FILES)  # defaults from configuration files do not start anything
    named = [item.source for item in ledger.evidence if item.source in winners]
    return " + ".join(dict.fromkeys(named)) or "local"
