"""Finds the rank that the others wait for, from the flight recorders of all ranks. Pure.

A collective of a group ends when all its ranks have called it. So the first collective that some ranks wait
in and others have not called names those others, unless they wait themselves in another group: then the chain
is followed to a rank that waits for none.
"""

from __future__ import annotations

import re

from launcher.core.frozen import frozen
from launcher.core.ranks import name_ranks, parse_ranges
from launcher.hang.limits import ALL_MEMBERS_MAX
from launcher.hang.model import Collective, GroupRecord, RankRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ABSENT, DIFFERS, TOGETHER, CIRCLE = "absent", "differs", "together", "circle"
NO_DUMP, UNSURE = "no-dump", "unsure"
SAME_SIZES = (
    *("all_reduce", "allreduce", "broadcast", "reduce", "all_reduce_coalesced", "allreduce_coalesced"),
    *("_all_gather_base", "_allgather_base", "all_gather_into_tensor", "_reduce_scatter_base"),
    *("_reduce_scatter_base", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"),
)
"""Collectives to which all ranks give tensors of the same size."""
ANY_NAME = ("coalesced",)
"""A name that stands for several collectives."""
P2P = re.compile(r"(send|recv) (\d{1,8})(->|<-)(\d{1,8})")
SENTENCES_MAX = 8


@frozen
class Conclusion:
    """One finding.

    Attributes:
        kind: ``"absent"``, ``"differs"``, ``"together"``, ``"circle"``, ``"no-dump"`` or ``"unsure"``.
        sentence: What happened, in one line.
        detail: Where it was called, and what the named ranks called last; empty if unknown.
        ranks: The ranks that it names; empty if none is at fault.
        group: Name of the process group.
        where: Line of the script at which the named ranks were last seen; empty if unknown.
    """

    kind: str
    sentence: str
    ranks: tuple[int, ...] = ()
    group: str = ""
    where: str = ""
    detail: str = ""

    @property
    def text(self) -> str:
        """The sentence with its detail."""
        return "; ".join(filter(None, (self.sentence, self.detail)))


@frozen
class Straggler:
    """A rank that has called fewer collectives of a group than another one.

    Attributes:
        rank: The rank.
        group: Name of the group, as in sentences.
        number: The last collective that it has called; 0 for none.
        ahead: The last one that the rank in front has called.
    """

    rank: int
    group: str
    number: int
    ahead: int


class _Group:
    """One process group, as its ranks have recorded it."""

    def __init__(self, name: str, description: str, members: frozenset[int]) -> None:
        self.name, self.description, self.members = name, description, members
        self.has_all = bool(members)
        self.records: dict[int, GroupRecord] = {}
        self.silent: list[int] = []

    @property
    def called(self) -> str:
        """What the group is called in a sentence."""
        has_words = self.description not in ("", "undefined", "default_pg")
        return f"process group {self.name}" + (f" ({self.description})" if has_words else "")

    def pending(self, rank: int) -> Collective | None:
        """Return the first collective of a rank that has not completed."""
        record = self.records.get(rank)
        return next((one for one in record.recent if not one.is_done), None) if record else None

    def at(self, rank: int, number: int) -> Collective | None:
        """Return a rank's collective with a number, if its record still has it."""
        recent = self.records[rank].recent if rank in self.records else ()
        return next((one for one in recent if one.number == number and not one.is_p2p), None)

    def enqueued(self, rank: int) -> int:
        """Return the last collective that a rank has called; 0 for none."""
        return max(self.records[rank].enqueued, 0) if rank in self.records else 0

    def last(self, rank: int) -> Collective | None:
        """Return the last collective that a rank is known to have called."""
        recent = self.records[rank].recent if rank in self.records else ()
        return recent[-1] if recent else None


def conclude(records: Sequence[RankRecord], world_size: int | None = None) -> tuple[Conclusion, ...]:
    """Return the findings, the most telling first; empty if no rank waits.

    Args:
        records: One of each rank that was asked.
        world_size: Number of ranks of the job; None if unknown.
    """
    groups = _find_groups(records, world_size)
    waits = {
        (place, rank): one
        for place, group in enumerate(groups)
        for rank in group.records
        if (one := group.pending(rank)) is not None
    }
    waiting = {rank for _, rank in waits}
    by_place: dict[int, dict[int, Collective]] = {}
    for (place, rank), one in waits.items():
        by_place.setdefault(place, {})[rank] = one
    found: list[Conclusion] = []
    edges: dict[int, set[int]] = {}
    for place, group in enumerate(groups):
        mine = by_place.get(place, {})
        found += _judge_group(group, mine, waiting, edges)
        found += _judge_p2p(group, mine, waiting, edges)
    if waits and not any(one.kind in (ABSENT, DIFFERS) for one in found):
        found += _find_circle(groups, waits, edges)
    is_sure = any(one.kind not in (TOGETHER, UNSURE) for one in found)
    blamed = [one for one in found if one.kind not in (TOGETHER, UNSURE) or not is_sure]
    order = (DIFFERS, ABSENT, CIRCLE, NO_DUMP, UNSURE, TOGETHER)
    return tuple(sorted(blamed, key=lambda one: order.index(one.kind))[:SENTENCES_MAX])


def find_stragglers(records: Sequence[RankRecord], world_size: int | None = None) -> tuple[Straggler, ...]:
    """Return the ranks that have called fewer collectives than the rank in front, the last first."""
    found = []
    for group in _find_groups(records, world_size):
        ahead = max((group.enqueued(rank) for rank in group.records), default=0)
        found += [
            Straggler(rank, group.called, group.enqueued(rank), ahead)
            for rank in sorted(group.members - set(group.silent) if group.has_all else group.records)
            if group.enqueued(rank) < ahead
        ]
    return tuple(sorted(found, key=lambda one: one.number - one.ahead))


def describe_missing(records: Sequence[RankRecord]) -> str:
    """Return in one line which ranks have no flight recorder, and why; empty if all have one."""
    reasons: dict[str, list[int]] = {}
    for record in records:
        if record.missing:
            reasons.setdefault(record.missing, []).append(record.rank)
    parts = [f"({name_ranks(ranks)}): {why}" for why, ranks in reasons.items()]
    return f"no flight recorder {'; '.join(parts)}" if parts else ""


def _find_groups(records: Sequence[RankRecord], world_size: int | None) -> list[_Group]:
    """Return the groups, keyed by name and ranks: one name can be used for several sets of ranks."""
    groups: dict[tuple[str, str], _Group] = {}
    known = frozenset(record.rank for record in records if not record.missing)
    room = ALL_MEMBERS_MAX
    for record in records:
        for one in record.groups:
            key = (one.name, one.ranks)
            if key not in groups:
                if room <= 0:
                    continue
                group = groups[key] = _Group(one.name, one.description, parse_ranges(one.ranks))
                if not group.members and group.name == "0" and world_size is not None:
                    group.members, group.has_all = frozenset(range(world_size)), True
                elif not group.members:  # its ranks are not in the dump: it may have any
                    group.members = known
                group.silent = sorted(group.members - known)
                room -= len(group.members)
            groups[key].records[record.rank] = one
    return list(groups.values())


def _judge_group(
    group: _Group, waits: Mapping[int, Collective], waiting: set[int], edges: dict[int, set[int]]
) -> list[Conclusion]:
    """Return what is wrong with the first collective of a group that a rank waits in."""
    together = {rank: one for rank, one in waits.items() if not one.is_p2p}
    if not together:
        return []
    number = min(one.number for one in together.values())
    here = {rank: one for rank, one in together.items() if one.number == number}
    calls = {rank: one for rank in group.members if (one := group.at(rank, number)) is not None}
    differs = _find_difference(group, number, calls)
    if differs:
        return [differs]
    answered = group.members - set(group.silent)
    absent = sorted(rank for rank in answered if rank not in here and group.enqueued(rank) < number)
    example = here[min(here)]
    for rank in here:
        edges.setdefault(rank, set()).update(absent[:1])  # the circle goes through the first one
    if not group.has_all:
        waited = f" for {_duration(max(one.age_s for one in here.values()))}" if _is_timed(here) else ""
        sentence = (
            f"{name_ranks(here)} wait{'s' if len(here) == 1 else ''}{waited} in {_say_what(group, example)}"
        )
        sentence += f"{_at(example)}; which ranks the group has is not recorded"
        return [Conclusion(UNSURE, sentence, (), group.name, example.where)]
    if absent:
        culprits = [rank for rank in absent if rank not in waiting]
        return [_say_absent(group, example, here, culprits)] if culprits else []
    what = _say_what(group, example)
    waited = _say_wait(here)
    if group.silent:
        sentence = f"{name_ranks(here)} wait in {what}{waited}; {name_ranks(group.silent)} gave no dump"
        return [Conclusion(NO_DUMP, sentence, tuple(group.silent), group.name)]
    done = sorted(answered - here.keys())
    ended = f"; it has ended on {name_ranks(done)}" if done else ""
    sentence = f"all {len(answered)} ranks joined {what}{waited}{ended}: the network or a GPU does not answer"
    return [Conclusion(TOGETHER, sentence, (), group.name, example.where)]


def _say_absent(
    group: _Group, example: Collective, here: Mapping[int, Collective], absent: Sequence[int]
) -> Conclusion:
    seen = {rank: _describe_last(group.last(rank)) for rank in absent}
    alike = len(set(seen.values())) == 1
    last = next(iter(seen.values())) if alike else ""
    rest = "the others" if len(here) > 1 else f"rank {min(here)}"
    sentence = f"{name_ranks(absent)} never joined {_say_what(group, example)}; {rest} waited"
    sentence += f" {_duration(max(one.age_s for one in here.values()))}" if _is_timed(here) else ""
    where = next((one.where for rank in absent if (one := group.last(rank))), "")
    called = f"they called it at {example.where}" if example.where and len(here) > 1 else ""
    called = called or (f"called at {example.where}" if example.where else "")
    detail = "; ".join(filter(None, (called, last and f"{name_ranks(absent)} {last}")))
    return Conclusion(ABSENT, sentence, tuple(absent), group.name, where, detail)


def _describe_last(last: Collective | None) -> str:
    if last is None:
        return "called nothing in this group"
    at = f" at {last.where}" if last.where else ""
    return f"last called {last.name} number {last.number:,}{at}"


def _find_difference(group: _Group, number: int, calls: Mapping[int, Collective]) -> Conclusion | None:
    """Return the ranks that called something else than most, by name, then type, then size."""
    told = {rank: one for rank, one in calls.items() if one.name not in ANY_NAME}
    names = {rank: one.name for rank, one in told.items()}
    rare = _minority(names)
    if rare:
        usual = next(names[rank] for rank in sorted(names) if rank not in rare)
        at = _at(told[rare[0]])
        what = f"number {number:,} of {group.called}"
        sentence = f"{name_ranks(rare)} called {names[rare[0]]}{at} where the others called {usual} ({what})"
        return Conclusion(DIFFERS, sentence, tuple(rare), group.name, told[rare[0]].where)
    is_uniform = bool(names) and next(iter(names.values())) in SAME_SIZES
    shapes = {rank: (one.dtypes, one.size_bytes, one.sizes) for rank, one in told.items() if one.sizes}
    if not is_uniform:
        shapes = {rank: (dtypes, 0, "") for rank, (dtypes, _, _) in shapes.items()}
    elif all(one.size_bytes >= 0 for one in told.values()):
        # ranks may shape the same bytes in different ways
        shapes = {rank: (dtypes, size, "") for rank, (dtypes, size, _) in shapes.items()}
    rare = _minority(shapes)
    if not rare:
        return None
    odd, usual_rank = told[rare[0]], next(rank for rank in sorted(shapes) if rank not in rare)
    ours, theirs = _say_shape(odd, told[usual_rank])
    sentence = f"{name_ranks(rare)} gave {ours}{_at(odd)} where the others gave {theirs}"
    sentence += f": {odd.name} number {number:,} of {group.called}"
    return Conclusion(DIFFERS, sentence, tuple(rare), group.name, odd.where)


def _say_shape(odd: Collective, usual: Collective) -> tuple[str, str]:
    if odd.dtypes != usual.dtypes:
        return odd.dtypes or "nothing", usual.dtypes or "nothing"
    if min(odd.size_bytes, usual.size_bytes) >= 0:
        return f"{odd.sizes} ({size(odd.size_bytes)})", f"{usual.sizes} ({size(usual.size_bytes)})"
    return odd.sizes, usual.sizes


def _minority(values: Mapping[int, object]) -> list[int]:
    """Return the ranks whose value is not the most frequent one; rank 0's is, among equals."""
    counts: dict[object, list[int]] = {}
    for rank in sorted(values):
        counts.setdefault(values[rank], []).append(rank)
    if len(counts) < 2:
        return []
    usual = max(counts.values(), key=len)
    return sorted(rank for rank in values if rank not in usual)


def _judge_p2p(
    group: _Group, waits: Mapping[int, Collective], waiting: set[int], edges: dict[int, set[int]]
) -> list[Conclusion]:
    """Return the sends and receives whose other side has not called its part."""
    members = sorted(group.members)
    found = []
    for rank, one in sorted(waits.items()):
        match = P2P.search(one.name) if one.is_p2p else None
        if match is None:
            continue
        peer_place = int(match[4])
        peer = members[peer_place] if peer_place < len(members) else peer_place
        edges.setdefault(rank, set()).add(peer)
        other = "recv" if match[1] == "send" else "send"
        its = waits.get(peer)
        answers = its is not None and its.is_p2p and its.name.startswith(f"{other} ")
        if (answers and _is_pair(match, its)) or peer in waiting:
            if answers and _is_pair(match, its) and its and rank < peer and _differ(one, its):
                ours, theirs = _say_shape(one, its)
                sentence = f"rank {rank} gave {ours} to {match[1]} where rank {peer} gave {theirs} to {other}"
                found.append(Conclusion(DIFFERS, f"{sentence} ({group.called})", (rank, peer), group.name))
            continue
        word = "to" if match[1] == "send" else "from"
        waited = f" for {_duration(one.age_s)}" if one.age_s else ""
        amount = f" ({size(one.size_bytes)})" if one.size_bytes >= 0 else ""
        sentence = f"rank {rank} waits{waited} in {match[1]} {word} rank {peer}{amount} of {group.called}"
        if peer in group.silent:
            found.append(Conclusion(NO_DUMP, f"{sentence}; rank {peer} gave no dump", (peer,), group.name))
        else:
            sentence += f"; rank {peer} never called {other}"
            detail = f"rank {peer} {_describe_last(group.last(peer))}"
            found.append(Conclusion(ABSENT, sentence, (peer,), group.name, detail=detail))
    return found


def _is_pair(match: re.Match[str], its: Collective | None) -> bool:
    theirs = P2P.search(its.name) if its else None
    return theirs is not None and (theirs[2], theirs[4]) == (match[4], match[2])


def _differ(one: Collective, other: Collective) -> bool:
    return (one.dtypes, one.size_bytes) != (other.dtypes, other.size_bytes)


def _find_circle(
    groups: Sequence[_Group], waits: Mapping[tuple[int, int], Collective], edges: Mapping[int, set[int]]
) -> list[Conclusion]:
    """Return the ranks that wait for each other in a circle."""
    start = min(edges, default=None)
    path: list[int] = []
    while start is not None and start not in path:
        path.append(start)
        start = min(edges.get(start, ()), default=None)
    if start is None:
        return []
    circle = path[path.index(start) :]
    parts = []
    for rank in circle[:4]:
        place, one = next((where, one) for (where, waiter), one in waits.items() if waiter == rank)
        parts.append(f"rank {rank} in {_say_what(groups[place], one)}{_at(one)}")
    sentence = f"ranks wait for each other in a circle: {', '.join(parts)}"
    return [Conclusion(CIRCLE, f"{sentence}; they call their groups in another order", tuple(sorted(circle)))]


def _say_what(group: _Group, one: Collective) -> str:
    amount = f" ({size(one.size_bytes)})" if one.size_bytes >= 0 else ""
    return f"{one.name} number {one.number:,} of {group.called}{amount}"


def _say_wait(here: Mapping[int, Collective]) -> str:
    return f" {_duration(max(one.age_s for one in here.values()))} ago" if _is_timed(here) else ""


def _is_timed(here: Mapping[int, Collective]) -> bool:
    return any(one.age_s >= 1 for one in here.values())


def _duration(seconds: float) -> str:
    return f"{seconds:,.0f} s"


def _at(one: Collective) -> str:
    return f" at {one.where}" if one.where else ""


def size(count: int) -> str:
    """Return a number of bytes in three digits: ``"40 MB"``, ``"4.19 MB"``; 1 MB is 1,000,000 bytes."""
    value, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}"
