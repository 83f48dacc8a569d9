"""What the flight recorders of all ranks say, for the report of a stall, of a failure, and the record."""

from __future__ import annotations

import json

from launcher.core.frozen import replace
from launcher.core.messages import render
from launcher.core.ranks import render_ranges
from launcher.core.redact import quote
from launcher.failure.model import RankGroup
from launcher.recorder.conclude import (
    ABSENT,
    CIRCLE,
    DIFFERS,
    conclude,
    describe_missing,
    find_stragglers,
)
from launcher.recorder.facts import RankRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.recorder.conclude import Conclusion

SURE = (ABSENT, DIFFERS, CIRCLE)
"""Kinds of conclusions that name the ranks at fault."""
NAME = "flight recorder"
LINE_LENGTH = 400
ROOM_BYTES = 16 << 10
"""Bytes of a node's records in a message, which has 64 KiB, most of them for stacks."""
STRAGGLERS_MAX = 4


def describe_records(
    records: Sequence[RankRecord], world_size: int | None
) -> tuple[list[str], str, Conclusion | None]:
    """Return the lines of a report, which ranks have no record and why, and what names the ranks at fault."""
    found = conclude(records, world_size)
    lines = [quote(f"{NAME}: {one.text}", LINE_LENGTH) for one in found]
    named = {rank for one in found for rank in one.ranks}
    behind = [one for one in find_stragglers(records, world_size) if one.rank not in named]
    lines += [
        f"{NAME}: rank {one.rank} is at number {one.number:,} of {one.group}, another one at {one.ahead:,}"
        for one in (() if named else behind[:STRAGGLERS_MAX])
    ]
    missing = quote(describe_missing(records), LINE_LENGTH)
    return lines, missing, next((one for one in found if one.kind in SURE), None)


def group_records(records: Sequence[RankRecord], world_size: int | None) -> tuple[RankGroup, ...]:
    """Return the conclusions as groups of ranks, for the failure report and the record."""
    return tuple(
        RankGroup(
            quote(render_ranges(one.ranks), LINE_LENGTH),
            quote(f"{NAME}: {one.text}", LINE_LENGTH),
            one.kind in SURE,
        )
        for one in conclude(records, world_size)
    )


def fit_records(records: Sequence[RankRecord], limit_bytes: int = ROOM_BYTES) -> tuple[RankRecord, ...]:
    """Return records that fit into a message: those of fewer collectives, or fewer groups, if need be."""
    kept = tuple(records)
    for around, most in ((None, None), (1, None), (0, None), (0, 8), (0, 2), (0, 1)):
        if around is not None:
            kept = tuple(_shorten(one, around, most) for one in records)
        if len(json.dumps([render(one) for one in kept])) <= limit_bytes:
            return kept
    return tuple(
        RankRecord(one.rank, one.backend, missing=one.missing or "its record is too long") for one in records
    )


def _shorten(record: RankRecord, around: int, most: int | None) -> RankRecord:
    groups = []
    for group in record.groups:
        waits = next((place for place, one in enumerate(group.recent) if not one.is_done), None)
        place = len(group.recent) - 1 if waits is None else waits
        recent = group.recent[max(0, place - around) : place + around + 1]
        groups.append((waits is None, replace(group, recent=recent)))
    ordered = [group for _, group in sorted(groups, key=lambda item: item[0])]  # those that wait first
    return replace(record, groups=tuple(ordered[:most]))
