"""What the user asked about stopping, logs and failures -> `Supervision`. Pure."""

from __future__ import annotations

from launcher.errors import Problem, UsageError
from launcher.model import STDERR, STDOUT, Proof, Route, Supervision, Topology
from launcher.options import Options

DEFAULT_GRACE_S = 30.0
BOTH = STDOUT | STDERR


def plan_supervision(
    options: Options,
    topology: Topology,
    *,
    of_agent: bool = False,
    companion_count: int = 0,
    proof: Proof | None = None,
) -> Supervision:
    """Return how the processes of this node are watched.

    ``of_agent``: they have an agent as their parent, which is the only one that we watch; logs and
    restarts are its own. ``companion_count``: how many processes run beside the ranks. ``proof``: what
    rank 0, one of them, is to say of its network.

    Raises:
        UsageError: Options that exclude each other.
    """
    count = 1 if of_agent else len(topology.places) + companion_count
    restarts = int(options.number("restarts", 0))
    if restarts and topology.node_count != 1:
        raise UsageError(_restarts_on_one_node(options, topology))
    routes = tuple(plan_route(options, place.local_rank) for place in topology.places)
    return Supervision(
        grace_s=options.number("grace", options.number("shutdown_timeout", DEFAULT_GRACE_S)),
        signal_to=options.text("signal_to", "leader"),
        signal_map=options.pairs("signal_map"),
        routes=routes if not of_agent else (Route(),),
        prefix=options.switch("prefix", count > 1),
        log_dir=None if of_agent else options.text("log_dir") or None,
        progress=options.switch("progress") if options.get("progress") else None,
        stall_timeout_s=options.number("stall_timeout", 0.0),
        on_stall=options.text("on_stall", "report"),
        restarts=0 if of_agent else restarts,
        failure_file=options.text("failure_file") or None,
        proof=proof,
    )


def plan_route(options: Options, local_rank: int | None) -> Route:
    """Return where one process's output goes, with torchrun's meanings; None for one that has no rank.

    ``--redirects``: to a file instead of to us; ``--tee``: to a file as well; the filter names those
    that may write to us at all.
    """
    redirected = _bits(options, "redirects", local_rank)
    teed = _bits(options, "tee", local_rank)
    shown = options.numbers("local_ranks_filter")
    visible = BOTH if shown is None or local_rank is None or local_rank in shown else 0
    return Route(to_file=redirected | teed, to_console=(BOTH & ~redirected | teed) & visible)


def _bits(options: Options, dest: str, local_rank: int | None) -> int:
    return next((bits for rank, bits in options.streams(dest) if rank in (None, local_rank)), 0)


def _restarts_on_one_node(options: Options, topology: Topology) -> Problem:
    given = options.get("restarts")
    return Problem(
        "restarts-need-one-node",
        f"{given.origin if given else '--restarts'}: this job has {topology.node_count or 'several'} nodes, "
        "and processes of the others would be left waiting",
        "command line",
        "--max-restarts N (torchrun restarts the processes of all nodes together), or restart the job",
    )
