"""Decides whether the launcher was started once per node or once per process.

It compares the number of launchers that were started on this node with the number of processes that the node
should run. The presence of RANK decides nothing, because platforms set it in both cases.
"""

from __future__ import annotations

from launcher.core.errors import Problem, make_error, make_problem
from launcher.core.frozen import replace
from launcher.core.model import AMD_GPU, INTEGRATED_XPU, Claim, Decided, Fact, Lost, Machine, Scope, Trust
from launcher.identity.ledger import DEFAULTS, IDENTITY, STARTED, Ledger, derive
from launcher.identity.topology import list_places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

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
    shown, origins = _find_process(ledger), ledger.options.origins("scope")
    if shown:
        if asked == Scope.NODE.value:
            ledger = ledger.add(ledger.refuse("scope-node", asked=origins[0], shown=shown))
        return Scope.PROCESS, ledger
    per_node = next((item for item in ledger.evidence if item.starts is Scope.NODE), None)
    if asked == Scope.PROCESS.value and per_node is not None and not ledger.about(Fact.RANK):
        of_node = (claim.origin for claim in per_node.claims if claim.fact in IDENTITY[-2:])
        named = {"shown": next(of_node, per_node.source), "source": per_node.source}
        return Scope.NODE, ledger.add(ledger.refuse("scope-process", asked=origins[0], **named))
    if asked != "auto":
        return Scope(asked), ledger
    # Where the starter's rank is missing, a process of any source is one; it then lacks its rank
    speaking = [i for i in ledger.evidence if i.source in ledger.speakers or not ledger.about(Fact.RANK)]
    if not starts_processes and any(item.starts is Scope.PROCESS for item in speaking):
        return Scope.PROCESS, ledger
    for item in ledger.evidence:
        known = {claim.fact: claim.value for claim in item.claims}
        world, nodes, size = (known.get(f) for f in (Fact.WORLD_SIZE, Fact.NODE_COUNT, Fact.LOCAL_SIZE))
        if item.starts is Scope.PROCESS and starts_processes and size == 1 and None is not world == nodes:
            return Scope.NODE, ledger  # one process on every node
        if item.starts is not None:
            return item.starts, ledger
        if not known.keys().isdisjoint(STARTED):
            return _compare_sizes(ledger.fold(add_local_size), machine, starts_processes)
    return Scope.NODE, ledger


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


def _compare_sizes(ledger: Ledger, machine: Machine, starts_processes: bool) -> tuple[Scope, Ledger]:
    rank, world, local_rank, local_size, node, nodes = map(ledger.number, IDENTITY)
    # A rank above that of its node: others run several, and starting one per GPU is not up to us
    above = ledger.best(Fact.NODE_RANK) if None not in (rank, node) and (rank or 0) > (node or 0) else None
    is_own = above is not None and above.source in {*ledger.speakers} - {DEFAULTS}
    most = [count for count in (nodes, *(item.most_nodes for item in ledger.evidence)) if count is not None]
    outnumbers = world is not None and any(world > count for count in most)  # some launchers share a node
    if (local_size or 0) > 1 or (local_rank or 0) > 0 or outnumbers or is_own:
        return Scope.PROCESS, ledger
    if starts_processes:
        return Scope.NODE, ledger
    wanted, notes = find_wanted(ledger, machine)
    ledger = ledger.add(*notes)
    if wanted.value == 1:
        # The launcher restarts the only process of a node, but MPI cannot connect to another in its place
        is_one_each = local_size == 1 and None is not world == nodes
        restarts = any(ledger.options.number(dest, 0) for dest in ("restarts", "spares"))
        is_node = restarts and is_one_each and MPI_SOURCES.isdisjoint(ledger.speakers)
        return Scope.NODE if is_node else Scope.PROCESS, ledger
    if local_size is None and above is not None:
        return Scope.PROCESS, ledger
    return Scope.NODE, ledger.fold(lambda it: _find_ambiguity(it, wanted))


