"""Decides whether the launcher was started once per node or once per process.

It compares the number of launchers that were started on this node with the number of processes that the node
should run. The presence of RANK decides nothing, because platforms set it in both cases.
"""

from __future__ import annotations

from launcher.core.errors import LauncherError, make_error, make_problem
from launcher.core.frozen import replace
from launcher.core.model import AMD_GPU, INTEGRATED_XPU, Claim, Decided, Fact, Lost, Scope, Trust
from launcher.identity.ledger import DEFAULTS, STARTED, Ledger, derive
from launcher.identity.topology import list_places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.core.errors import Problem
    from launcher.core.model import Evidence, Machine

ONE_PER_NODE = "tensorflow"
"""A framework in which one process uses all GPUs of its node."""
MPI_SOURCES = frozenset(("open_mpi", "hydra", "mvapich", "pals", "flux", "horovod"))
"""Sources whose processes may belong to an MPI that was started outside of the launcher."""
TWO = 2
"""Largest number of nodes, or of processes, of which one shows what the other is like."""


def decide_scope(ledger: Ledger, machine: Machine, *, starts_processes: bool = False) -> tuple[Scope, Ledger]:
    """Return how often we were started, by comparing local_size with the wanted processes per node.

    ``starts_processes``: the command starts the processes of a node itself. Then the platform is taken to
    have started one launcher per node, unless it shows that there are several.
    """
    asked = ledger.options.text("scope", "auto")
    shown = _find_process(ledger)
    if shown:
        return Scope.PROCESS, ledger.fold(lambda it: _refuse_node(it, shown, asked))
    if asked == Scope.PROCESS.value and (problem := _refuse_process(ledger)) is not None:
        return Scope.NODE, ledger.fold(lambda _: [problem])
    if asked != "auto":
        return Scope(asked), ledger
    # Where the starter's rank is missing, a process of any source is one; it then lacks its rank
    speaking = [i for i in ledger.evidence if i.source in ledger.speakers or not ledger.about(Fact.RANK)]
    if not starts_processes and any(item.starts is Scope.PROCESS for item in speaking):
        return Scope.PROCESS, ledger
    for item in ledger.evidence:
        if item.starts is Scope.PROCESS and starts_processes and _is_one_per_node(item):
            return Scope.NODE, ledger
        if item.starts is not None:
            return item.starts, ledger
        if any(claim.fact in STARTED for claim in item.claims):
            return _compare_sizes(ledger.fold(add_local_size), machine, starts_processes)
    return Scope.NODE, ledger


def _refuse_node(ledger: Ledger, shown: str, asked: str) -> Iterator[Problem]:
    if asked == Scope.NODE.value:
        yield ledger.refuse("scope-node", asked=ledger.options.origins("scope")[0], shown=shown)


def _refuse_process(ledger: Ledger) -> Problem | None:
    """Return how ``--scope process`` contradicts a platform that starts one launcher per node.

    It does not if any source gives this process a rank.
    """
    per_node = next((item for item in ledger.evidence if item.starts is Scope.NODE), None)
    if per_node is None or ledger.about(Fact.RANK):
        return None
    source, of_node = per_node.source, (Fact.NODE_RANK, Fact.NODE_COUNT)
    shown = next((claim.origin for claim in per_node.claims if claim.fact in of_node), source)
    asked = ledger.options.origins("scope")[0]
    return ledger.refuse("scope-process", asked=asked, shown=shown, source=source)


def _find_process(ledger: Ledger) -> str:
    """Return what shows that this is a process of the job, for messages; empty if nothing does.

    It is a task without a rank, or a claim that several processes were started on this node. The claim must
    be of a source that gives this very process its rank. A platform around it that starts one launcher per
    node has then started the starter of this process.
    """
    ranked = {claim.source for claim in ledger.about(Fact.RANK)}.intersection(ledger.speakers)
    for claim in ledger.list_several():
        if claim.source in ranked:
            return f"{claim.origin}: this is one of several processes of this node"
    tasks = (item for item in ledger.evidence if item.task)
    return next((f"this is {item.task}, one process ({item.source})" for item in tasks), "")


def _is_one_per_node(item: Evidence) -> bool:
    """Whether a source has started exactly one process on every node."""
    known = {claim.fact: claim.value for claim in item.claims}
    world, nodes = known.get(Fact.WORLD_SIZE), known.get(Fact.NODE_COUNT)
    return known.get(Fact.LOCAL_SIZE) == 1 and world is not None and world == nodes


