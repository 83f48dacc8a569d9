"""Compares numbers of nodes on the command line with those of the platform, before other decisions.

With a different count one node would report one error and the next node another, or each node would run a job
of its own. With this check all nodes report the same: the command's number, and the platform's.
"""

from __future__ import annotations

from launcher.core.errors import EnvironmentUntrusted, LauncherError, Problem
from launcher.core.model import Evidence, Fact, Machine, Scope, Trust
from launcher.engines.choice import refuse_per_process
from launcher.identity.allocation import decide
from launcher.identity.ledger import DEFAULTS, open_ledger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.engines.job import Request
    from launcher.identity.ledger import Ledger
    from launcher.options.given import Given
    from launcher.options.reading import Options

COUNTS = ("standalone", "nnodes")
"""Flags with the number of nodes."""
MEETING = ("rdzv_backend", "rdzv_endpoint", "master_addr")
"""Flags of a command that names its master itself: it may number the nodes in its own order."""
ALONE = "launcher run --source manual --standalone -- ..."
"""Command for a job of one node, whatever the platform says."""


def check_counts(
    request: Request,
    outer: Options,
    evidence: Sequence[Evidence],
    machine: Machine,
    starter: str | None,
    is_own: Callable[..., bool],
) -> None:
    """Refuse numbers of nodes on the command line that contradict the platform.

    Args:
        request: The request; its options include the flags of a launcher that the command is.
        outer: The options without those flags.
        evidence: The evidence of the sources.
        machine: This node.
        starter: Evidence that the program to run starts the processes of a node itself.
        is_own: Whether a name or an address is literally this node's.

    Raises:
        EnvironmentUntrusted: The command is for another number of nodes, or for another node.
        UsageError: The platform has started the processes already.
    """
    if _given(outer, "standalone"):
        return  # the user wants a job of one node, whatever the platform says
    for options, others in ((request.options, outer), (outer, outer.without("nnodes"))):
        count = next((given for dest in COUNTS if (given := _added(options, others, dest))), None)
        rank = _added(options, others, "node_rank") if others is outer else None
        if count is None and rank is None:
            continue
        try:
            starts = starter is not None
            opened = open_ledger(evidence, others)
            allocation, ledger = decide(opened, machine, is_own=is_own, starts_processes=starts)
        except LauncherError:
            continue  # without these numbers there is no job; with them there may be one
        if starter is not None and allocation.scope is Scope.PROCESS:
            raise refuse_per_process(starter, allocation.local_size)
        meets = any(_added(options, others, dest) for dest in MEETING)
        if count is not None and allocation.node_range is None:
            complete = meets or _added(options, others, "node_rank") is not None
            _check_count(count, complete, ledger, request)
        if rank is not None and not meets:
            _check_rank(rank, allocation.node_rank, ledger, request)


def _given(options: Options, dest: str) -> Given | None:
    """Return an option of the user or the command; None if it is unset or comes from the platform's PET_*."""
    given = options.get(dest)
    return given if given is not None and given.value is not False and not given.is_platforms else None


def _added(options: Options, others: Options, dest: str) -> Given | None:
    """Return an option that the other options do not have."""
    given = _given(options, dest)
    return None if given is others.get(dest) else given


def _check_count(given: Given, complete: bool, ledger: Ledger, request: Request) -> None:
    found = ledger.findings.get(Fact.NODE_COUNT)
    if found is None or found.claim.trust is Trust.INDIRECT or not isinstance(found.claim.value, int):
        return  # the platform did not state this number: it only follows from missing variables
    asked, known = _read_count(given), found.claim.value
    if asked is None or asked == known:
        return
    if asked > 1 and (complete or found.claim.source == DEFAULTS):
        return  # nodes of several jobs or a part of the nodes, each with its rank; or an image's defaults
    nodes = "1 node" if asked == 1 else f"{asked} nodes"
    alone = f"; for a job of its own on each node: {ALONE}" if asked == 1 else ""
    raise EnvironmentUntrusted(
        Problem(
            "contradiction",
            f"{given.origin} is for {nodes}, but the platform has {known} ({found.claim.origin})",
            "command line and environment",
            f"{_leave_out(given, request)}{alone}",
        )
    )


def _read_count(given: Given) -> int | None:
    """Return a fixed number of nodes; None for a range, whose number is known only at the start."""
    if given.value is True:
        return 1
    return given.value if isinstance(given.value, int) else None


def _check_rank(given: Given, known: int | None, ledger: Ledger, request: Request) -> None:
    if known is None or given.value == known:
        return
    raise EnvironmentUntrusted(
        Problem(
            "contradiction",
            f"{given.origin}, but the platform says that this is node {known} "
            f"({ledger.origin(Fact.NODE_RANK)}): two nodes would have the same ranks",
            "command line and environment",
            _leave_out(given, request),
        )
    )


def _leave_out(given: Given, request: Request) -> str:
    """Return the fix: leave the number out, and what replaces it."""
    name = given.origin.partition("=")[0]
    if not name.isupper():
        words = given.origin.split(" ")
        name = next(word for word in words if word.startswith("-"))
    if request.own is not None and given.origin.startswith(request.own.launcher.name):
        told = request.own.launcher.name
        return f"leave {name} out: {told} gets the number of nodes and this node's rank from the launcher"
    return f"{'unset' if name.isupper() else 'leave out'} {name}"
