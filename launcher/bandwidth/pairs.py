"""Measurements of every node with every other: which pairs are measured when, and which are slow.

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


@frozen
class Pair:
    """Measurement of two nodes.

    Attributes:
        nodes: Their indices, the lower one first.
        latency_s: Seconds for the smallest size; None if the pair could not be measured.
        bus_gbps: The best over all sizes; 0 if the pair could not be measured.
        was_alone: Whether no other pair was measured at the same time.
        failure: Why the measurement failed or which sums were wrong; empty if all is well.
    """

    nodes: Link
    latency_s: float | None
    bus_gbps: float
    was_alone: bool = False
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


def plan_steps(links: Iterable[Link]) -> tuple[tuple[Link, ...], ...]:
    """Return rounds of one pair each."""
    return tuple((link,) for link in links)


def usual_gbps(pairs: Sequence[Pair]) -> float:
    """Return the bandwidth that at least the fastest quarter of all pairs reaches.

    The median would not do: one slow node of 4 spoils half of the pairs, two of 6 spoil 9 of 15.
    """
    reached = sorted(pair.bus_gbps for pair in pairs)
    return reached[ceil(len(reached) * 3 / 4) - 1]


def slow_links(pairs: Sequence[Pair], below: float) -> tuple[Link, ...]:
    """Return the pairs below a fraction of the usual bandwidth, and those that failed."""
    limit = below * usual_gbps(pairs)
    return tuple(sorted(pair.nodes for pair in pairs if pair.bus_gbps < limit or pair.failure))


def find_slow(pairs: Sequence[Pair], below: float) -> Slow:
    """Distinguish slow nodes from slow links.

    Args:
        pairs: One for every two nodes.
        below: Fraction of the usual bandwidth below which a pair is slow.
    """
    slow = set(slow_links(pairs, below))
    groups = _join([pair.nodes for pair in pairs if pair.nodes not in slow], _nodes(pairs))
    # Two nodes that are slow with each other do not show which of them is slow.
    main = groups[0] if len(groups[0]) > 1 else _nodes(pairs)
    apart = tuple(sorted(group for group in groups if not set(group) <= set(main)))
    home = {node: group for group in (main, *apart) for node in group}
    links = tuple(sorted(link for link in slow if home[link[0]] == home[link[1]]))
    return Slow(usual_gbps(pairs), apart, links)


def merge(pairs: Iterable[Pair], again: Iterable[Pair]) -> tuple[Pair, ...]:
    """Return all pairs; for those that were measured again, the second measurement."""
    found = {pair.nodes: pair for pair in (*pairs, *again)}
    return tuple(found[link] for link in sorted(found))


def _nodes(pairs: Iterable[Pair]) -> tuple[int, ...]:
    return tuple(sorted({node for pair in pairs for node in pair.nodes}))


def _join(links: Iterable[Link], nodes: Iterable[int]) -> list[tuple[int, ...]]:
    """Return the groups of nodes that links connect, the largest group first."""
    groups = [{node} for node in nodes]
    for link in links:
        joined = [group for group in groups if not group.isdisjoint(link)]
        groups = [group for group in groups if group not in joined] + [set().union(*joined)]
    return sorted((tuple(sorted(group)) for group in groups), key=lambda group: (-len(group), group))