def _compare_sizes(ledger: Ledger, machine: Machine, starts_processes: bool) -> tuple[Scope, Ledger]:
    local_size, local_rank = ledger.number(Fact.LOCAL_SIZE), ledger.number(Fact.LOCAL_RANK) or 0
    # Alone on this node, but others run several: starting one per GPU is not up to us
    above = ledger.best(Fact.NODE_RANK) if _is_above_its_node(ledger) else None
    is_own = above is not None and above.source in {*ledger.speakers} - {DEFAULTS}
    if (local_size or 0) > 1 or local_rank > 0 or _outnumbers_nodes(ledger) or is_own:
        return Scope.PROCESS, ledger
    if starts_processes:
        return Scope.NODE, ledger
    wanted, notes = find_wanted(ledger, machine)
    ledger = ledger.fold(lambda _: notes)
    if wanted.value == 1:
        return Scope.NODE if _restarts_nodes(ledger) else Scope.PROCESS, ledger
    if local_size is None and above is not None:
        return Scope.PROCESS, ledger
    return Scope.NODE, ledger.fold(lambda it: _find_ambiguity(it, wanted))


def _restarts_nodes(ledger: Ledger) -> bool:
    """Whether the launcher is to restart the only process of its node.

    With one process per node, a launcher per process is one per node, too. The processes that mpirun starts
    are the exception: MPI ends the job with the first of them, and cannot connect to another in its place.
    """
    if not any(ledger.options.number(dest, 0) for dest in ("restarts", "spares")):
        return False
    counts = [ledger.number(fact) for fact in (Fact.LOCAL_SIZE, Fact.WORLD_SIZE, Fact.NODE_COUNT)]
    is_one_each = counts[0] == 1 and counts[1] is not None and counts[1] == counts[2]
    return is_one_each and MPI_SOURCES.isdisjoint(ledger.speakers)


def _outnumbers_nodes(ledger: Ledger) -> bool:
    """Whether more launchers were started than there are nodes, so that some share a node."""
    world = ledger.number(Fact.WORLD_SIZE)
    counts = (ledger.number(Fact.NODE_COUNT), *(item.most_nodes for item in ledger.evidence))
    return world is not None and any(count is not None and world > count for count in counts)


def _is_above_its_node(ledger: Ledger) -> bool:
    """Whether the rank is larger than node_rank, and so cannot be the rank of a node."""
    rank, node = ledger.number(Fact.RANK), ledger.number(Fact.NODE_RANK)
    return rank is not None and node is not None and rank > node


def _find_ambiguity(ledger: Ledger, wanted: Claim) -> Iterator[Problem]:
    """Yield the problem that a launcher may be one per node or one of several processes."""
    world = ledger.best(Fact.WORLD_SIZE)
    counted, size = world.origin if world else f"no {Fact.WORLD_SIZE.value}", ledger.best(Fact.LOCAL_SIZE)
    fits, why = wanted.value, wanted.origin
    if size is None:
        yield make_problem("ambiguous-scope", counted=counted, wanted=fits, origin=why)
    elif _may_be_a_rest(ledger):
        here, count = size.origin, ledger.number(Fact.WORLD_SIZE)
        yield make_problem("ambiguous-rest", counted=counted, size=here, wanted=fits, origin=why, count=count)


def _may_be_a_rest(ledger: Ledger) -> bool:
    """Whether this process may be alone because the nodes before it are full (``-hosts a:2,b:1``).

    This is excluded if node_count is known, if the allocation has a node for each process, if the user gives
    node_rank, or if this is the last process and each one before it has a node. It is also excluded if the
    number of processes per node is requested or stated, because then the launcher is meant to start them.
    """
    world = ledger.number(Fact.WORLD_SIZE) or 1
    places = ledger.about(Fact.NODE_RANK)
    nodes = [item.most_nodes for item in ledger.evidence]
    known = (
        ledger.about(Fact.NODE_COUNT)
        or world in nodes
        or any(
            claim.trust is Trust.ASKED or claim.value == ledger.number(Fact.RANK) == world - 1
            for claim in places
        )
    )
    told = any(claim.trust <= Trust.STATED for claim in ledger.about(Fact.PROCESSES_PER_NODE))
    return world > TWO and not known and not told


def settle_processes(ledger: Ledger, machine: Machine) -> Ledger:
    """Return the ledger with the number of processes that a launcher per node starts here.

    Raises:
        HardwareMissing: This node lacks devices.
    """
    wanted, notes = find_wanted(ledger, machine)
    _check_visible(ledger, machine)
    others = (c for c in ledger.about(wanted.fact) if not wanted.origin.startswith(c.origin))
    lost = (
        Lost(c, "agrees" if c.value == wanted.value else f"less direct than {wanted.origin}") for c in others
    )
    return replace(ledger, findings={wanted.fact: Decided(wanted, tuple(lost))}).fold(lambda _: notes)


