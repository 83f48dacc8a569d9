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
ORDER = (DIFFERS, ABSENT, CIRCLE, NO_DUMP, UNSURE, TOGETHER)
"""Kinds of conclusions, the most telling first."""
SURE = (ABSENT, DIFFERS, CIRCLE)
"""Those that name the ranks at fault."""
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
        ranks: The ranks that it names; empty if none is at fault.
        detail: Where it was called, and what the named ranks called last; empty if unknown.
    """

    kind: str
    sentence: str
    ranks: tuple[int, ...] = ()
    detail: str = ""

    @property
    def text(self) -> str:
        """The sentence with its detail."""
        return "; ".join(filter(None, (self.sentence, self.detail)))


class _Group:
    """One process group, as its ranks have recorded it.

    Attributes:
        members: Its ranks; if they are not known, all with a record.
        has_all: Whether its ranks are known.
        records: What its ranks have recorded, by rank.
        waits: The first collective of each rank that has not completed.
        silent: Its ranks without a record.
        called: What the group is called in a sentence.
    """

    def __init__(self, one: GroupRecord, known: frozenset[int], world_size: int | None) -> None:
        """Begin without a rank; ``known``: all ranks with a record."""
        members = parse_ranges(one.ranks)
        if not members and one.name == "0" and world_size is not None:
            members = frozenset(range(world_size))
        self.members, self.has_all = members or known, bool(members)
        self.silent = sorted(self.members - known)
        self.records: dict[int, GroupRecord] = {}
        self.waits: dict[int, Collective] = {}
        has_words = one.description not in ("", "undefined", "default_pg")
        self.called = f"process group {one.name}" + (f" ({one.description})" if has_words else "")

    def add(self, rank: int, record: GroupRecord) -> None:
        """Add what a rank has recorded."""
        self.records[rank] = record
        waits = next((one for one in record.recent if not one.is_done), None)
        if waits is not None:
            self.waits[rank] = waits

    def at(self, rank: int, number: int) -> Collective | None:
        """Return a rank's collective with a number, if its record still has it."""
        recent = self.records[rank].recent if rank in self.records else ()
        return next((one for one in recent if one.number == number and not one.is_p2p), None)

    def enqueued(self, rank: int) -> int:
        """Return the last collective that a rank has called; 0 for none."""
        return max(self.records[rank].enqueued, 0) if rank in self.records else 0

    def last(self, rank: int) -> str:
        """Return the last collective that a rank is known to have called, in words."""
        recent = self.records[rank].recent if rank in self.records else ()
        if not recent:
            return "called nothing in this group"
        return f"last called {recent[-1].name} number {recent[-1].number:,}{_at(recent[-1])}"


def conclude(records: Sequence[RankRecord], world_size: int | None = None) -> tuple[Conclusion, ...]:
    """Return the findings, the most telling first; empty if no rank waits.

    Args:
        records: One of each rank that was asked.
        world_size: Number of ranks of the job; None if unknown.
    """
    groups = _find_groups(records, world_size)
    waiting = {rank for group in groups for rank in group.waits}
    found: list[Conclusion] = []
    edges: dict[int, set[int]] = {}
    for group in groups:
        found += [*_judge_group(group, waiting, edges), *_judge_p2p(group, waiting, edges)]
    if not any(one.kind in (ABSENT, DIFFERS) for one in found):
        found += _find_circle(groups, edges)
    telling = [one for one in found if one.kind not in (TOGETHER, UNSURE)]
    return tuple(sorted(telling or found, key=lambda one: ORDER.index(one.kind))[:SENTENCES_MAX])


