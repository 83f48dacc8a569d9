"""Compares node counts on the command line with the platform's, before other decisions.

With a different count one node would report one error and the next node another, or each node would run a job
of its own. With this check all nodes report the same: the command's number, and the platform's.
"""

from __future__ import annotations

from launcher.core.errors import LauncherError, make_error
from launcher.core.model import Evidence, Fact, Machine, Scope, Trust
from launcher.engines.choice import refuse_per_process
from launcher.identity.allocation import decide
from launcher.identity.ledger import DEFAULTS, USERS, name_only, open_ledger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.command.request import Request
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
    if _find(outer, "standalone"):
        return  # the user wants a job of one node, whatever the platform says
    names = (*COUNTS, "node_rank", *MEETING)
    inner = {name: given for name in names if (given := _find(request.options, name)) is not outer.get(name)}
    for added, others in ((inner, outer), ({"nnodes": _find(outer, "nnodes")}, outer.without("nnodes"))):
        count = next((given for name in COUNTS if (given := added.get(name))), None)
        rank = added.get("node_rank")
        if count is None and rank is None:
            continue
        try:
            opened = open_ledger(evidence, others, is_own)
            allocation, ledger = decide(opened, machine, starts_processes=starter is not None)
        except LauncherError:
            continue  # without these numbers there is no job; with them there may be one
        if starter is not None and allocation.scope is Scope.PROCESS:
            raise refuse_per_process(starter, allocation.local_size)
        meets = any(added.get(name) for name in MEETING)
        if count is not None and allocation.node_range is None:
            _check_count(count, meets or rank is not None, ledger, request)
        if rank is not None and not meets and allocation.node_rank not in (None, rank.value):
            known = {"rank": allocation.node_rank, "rank_origin": ledger.origin(Fact.NODE_RANK)}
            raise make_error("other-rank", origin=rank.origin, fix=_leave_out(rank, request), **known)


def _find(options: Options, dest: str) -> Given | None:
    """Return an option of the user or the command; None if it is unset or comes from the platform's PET_*."""
    given = options.get(dest)
    return given if given is not None and given.value is not False and not given.is_platforms else None


def _check_count(given: Given, complete: bool, ledger: Ledger, request: Request) -> None:
    found, asked = ledger.findings.get(Fact.NODE_COUNT), given.value  # True for --standalone
    if found is None or found.claim.trust is Trust.INDIRECT or not isinstance(found.claim.value, int):
        return  # the platform did not state this number: it only follows from missing variables
    if not isinstance(asked, int) or asked == found.claim.value:  # no number: a range, known at the start
        return
    if asked != 1 and (complete or found.claim.source == DEFAULTS):
        return  # nodes of several jobs or a part of the nodes, each with its rank; or an image's defaults
    nodes = "1 node" if asked == 1 else f"{asked} nodes"
    more = f"; for a separate job on each node: {ALONE}" * (asked == 1)
    known = {"found": found.claim.value, "found_origin": found.claim.origin}
    name, other = name_only(given.origin), name_only(found.claim.origin)
    is_users = other in USERS and not name.startswith("-")
    fix = f"unset the wrong one, {name} or {other}" if is_users else _leave_out(given, request)
    fix += more
    raise make_error("other-count", origin=given.origin, nodes=nodes, fix=fix, **known)


def _leave_out(given: Given, request: Request) -> str:
    """Return the fix for a number that is not the platform's."""
    name = next((word for word in given.origin.split() if word[0] == "-"), given.origin.partition("=")[0])
    fix = f"leave out {name}" if name[0] == "-" else f"unset {name}"
    if request.own is not None and given.origin.startswith(request.own.name):
        fix += f": {request.own.name} gets the number of nodes and this node's rank from the launcher"
    return fix