def _check_visible(ledger: Ledger, machine: Machine) -> None:
    """Refuse a node with fewer visible GPUs than the platform says, if the job may have other nodes.

    Raises:
        HardwareMissing: GPUs are missing.
    """
    claim, visible = ledger.best(Fact.PROCESSES_PER_NODE), machine.gpu_count
    if ledger.number(Fact.NODE_COUNT) == 1 or visible is None or claim is None:
        return
    if claim.trust > Trust.STATED and isinstance(claim.value, int) and claim.value > visible:
        raise make_error("missing-gpus", source=claim.source, stated=claim.origin, visible=visible)


def find_wanted(ledger: Ledger, machine: Machine) -> tuple[Claim, list[str]]:
    """Return the number of processes that a node should run, and a note if one is due.

    The number is the first of: a number that is requested or stated; 1 for a framework that needs one process
    per node; the visible GPUs; the platform's number, if this machine's GPUs are unknown (in a replay); 1.

    Raises:
        HardwareMissing: A word such as ``gpu`` sets the number, and there is no such device.
    """
    best, gpus = ledger.best(Fact.PROCESSES_PER_NODE), machine.gpu_count
    if best is not None and best.trust <= Trust.STATED:
        return replace(_resolve_word(best, machine), trust=Trust.DERIVED), []
    if ledger.options.framework == ONE_PER_NODE:
        return _want(1, f"one {ONE_PER_NODE} process uses all GPUs of its node"), []
    if gpus:
        return _want(gpus, f"{gpus} visible GPUs"), []
    if best is None or not best.value:
        return _want(1, "no GPUs"), []
    if gpus is None and isinstance(best.value, int):
        return replace(best, trust=Trust.DERIVED), []
    return _want(1, "no GPUs"), [f"{best.origin} but no GPU is visible here: one process"]


def _want(count: int, origin: str) -> Claim:
    return derive(Fact.PROCESSES_PER_NODE, count, origin, Trust.DERIVED)


def _resolve_word(claim: Claim, machine: Machine) -> Claim:
    if isinstance(claim.value, int):
        return claim
    word = "gpu" if claim.value == "cuda" else str(claim.value)
    kinds = dict(machine.accelerators)
    gpus, integrated = kinds.pop(AMD_GPU, 0), kinds.pop(INTEGRATED_XPU, 0)
    found = {"gpu": machine.gpu_count or gpus, **kinds, "cpu": machine.cpu_count or 1}
    if word == "auto":  # torch takes the accelerator that it was built for; integrated graphics do not count
        word = next(kind for kind, count in found.items() if count != 0)
    count = found.get(word, integrated if word == "xpu" else 0)
    if not count:
        raise _no_devices(claim, word, known=count is not None)
    return Claim(claim.fact, count, f"{claim.origin}: {count} {word.upper()}s", claim.source, claim.trust)


def _no_devices(claim: Claim, word: str, *, known: bool) -> LauncherError:
    """Return the error that there is no device of a kind, or that their number is unknown."""
    where = "command line" if claim.origin.startswith("-") else f"environment, source {claim.source}"
    if word == "gpu":
        return make_error("no-gpu", where=where, asked=claim.origin)
    row = {"where": where, "asked": claim.origin, "kind": word.upper()}
    return make_error("no-accelerator" if known else "uncounted-accelerator", **row)


def add_local_size(ledger: Ledger) -> Iterator[Claim]:
    """Add the number of launchers started on this node if no variable states it but other facts prove it."""
    world, nodes = ledger.number(Fact.WORLD_SIZE), ledger.best(Fact.NODE_COUNT)
    if ledger.about(Fact.LOCAL_SIZE) or not world:
        return
    count = nodes.value if nodes is not None else 1 if world == 1 else 0
    if not isinstance(count, int) or not count:
        return
    origin = ledger.origin(Fact.WORLD_SIZE)
    if count in (1, world):  # every node has at least one process
        yield derive(Fact.LOCAL_SIZE, world // count, origin, Trust.DERIVED)
    elif (
        world % count == 0 and nodes and ledger.is_even(nodes.source) and _fits(ledger, world // count, count)
    ):
        yield derive(Fact.LOCAL_SIZE, world // count, f"{origin} over {nodes.origin}", Trust.DERIVED)


def _fits(ledger: Ledger, size: int, nodes: int) -> bool:
    """Whether the numbers of this process are possible if every node runs ``size`` processes."""
    rank, local, node = map(ledger.number, (Fact.RANK, Fact.LOCAL_RANK, Fact.NODE_RANK))
    if rank is None or local is None:
        return True
    places = list_places(rank, local, size, nodes)
    return local < size and (node in places if node is not None else bool(places))