def describe_behind(records: Sequence[RankRecord], world_size: int | None = None) -> list[str]:
    """Return which ranks have called fewer collectives than the rank in front, the last first."""
    found = []
    for group in _find_groups(records, world_size):
        ahead = max(map(group.enqueued, group.records), default=0)
        for rank in sorted(group.members - set(group.silent) if group.has_all else group.records):
            number = group.enqueued(rank)
            if number < ahead:
                text = f"rank {rank} is at number {number:,} of {group.called}, another rank at {ahead:,}"
                found.append((number - ahead, text))
    return [text for _, text in sorted(found, key=lambda one: one[0])]


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
            if key not in groups and room > 0:
                groups[key] = _Group(one, known, world_size)
                room -= len(groups[key].members)
            if key in groups:
                groups[key].add(record.rank, one)
    return list(groups.values())


def _judge_group(group: _Group, waiting: set[int], edges: dict[int, set[int]]) -> list[Conclusion]:
    """Return what is wrong with the first collective of a group that a rank waits in."""
    together = {rank: one for rank, one in group.waits.items() if not one.is_p2p}
    if not together:
        return []
    number = min(one.number for one in together.values())
    here = {rank: one for rank, one in together.items() if one.number == number}
    differs = _find_difference(group, number)
    if differs:
        return [differs]
    answered = group.members - set(group.silent)
    absent = sorted(rank for rank in answered if rank not in here and group.enqueued(rank) < number)
    example = here[min(here)]
    what = _say_what(group, example)
    for rank in here:
        edges.setdefault(rank, set()).update(absent[:1])  # the circle goes through the first one
    if not group.has_all:
        waits = f"wait{'s' if len(here) == 1 else ''}{_say_wait(here, ' for {}')}"
        unknown = "which ranks the group has is not recorded"
        return [Conclusion(UNSURE, f"{name_ranks(here)} {waits} in {what}{_at(example)}; {unknown}")]
    if absent:
        culprits = [rank for rank in absent if rank not in waiting]
        return [_say_absent(group, example, here, culprits)] if culprits else []
    what += _say_wait(here, " {} ago")
    if group.silent:
        sentence = f"{name_ranks(here)} wait in {what}; {name_ranks(group.silent)} gave no dump"
        return [Conclusion(NO_DUMP, sentence, tuple(group.silent))]
    done = sorted(answered - here.keys())
    ended = f"; it has ended on {name_ranks(done)}" if done else ""
    sentence = f"all {len(answered)} ranks joined {what}{ended}: the network or a GPU does not answer"
    return [Conclusion(TOGETHER, sentence)]


def _say_absent(
    group: _Group, example: Collective, here: Mapping[int, Collective], absent: Sequence[int]
) -> Conclusion:
    last, *others = {group.last(rank): None for rank in absent}
    rest, called = ("the others", "they called it") if len(here) > 1 else (f"rank {min(here)}", "called")
    sentence = f"{name_ranks(absent)} never joined {_say_what(group, example)}; "
    sentence += f"{rest} waited{_say_wait(here, ' {}')}"
    details = (
        f"{called}{_at(example)}" if example.where else "",
        "" if others else f"{name_ranks(absent)} {last}",
    )
    return Conclusion(ABSENT, sentence, tuple(absent), "; ".join(filter(None, details)))


def _find_difference(group: _Group, number: int) -> Conclusion | None:
    """Return the ranks that called something else than most, by name, then type, then size."""
    calls = {rank: one for rank in group.members if (one := group.at(rank, number)) is not None}
    calls = {rank: one for rank, one in calls.items() if one.name not in ANY_NAME}
    names = {rank: one.name for rank, one in calls.items()}
    rare = _minority(names)
    if rare:
        usual = next(names[rank] for rank in sorted(names) if rank not in rare)
        sentence = f"{name_ranks(rare)} called {names[rare[0]]}{_at(calls[rare[0]])} where the others"
        sentence += f" called {usual} (number {number:,} of {group.called})"
        return Conclusion(DIFFERS, sentence, tuple(rare))
    shapes = {rank: (one.dtypes, one.size_bytes, one.sizes) for rank, one in calls.items() if one.sizes}
    if not names or next(iter(names.values())) not in SAME_SIZES:
        shapes = {rank: (dtypes, 0, "") for rank, (dtypes, _, _) in shapes.items()}
    elif all(one.size_bytes >= 0 for one in calls.values()):
        # ranks may shape the same bytes in different ways
        shapes = {rank: (dtypes, size, "") for rank, (dtypes, size, _) in shapes.items()}
    rare = _minority(shapes)
    if not rare:
        return None
    odd, usual_rank = calls[rare[0]], next(rank for rank in sorted(shapes) if rank not in rare)
    ours, theirs = _say_shape(odd, calls[usual_rank])
    sentence = f"{name_ranks(rare)} gave {ours}{_at(odd)} where the others gave {theirs}"
    return Conclusion(DIFFERS, f"{sentence}: {odd.name} number {number:,} of {group.called}", tuple(rare))


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


