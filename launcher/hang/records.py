"""What the flight recorders of all ranks say, for the report of a stall, of a failure, and the record."""

from __future__ import annotations

from launcher.core.ranks import render_ranges
from launcher.core.redact import quote
from launcher.failure.model import RankGroup
from launcher.hang.conclude import SURE, conclude, describe_behind, describe_missing
from launcher.hang.model import RankRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.hang.conclude import Conclusion

NAME = "flight recorder"
LINE_LENGTH = 400
STRAGGLERS_MAX = 4


def describe_records(
    records: Sequence[RankRecord], world_size: int | None
) -> tuple[list[str], str, Conclusion | None]:
    """Return the lines of a report, which ranks have no record and why, and what names the ranks at fault."""
    found = conclude(records, world_size)
    lines = [quote(f"{NAME}: {one.text}", LINE_LENGTH) for one in found]
    if not any(one.ranks for one in found):
        behind = describe_behind(records, world_size)[:STRAGGLERS_MAX]
        lines += [f"{NAME}: {text}" for text in behind]
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
