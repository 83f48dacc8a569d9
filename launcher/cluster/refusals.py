"""Why a job of several nodes does not start, as problems for people: pure."""

from __future__ import annotations

import json

from launcher.channel.frames import OTHER_KEY
from launcher.core.errors import EXIT_NOT_READY, EnvironmentUntrusted, LauncherError, NotReady, Problem
from launcher.core.model import NODE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.cluster.consistency import Disagreement
    from launcher.cluster.messages import Refuse

ROLL_CALL = "roll call of the nodes"
OR_ELSE = (
    "let them reach the control port of node 0 (--control-port N, where only some ports are open), or wait "
    "longer: --roll-call-timeout S. Without a roll call: --no-peers, on all nodes"
)
NO_NODE = (
    "no other node has connected to the control port so far: where their launchers run, a firewall or a "
    "security group may drop their packets"
)
SAME_KEY = "the same LAUNCHER_TOKEN or --token-file (or none) and --master-port on all nodes"
TEXT_BYTES, TABLE_BYTES = 6 << 10, 36 << 10
"""Of each text of a problem, and of the table, as JSON: four and one fit into a frame of 64 KiB."""


def fit(text: str) -> str:
    """Return a text, or as much of it as `TEXT_BYTES` hold."""
    kept = text
    while len(json.dumps(kept)) > TEXT_BYTES:
        kept = kept[: len(kept) // 2]
    return kept if kept == text else f"{kept}..."


def fit_table(lines: Sequence[str]) -> list[str]:
    """Return the first lines of a table, as many as `TABLE_BYTES` hold, and how many are left out."""
    kept: list[str] = []
    used = 0
    for line in lines:
        used += len(json.dumps(line)) + 1
        if used > TABLE_BYTES:
            return [*kept, f"  and {len(lines) - len(kept)} lines more"]
        kept.append(line)
    return kept


def nodes_differ(kind: str, found: Sequence[Disagreement]) -> Problem:
    """Return that they cannot work together; ``found`` has at least one problem.

    ``kind``, here and below, is that of `Shape.member`.
    """
    rules = [item.rule for item in found if item.is_problem]
    names = ", ".join(rule.title for rule in rules)
    what = f"the {kind}s cannot work together, they differ in: {names} (see the table above)"
    fix = f"{rules[0].fix} (or --no-peers on all nodes: nothing is compared then)"
    return Problem("nodes-differ", what, ROLL_CALL, fix)


def two_nodes(kind: str, rank: object, one: str, other: str) -> Problem:
    """Return that two launchers claim to be the same node."""
    return Problem(
        "two-nodes-one-rank",
        f"two {kind}s say that they are {kind} {rank}: {one}, and {other}",
        ROLL_CALL,
        "--node-rank R (or what your platform gives for it) with another R on each node, 0 on the first"
        if kind == NODE
        else "RANK (or what your platform gives for it) with another number for each process",
    )


def no_such_node(kind: str, names: str, count: int) -> Problem:
    """Return that a node has a rank beyond the last."""
    what = f"{names}: there are {count} {kind}s, counted from 0"
    return Problem("no-such-node", what, ROLL_CALL, "--nnodes N, the same on all nodes")


def nodes_missing(kind: str, missing: int, count: int, waited_s: float, described: str) -> Problem:
    """Return that nodes have not come in time."""
    return Problem(
        "nodes-missing",
        f"{missing} of {count} {kind}s did not come within {waited_s:g} s: {described}",
        ROLL_CALL,
        f"{_key_fix(described)}start the same command on them, correct the list of nodes, {OR_ELSE}",
    )


def node_0_missing(kind: str, waited_s: float, reason: str) -> Problem:
    """Return that node 0 has not started the job in time."""
    return Problem(
        "nodes-missing",
        f"{kind} 0 did not start the job within {waited_s:g} s: {reason}",
        ROLL_CALL,
        f"{_key_fix(reason)}start the same command on all nodes, see what {kind} 0 says, {OR_ELSE}",
    )


def _key_fix(reason: str) -> str:
    """Return what to do first if the handshake has failed, to stand before the rest."""
    return f"{SAME_KEY}; else " if OTHER_KEY in reason else ""


def ended_by_signal(name: str, node: str) -> Problem:
    """Return that a node was told to end before the start."""
    what = f"{node} was told {name} while the nodes came together"
    return Problem("roll-call-ended", what, ROLL_CALL, "nothing, if that was wanted")


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
    """Return the missing nodes, with what is known of each.

    Args:
        kind: Of `Shape.member`.
        missing: Their ranks.
        hosts: The nodes by rank, if they are listed.
        reasons: What a look at their hosts has told, by rank.
        turned_away: Why connections were, by address.
        shown: How many are named.
        has_heard: Whether any client has called, of the job or not.
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
    parts += [f"turned away was {address}: {why}" for address, why in others[:shown]]
    if not has_heard:
        parts.append(NO_NODE)
    return "; ".join(parts)


def read_refusal(refusal: Refuse) -> LauncherError:
    """Return why the job does not start, as the coordinator tells it."""
    problem = Problem(refusal.code, refusal.what, refusal.where, refusal.fix)
    return NotReady(problem) if refusal.status == EXIT_NOT_READY else EnvironmentUntrusted(problem)