def _find_ambiguity(ledger: Ledger, wanted: Claim) -> Iterator[Problem]:
    """Yield the problem that a launcher may be one per node or one of several processes.

    It may also be alone because the nodes before it are full (``-hosts a:2,b:1``). This is excluded if
    node_count is known, if the allocation has a node for each process, if the user gives node_rank, or if
    this is the last process and each one before it has a node. It is also excluded if the number of
    processes per node is requested or stated, because then the launcher is meant to start them.
    """
    rank, count, size = ledger.number(Fact.RANK), ledger.number(Fact.WORLD_SIZE), ledger.best(Fact.LOCAL_SIZE)
    named = {"counted": ledger.origin(Fact.WORLD_SIZE), "wanted": wanted.value, "origin": wanted.origin}
    is_last = rank is not None and rank + 1 == count
    if size is None:
        yield make_problem("ambiguous-scope", **named)
    elif not (
        (count or 1) <= TWO
        or ledger.about(Fact.NODE_COUNT)
        or count in [item.most_nodes for item in ledger.evidence]
        or any(c.trust is Trust.ASKED or (is_last and c.value == rank) for c in ledger.about(Fact.NODE_RANK))
        or any(claim.trust <= Trust.STATED for claim in ledger.about(Fact.PROCESSES_PER_NODE))
    ):
        yield make_problem("ambiguous-rest", size=size.origin, count=count, **named)


def settle_processes(ledger: Ledger, machine: Machine) -> Ledger:
    """Return the ledger with the number of processes that a launcher per node starts here.

    Raises:
        HardwareMissing: This node lacks devices.
    """
    wanted, notes = find_wanted(ledger, machine)
    claim, visible = ledger.best(wanted.fact), machine.gpu_count
    if claim is not None and visible is not None and claim.trust > Trust.STATED:
        is_alone = ledger.number(Fact.NODE_COUNT) == 1  # else other nodes may have what this one lacks
        if isinstance(claim.value, int) and claim.value > visible and not is_alone:
            raise make_error("missing-gpus", source=claim.source, stated=claim.origin, visible=visible)
    others = [c for c in ledger.about(wanted.fact) if not wanted.origin.startswith(c.origin)]
    why = f"less direct than {wanted.origin}"
    lost = tuple(Lost(c, "agrees" if c.value == wanted.value else why) for c in others)
    return replace(ledger, findings={wanted.fact: Decided(wanted, lost)}).add(*notes)


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
    count, origin, notes = gpus or 1, f"{gpus} visible GPUs" if gpus else "no GPUs", []
    if ledger.options.framework == ONE_PER_NODE:
        count, origin = 1, f"one {ONE_PER_NODE} process uses all GPUs of its node"
    elif best is not None and best.value and not gpus:
        if gpus is None and isinstance(best.value, int):
            return replace(best, trust=Trust.DERIVED), []
        notes = [f"{best.origin} but no GPU is visible here: one process"]
    return derive(Fact.PROCESSES_PER_NODE, count, origin, Trust.DERIVED), notes


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
        where = "command line" if claim.origin.startswith("-") else f"environment, source {claim.source}"
        named = {"where": where, "asked": claim.origin, "kind": word.upper()}
        if word == "gpu":
            raise make_error("no-gpu", **named)
        raise make_error("uncounted-accelerator" if count is None else "no-accelerator", **named)
    return Claim(claim.fact, count, f"{claim.origin}: {count} {word.upper()}s", claim.source, claim.trust)


def add_local_size(ledger: Ledger) -> Iterator[Claim]:
    """Add the number of launchers started on this node if no variable states it but other facts prove it."""
    world, nodes = ledger.number(Fact.WORLD_SIZE), ledger.best(Fact.NODE_COUNT)
    count = nodes.value if nodes is not None else 1 if world == 1 else 0
    if ledger.about(Fact.LOCAL_SIZE) or not world or not isinstance(count, int) or not count:
        return
    origin, size = ledger.origin(Fact.WORLD_SIZE), world // count
    if count in (1, world):  # every node has at least one process
        yield derive(Fact.LOCAL_SIZE, size, origin, Trust.DERIVED)
    elif size * count == world and nodes and ledger.is_even(nodes) and _fits(ledger, size, count):
        yield derive(Fact.LOCAL_SIZE, size, f"{origin} over {nodes.origin}", Trust.DERIVED)


def _fits(ledger: Ledger, size: int, nodes: int) -> bool:
    """Whether the numbers of this process are possible if every node runs ``size`` processes."""
    rank, local, node = map(ledger.number, (Fact.RANK, Fact.LOCAL_RANK, Fact.NODE_RANK))
    if rank is None or local is None:
        return True
    places = list_places(rank, local, size, nodes)
    return local < size and (node in places if node is not None else bool(places))
