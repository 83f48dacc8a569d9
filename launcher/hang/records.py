"""What the flight recorders of all ranks say, for the report of a stall, of a failure, and the record."""

from __future__ import annotations

from launcher.core.ranks import render_ranges
from launcher.core.redact import quote
from launcher.failure.model import RankGroup
from launcher.hang.conclude import (
    ABSENT,
    CIRCLE,
    DIFFERS,
    conclude,
    describe_missing,
    find_stragglers,
)
from launcher.hang.model import RankRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.hang.conclude import Conclusion

SURE = (ABSENT, DIFFERS, CIRCLE)
"""Kinds of conclusions that name the ranks at fault."""
NAME = "flight recorder"
LINE_LENGTH = 400
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
