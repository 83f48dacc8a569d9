"""Measures every pair of nodes: schedules the pairs, and finds the slow ones.

Pairs that share no node are measured at once: n - 1 rounds instead of n(n-1)/2 steps. They may still share a
switch's uplink, so a pair that looks slow in its round is measured again, alone, before a node is named.
Nodes that no fast pair connects to the others are slow. This single definition distinguishes a slow node (no
pair with it is fast) from a slow link (both of its nodes are fast with others). It also finds nodes that are
fast only among themselves, e.g. behind a bad uplink.
"""

from __future__ import annotations

from math import ceil

from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Link = tuple[int, int]
LISTED = 10
SLOW_BELOW = 0.7
"""Fraction of the usual bandwidth below which a pair is slow."""


@frozen
class Pair:
    """Measurement of two nodes.

    Attributes:
        nodes: Their indices, the lower one first.
        latency_s: Seconds for the smallest size; None if the pair could not be measured.
        bus_gbps: The best over all sizes; 0 if the pair could not be measured.
        failure: Why the measurement failed or which sums were wrong; empty if all is well.
    """

    nodes: Link
    latency_s: float | None = None
    bus_gbps: float = 0.0
    failure: str = ""


@frozen
class Slow:
    """The nodes and pairs that are slow.

    Attributes:
        usual_gbps: Bandwidth of healthy pairs, by `usual_gbps`.
        groups: Nodes that are slow with all others, but fast among themselves; most often a single node.
        links: Slow pairs of nodes that are fast with others.
    """

    usual_gbps: float
    groups: tuple[tuple[int, ...], ...] = ()
    links: tuple[Link, ...] = ()


def plan_rounds(node_count: int) -> tuple[tuple[Link, ...], ...]:
    """Return rounds of disjoint pairs that contain each pair once.

    This is the circle method of tournaments: node 0 stays, the others move by one place per round.
    """
    seats: list[int | None] = [*range(node_count), *([None] if node_count % 2 else [])]
    rounds = []
    for _ in range(len(seats) - 1):
        facing = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        met = [(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None]
        rounds.append(tuple(sorted(met)))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return tuple(rounds)


def usual_gbps(pairs: Sequence[Pair]) -> float:
    """Return the bandwidth that at least the fastest quarter of all pairs reaches.

    The median would not do: one slow node of 4 spoils half of the pairs, two of 6 spoil 9 of 15.
    """
    reached = sorted(pair.bus_gbps for pair in pairs)
    return reached[ceil(len(reached) * 3 / 4) - 1]


def slow_links(pairs: Sequence[Pair]) -> tuple[Link, ...]:
    """Return the pairs that are slow, and those that failed."""
    limit = SLOW_BELOW * usual_gbps(pairs)
    return tuple(sorted(pair.nodes for pair in pairs if pair.bus_gbps < limit or pair.failure))


def find_slow(pairs: Sequence[Pair]) -> Slow:
    """Distinguish slow nodes from slow links, given a pair for every two nodes."""
    slow = set(slow_links(pairs))
    nodes = tuple(sorted({node for pair in pairs for node in pair.nodes}))
    groups = _join([pair.nodes for pair in pairs if pair.nodes not in slow], nodes)
    # Two nodes that are slow with each other do not show which of them is slow.
    main = groups[0] if len(groups[0]) > 1 else nodes
    apart = tuple(sorted(group for group in groups if not set(group) <= set(main)))
    home = {node: group for group in (main, *apart) for node in group}
    links = tuple(sorted(link for link in slow if home[link[0]] == home[link[1]]))
    return Slow(usual_gbps(pairs), apart, links)


def _join(links: Iterable[Link], nodes: Iterable[int]) -> list[tuple[int, ...]]:
    """Return the groups of nodes that links connect, the largest group first."""
    groups = [{node} for node in nodes]
    for link in links:
        joined = [group for group in groups if not group.isdisjoint(link)]
        groups = [group for group in groups if group not in joined] + [set().union(*joined)]
    return sorted((tuple(sorted(group)) for group in groups), key=lambda group: (-len(group), group))


def render_pairs(names: Sequence[str], pairs: Sequence[Pair]) -> list[str]:
    """Return a line for each pair, the slowest first, at most `LISTED`."""
    slowest = sorted(pairs, key=lambda pair: pair.bus_gbps)[:LISTED]
    return ["the slowest pairs", *(f"  {_describe(pair, names)}" for pair in slowest)]


def explain_slow(names: Sequence[str], pairs: Sequence[Pair], slow: Slow) -> list[str]:
    """Return a line for each node, group of nodes, and link that is slow; one line if none is."""
    usual = f"{render_gbps(slow.usual_gbps)} Gb/s is usual"
    if len(pairs) == 1:
        return [f"verdict: {usual}; one pair has nothing to compare with"]
    lines = []
    for group in slow.groups:
        best = max(pair.bus_gbps for pair in pairs if len({*group} & {*pair.nodes}) == 1)
        who = ", ".join(names[node] for node in group)
        where = "" if len(group) == 1 else "; fast among themselves: check the switch that they share"
        lines.append(
            f"verdict: {who}: slow with all others, {render_gbps(best)} Gb/s at most, {usual}{where}"
        )
    links = {pair.nodes: _describe(pair, names) for pair in pairs}
    lines += [f"verdict: slow link, both nodes are fast with others: {links[link]}" for link in slow.links]
    return lines or [f"verdict: no node and no link is slow: {usual}"]


def _describe(pair: Pair, names: Sequence[str]) -> str:
    first, second = (names[node] for node in pair.nodes)
    latency = f"{(pair.latency_s or 0) * 1e6:,.0f} µs"
    return f"{first} - {second}: {render_gbps(pair.bus_gbps)} Gb/s, {pair.failure or latency}"


def render_gbps(gbps: float) -> str:
    """Return e.g. ``3,200``, ``391``, ``18.5``, ``0.0093``: the digits that a measurement justifies."""
    return f"{gbps:,.{0 if gbps >= 100 else 1}f}" if gbps >= 1 else f"{gbps:.2g}"
