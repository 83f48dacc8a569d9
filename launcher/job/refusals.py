"""Problems for people: why a job of several nodes does not start. Pure."""

from __future__ import annotations

from launcher.core.errors import Problem
from launcher.core.model import NODE
from launcher.core.version import __version__
from launcher.core.wire import OTHER_KEY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROLL_CALL = "roll call of the nodes"
WAIT_LONGER = (
    "let them reach the control port of node 0 (--control-port N, where only some ports are open), or wait "
    "longer: --roll-call-timeout S"
)
OR_ELSE = f"{WAIT_LONGER}. Without a roll call: --no-peers, on all nodes"
NO_NODE = (
    "no other node has connected to the control port so far: where their launchers run, a firewall or a "
    "security group may drop their packets"
)
SAME_IMAGE = "the same version of the launcher, best the same image, on all nodes"
SAME_KEY = "the same LAUNCHER_TOKEN or --token-file (or none) and --master-port on all nodes"
OTHERS_NAMED = 8


def nodes_differ(kind: str, titles: Sequence[str], fix: str) -> Problem:
    """Return the problem that nodes cannot work together.

    Args:
        kind: `launcher.job.state.Job.member`, here and below.
        titles: What they differ in.
        fix: What to do about the first of these.
    """
    what = f"the {kind}s cannot work together, they differ in: {', '.join(titles)} (see the table above)"
    return Problem(
        "nodes-differ", what, ROLL_CALL, f"{fix} (or --no-peers on all nodes: nothing is compared then)"
    )


def other_versions(first: str, others: Mapping[str, str]) -> Problem:
    """Return the problem that nodes have another version of the launcher.

    Args:
        first: Name of node 0, which is this one.
        others: The versions of these nodes, by name.
    """
    found = [f"{name} has launcher {version}" for name, version in others.items()]
    more = f" and {len(found) - OTHERS_NAMED} more" if len(found) > OTHERS_NAMED else ""
    what = f"{', '.join(found[:OTHERS_NAMED])}{more}; {first} has launcher {__version__}"
    return Problem("other-version", what, ROLL_CALL, SAME_IMAGE)


def two_nodes(kind: str, rank: object, one: str, other: str) -> Problem:
    """Return the problem that two launchers claim to be the same node."""
    return Problem(
        "two-nodes-one-rank",
        f"two {kind}s claim to be {kind} {rank}: {one}, and {other}",
        ROLL_CALL,
        "--node-rank R (or what your platform gives for it) with another R on each node, 0 on the first"
        if kind == NODE
        else "RANK (or what your platform gives for it) with another number for each process",
    )


def no_such_node(kind: str, names: str, count: int) -> Problem:
    """Return the problem that nodes have ranks beyond the last."""
    what = f"{names}: there are {count} {kind}s, counted from 0"
    return Problem("no-such-node", what, ROLL_CALL, "--nnodes N, the same on all nodes")


def nodes_missing(
    kind: str, missing: int, count: int, waited_s: float, described: str, lost: int = 0, or_else: str = ""
) -> Problem:
    """Return the problem that nodes did not join in time.

    Args:
        kind, missing, count, described: The nodes, how many are missing, and which.
        waited_s: How long they were waited for.
        lost: How many of the missing ones had joined before.
        or_else: What else to try; empty for what helps most jobs.
    """
    what = "did not join" if not lost else "were lost" if lost == missing else "did not join, or were lost,"
    first = f"{_key_fix(described)}start the same command on them, correct the list of nodes, "
    return Problem(
        "nodes-missing",
        f"{missing} of {count} {kind}s {what} within {waited_s:g} s: {described}",
        ROLL_CALL,
        first + (or_else or OR_ELSE),
    )


def node_0_missing(kind: str, waited_s: float, reason: str, or_else: str = OR_ELSE) -> Problem:
    """Return the problem that node 0 did not start the job in time."""
    return Problem(
        "nodes-missing",
        f"{kind} 0 did not start the job within {waited_s:g} s: {reason}",
        ROLL_CALL,
        f"{_key_fix(reason)}start the same command on all nodes, see what {kind} 0 says, {or_else}",
    )


def _key_fix(reason: str) -> str:
    """Return the first part of the fix, if the handshake has failed; otherwise nothing."""
    return f"{SAME_KEY}; else " if OTHER_KEY in reason else ""


def ended_by_signal(name: str, node: str) -> Problem:
    """Return the problem that a node was told to stop before the start."""
    what = f"{node} received {name} while the nodes were joining"
    return Problem("roll-call-ended", what, ROLL_CALL, "nothing, if this was intended")


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