def _judge_p2p(group: _Group, waiting: set[int], edges: dict[int, set[int]]) -> list[Conclusion]:
    """Return the sends and receives whose other side has not called its part."""
    members = sorted(group.members)
    found = []
    for rank, one in sorted(group.waits.items()):
        match = P2P.search(one.name) if one.is_p2p else None
        if match is None:
            continue
        place, call = int(match[4]), match[1]
        peer = members[place] if place < len(members) else place
        edges.setdefault(rank, set()).add(peer)
        other = "recv" if call == "send" else "send"
        its = group.waits.get(peer)
        if its is not None and its.is_p2p and its.name.startswith(f"{other} ") and _is_pair(match, its):
            if rank < peer and (one.dtypes, one.size_bytes) != (its.dtypes, its.size_bytes):
                ours, theirs = _say_shape(one, its)
                sentence = f"rank {rank} gave {ours} to {call} where rank {peer} gave {theirs} to {other}"
                found.append(Conclusion(DIFFERS, f"{sentence} ({group.called})", (rank, peer)))
            continue
        if peer in waiting:
            continue
        waited = f" for {one.age_s:,.0f} s" if one.age_s else ""
        sentence = f"rank {rank} waits{waited} in {call} {'to' if call == 'send' else 'from'} rank {peer}"
        sentence += f"{_amount(one)} of {group.called}; rank {peer} "
        if peer in group.silent:
            found.append(Conclusion(NO_DUMP, f"{sentence}gave no dump", (peer,)))
        else:
            last = f"rank {peer} {group.last(peer)}"
            found.append(Conclusion(ABSENT, f"{sentence}never called {other}", (peer,), last))
    return found


def _is_pair(match: re.Match[str], its: Collective) -> bool:
    theirs = P2P.search(its.name)
    return theirs is not None and (theirs[2], theirs[4]) == (match[4], match[2])


def _find_circle(groups: Sequence[_Group], edges: Mapping[int, set[int]]) -> list[Conclusion]:
    """Return the ranks that wait for each other in a circle."""
    rank = min(edges, default=None)
    path: list[int] = []
    while rank is not None and rank not in path:
        path.append(rank)
        rank = min(edges.get(rank, ()), default=None)
    if rank is None:
        return []
    circle = path[path.index(rank) :]
    parts = []
    for rank in circle[:4]:
        group = next(group for group in groups if rank in group.waits)
        one = group.waits[rank]
        parts.append(f"rank {rank} in {_say_what(group, one)}{_at(one)}")
    sentence = f"ranks wait for each other in a circle: {', '.join(parts)}"
    return [Conclusion(CIRCLE, f"{sentence}; they call their groups in another order", tuple(sorted(circle)))]


def _say_what(group: _Group, one: Collective) -> str:
    return f"{one.name} number {one.number:,} of {group.called}{_amount(one)}"


def _amount(one: Collective) -> str:
    return f" ({size(one.size_bytes)})" if one.size_bytes >= 0 else ""


def _say_wait(here: Mapping[int, Collective], form: str) -> str:
    """Return for how long ranks have waited; empty if that is not known, or less than a second."""
    longest = max(one.age_s for one in here.values())
    return form.format(f"{longest:,.0f} s") if longest >= 1 else ""


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
