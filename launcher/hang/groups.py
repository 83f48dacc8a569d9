"""Groups ranks that are in the same place, for the failure report and the record. Pure."""

from __future__ import annotations

from launcher.core.ranks import name_ranks, render_ranges
from launcher.core.redact import quote
from launcher.failure.model import RankGroup
from launcher.hang.report import find_speakers, find_suspects, group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.hang.model import Answer
    from launcher.hang.report import Group

GROUPS_MAX, SUSPECTS_MAX = 56, 8
"""Maximum numbers of groups that wait, and of those for which they wait."""
FRAMES_MAX = 64
LINE_LENGTH = 400


def make_groups(answers: Sequence[Answer]) -> tuple[RankGroup, ...]:
    """Return the ranks of all nodes by place: by rank, those for which the others wait last.

    Args:
        answers: Processes of each rank, from the started process downwards.
    """
    groups = group(find_speakers(answers))
    suspects, _ = find_suspects(groups)
    ordered = sorted(groups, key=lambda item: item.ranks[0])
    kept = [item for item in ordered if item not in suspects][:GROUPS_MAX]
    kept += [item for item in ordered if item in suspects][:SUSPECTS_MAX]
    return tuple(
        RankGroup(
            _line(render_ranges(item.ranks)),
            _line(item.render(name_ranks(item.ranks))),
            item in suspects and not is_silent(item),
            tuple(
                _line(f"{one.file}:{one.line} {one.function}") for one in item.answers[0].frames[:FRAMES_MAX]
            ),
        )
        for item in kept
    )


def _line(text: str) -> str:
    return quote(text, LINE_LENGTH)


def is_silent(item: Group) -> bool:
    """Whether it is a Python that has not answered, and nothing else is known: it may just be ending."""
    return item.spot is None and item.answers[0].is_python and not item.state
