"""Whether the launchers of a job talk to each other, and how: pure."""

from __future__ import annotations

from launcher.core.model import Agent, Allocation, Peers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.options.options import Options

CONTROL_PORT = 6106
ROLL_CALL_TIMEOUT_S = 900.0
LOST_AFTER_S = 10.0
PORT_LIMIT = 1 << 16
PORTS_TRIED = 8
"""Ports from the default one on where node 0 may be, when another job on its machine has the first."""


def plan_peers(
    options: Options,
    allocation: Allocation,
    agent: Agent | None,
    environ: Mapping[str, str],
    used: frozenset[int] = frozenset(),
) -> Peers | None:
    """Return how the launchers of a job of several nodes find each other; None if they do not.

    Args:
        options: What the user asked for.
        allocation: What the platform gave us, at NODE scope.
        agent: Who starts the processes; None for the launcher.
        environ: The environment of the launcher.
        used: Ports on which processes of the job will listen, besides that of the rendezvous.
    """
    if agent is not None and (agent.fleet is not None or agent.engine != "torchrun"):
        return None
    if allocation.node_rank is None or (allocation.node_count or 1) < 2 or allocation.node_range is not None:
        return None
    if not options.switch("peers", default=True):
        return None
    asked = options.get("control_port")
    first = int(options.number("control_port", CONTROL_PORT))
    tried = range(first, min(first + (1 if asked else PORTS_TRIED), PORT_LIMIT))
    ports = tuple(port for port in tried if port not in used | {allocation.master_port})
    return Peers(
        ports=ports or (first,),
        token_file=options.text("token_file"),
        has_token=bool(options.text("token_file") or environ.get("LAUNCHER_TOKEN")),
        timeout_s=options.number("roll_call_timeout", ROLL_CALL_TIMEOUT_S),
        lost_after_s=options.number("lost_after", LOST_AFTER_S),
        # Ranks that are given out at the start are given out again after a failure: torchrun decides
        keep_going=options.switch("keep_going") or allocation.ranks_at_start,
    )
