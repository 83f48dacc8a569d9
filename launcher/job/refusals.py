"""Problems for people: why a job of several nodes does not start. Pure."""

from __future__ import annotations

from launcher.core.errors import Problem, make_problem
from launcher.core.wire import OTHER_KEY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WAIT_LONGER = (
    "let them reach the control port of node 0 (--control-port N, where only some ports are open), or wait "
    "longer: --roll-call-timeout S"
)
OR_ELSE = f"{WAIT_LONGER}. Without a roll call: --no-peers, on all nodes"
NO_NODE = (
    "no other node has connected to the control port so far: where their launchers run, a firewall or a "
    "security group may drop their packets"
)
SAME_KEY = "the same LAUNCHER_TOKEN or --token-file (or none) and --master-port on all nodes"


def nodes_missing(
    kind: str, missing: int, count: int, waited_s: float, described: str, lost: int = 0, or_else: str = ""
) -> Problem:
    """Return the problem that nodes did not join in time.

    Args:
        kind: `launcher.job.state.Job.member`, here and below.
        missing, count, described: How many nodes are missing, of how many, and which.
        waited_s: How long they were waited for.
        lost: How many of the missing ones had joined before.
        or_else: What else to try; empty for what helps most jobs.
    """
    what = "did not join" if not lost else "were lost" if lost == missing else "did not join, or were lost,"
    return make_problem(
        "nodes-missing",
        missing=missing, count=count, kind=kind, what=what, waited_s=waited_s, described=described,
        key_fix=_key_fix(described), or_else=or_else or OR_ELSE,
    )  # fmt: skip


def node_0_missing(kind: str, waited_s: float, reason: str, or_else: str = OR_ELSE) -> Problem:
    """Return the problem that node 0 did not start the job in time."""
    key_fix = _key_fix(reason)
    return make_problem(
        "node-0-missing", kind=kind, waited_s=waited_s, reason=reason, key_fix=key_fix, or_else=or_else
    )


def _key_fix(reason: str) -> str:
    """Return the first part of the fix, if the handshake has failed; otherwise nothing."""
    return f"{SAME_KEY}; else " if OTHER_KEY in reason else ""


def describe_missing(
    kind: str,
    missing: Sequence[int],
    hosts: Sequence[str],
    reasons: Mapping[int, str],
    turned_away: Mapping[str, str],
    *,
    shown: int,
    has_heard: bool = True,
) -> str:
    """Return the missing nodes, with what is known about each.

    Args:
        kind: `launcher.job.state.Job.member`.
        missing: Ranks of the missing nodes.
        hosts: The nodes by rank, if they are listed.
        reasons: Results of probing their hosts, by rank.
        turned_away: Why connections were turned away, by address.
        shown: Maximum number of nodes to name.
        has_heard: Whether any client has connected, of the job or not.
    """
    parts = []
    for rank in missing[:shown]:
        host = hosts[rank] if rank < len(hosts) else ""
        name = f"{kind} {rank} ({host})" if host else f"{kind} {rank}"
        why = turned_away.get(host) or reasons.get(rank, "")
        parts.append(f"{name}: {why}" if why else name)
    if len(missing) > shown:
        parts.append(f"{len(missing) - shown} more")
    others = [pair for pair in turned_away.items() if pair[0] not in hosts]
    parts += [f"turned away {address}: {why}" for address, why in others[:shown]]
    if not has_heard:
        parts.append(NO_NODE)
    return "; ".join(parts)
