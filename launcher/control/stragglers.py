"""Stragglers: the rank or node that differs from the others in what the nodes report. Pure.

Ranks that train together wait for the slowest one. What makes it slow is seen from outside: what it does with
its time (`launcher.observers.pace`), the clock of its GPU, the delay of its node's messages, or a number that
it prints. It is named, and nothing follows from that.

Other nodes are not trusted: malformed values are left out.
"""

from __future__ import annotations

from launcher.control.received import mappings, number, rows_of
from launcher.core.frozen import frozen
from launcher.core.ranks import name_ranks
from launcher.observers.pace import RankPace, find_apart, find_slow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.control.received import Message

    Nodes = Sequence[tuple[int, Message]]
    """(rank, answer) of each node that has answered."""

CLOCK_APART = 0.08
"""Least difference between the clocks of GPUs at work, as part of the highest one."""
WORKS_PERCENT = 20
"""Utilization above which a GPU is at work: an idle one lowers its clock."""
REASONS = {
    2: "power cap",
    3: "hardware slowdown",
    5: "thermal slowdown",
    6: "thermal slowdown by hardware",
    7: "power brake",
    9: "board limit",
}
"""Bits of NVML's mask that make one GPU slower than others, and their meanings."""
DELAY_MIN_S, DELAY_TIMES = 0.004, 4.0
"""A node is far if a message takes so long, and so many times as long as to the nearest one."""
LISTED_MAX = 8
PLURALS = {"is": "are", "has": "have", "waits": "wait", "computes": "compute", "prints": "print"}


@frozen
class Straggling:
    """Ranks or nodes that differ from the others.

    Attributes:
        name: The ranks or nodes in words.
        what: What differs, as the rest of a sentence.
        ranks: The ranks.
        nodes: The nodes, if the nodes differ and not single ranks.
    """

    name: str
    what: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()


def find_stragglers(nodes: Nodes) -> list[Straggling]:
    """Return what differs from the others, at most `LISTED_MAX`."""
    rows: dict[int, Mapping[str, object]] = {}
    for _, answer in nodes:
        for row in rows_of(answer):
            rank = number(row, "rank")
            if rank is not None:
                rows[int(rank)] = row
    paces = {rank: pace for rank, row in rows.items() if (pace := _read_pace(row)) is not None}
    found = [_of_ranks(ranks, what) for ranks, what in find_slow(paces)]
    found += [_of_ranks(ranks, what) for ranks, what in _find_clocks(nodes)]
    found += [_of_ranks([rank], what) for rank, what in _find_low(nodes)]
    return [*found, *_find_far(nodes)][:LISTED_MAX]


def _of_ranks(ranks: list[int], what: str) -> Straggling:
    verb, _, rest = what.partition(" ")
    what = f"{PLURALS.get(verb, verb)} {rest}" if len(ranks) > 1 else what
    return Straggling(name_ranks(ranks), what, tuple(ranks))


def _read_pace(row: Mapping[str, object]) -> RankPace | None:
    """Return the pace of a rank, without parts that are 0; None if it is not known, or not valid."""
    told = row.get("pace")
    if not isinstance(told, dict):
        return None
    shares = {name: number(told, name) for name in RankPace().__dict__ if name in told}
    known = {name: share for name, share in shares.items() if share is not None and 0 <= share <= 1}
    return RankPace(**known) if len(known) == len(shares) else None


def _find_clocks(nodes: Nodes) -> list[tuple[list[int], str]]:
    """Return the ranks whose GPU has a lower clock than the others' for a reason of its own."""
    clocks: dict[int, float] = {}
    reasons: dict[int, str] = {}
    for _, answer in nodes:
        gpus = mappings(answer, "gpus")
        for row in rows_of(answer):
            rank, indices = number(row, "rank"), row.get("gpus")
            if rank is None or not isinstance(indices, list):
                continue
            used = [gpus[at] for at in indices if isinstance(at, int) and 0 <= at < len(gpus)]
            known = [(clock, gpu) for gpu in used if (clock := number(gpu, "clock_mhz"))
                     and (number(gpu, "busy_percent") or 0) >= WORKS_PERCENT]  # fmt: skip
            if known:
                clocks[int(rank)], lowest = min(known, key=lambda pair: pair[0])
                mask = int(number(lowest, "clock_reasons") or 0)
                reasons[int(rank)] = ", ".join(text for bit, text in REASONS.items() if mask >> bit & 1)
    most = max(clocks.values(), default=0.0)
    apart = find_apart({rank: -clock for rank, clock in clocks.items()}, CLOCK_APART * most or 1.0)
    others = [clock for rank, clock in clocks.items() if rank not in apart]
    return [
        ([rank], f"has a GPU at {clocks[rank]:,.0f} MHz ({reasons[rank]}); others {min(others):,.0f}")
        for rank in apart
        if reasons[rank]
    ]


def _find_low(nodes: Nodes) -> list[tuple[int, str]]:
    """Return the ranks that have printed a number below ``--slow-below``."""
    found = []
    for _, answer in nodes:
        least = number(answer, "slow_below")
        for row in rows_of(answer):
            rank, value = number(row, "rank"), number(row, "value")
            if least is not None and rank is not None and value is not None and value < least:
                found.append((int(rank), f"prints {value:,g}, which is below {least:,g} (--slow-below)"))
    return found


def _find_far(nodes: Nodes) -> list[Straggling]:
    """Return the node whose messages take longer than those of the others: its network, or that of node 0."""
    delays = {node: delay for node, answer in nodes if (delay := number(answer, "delay_s")) is not None}
    if not delays or max(delays.values()) < DELAY_MIN_S:
        return []
    least = min(delays.values())
    slow = "has a slow network: a message takes {:.0f} ms there and back"
    if least >= DELAY_MIN_S:  # all of them: what they have in common is node 0
        ends = (0,) if len(delays) > 1 else (0, *delays)
        name = "node 0" if len(delays) > 1 else f"node {ends[1]} or node 0"
        return [Straggling(name, slow.format(1000 * least), (), ends)]
    far = sorted(node for node, delay in delays.items() if delay >= max(DELAY_MIN_S, DELAY_TIMES * least))
    if 2 * len(far) > len(delays) + 1:
        return []
    others = f"; others {1000 * least:.1f} ms"
    return [
        Straggling(f"node {node}", slow.format(1000 * delays[node]) + others, (), (node,)) for node in far
    ]
