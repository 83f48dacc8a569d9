"""Reports a hanging job from the evidence of all ranks: which rank the others wait for. Pure."""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.redact import quote
from launcher.core.wire import LINE_LENGTH
from launcher.hang.limits import LINES_MAX
from launcher.hang.records import describe_records
from launcher.hang.report import name_suspect, render_report
from launcher.observers.stragglers import describe_stragglers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.hang.model import Answer, RankRecord
    from launcher.observers.stragglers import Numbers


@frozen
class Hang:
    """What is known about a job that hangs.

    Attributes:
        headline: One sentence, which names the rank that differs from the others.
        lines: What each rank does.
        rank: The rank that differs; -1 if none does.
    """

    headline: str
    lines: tuple[str, ...]
    rank: int = -1


def describe_hang(
    what: str,
    answers: Sequence[Answer],
    world_size: int | None,
    places: Mapping[int, str],
    silent: Sequence[str] = (),
    progress: Numbers = (),
    records: Sequence[RankRecord] = (),
) -> Hang:
    """Return the report of a stall.

    Args:
        what: What was seen, e.g. ``no output for 10 min``.
        answers: Processes of all ranks.
        world_size: Number of ranks on all nodes; None if unknown.
        places: Node of each rank in words; empty on one node.
        silent: Nodes that do not answer, in words.
        progress: Progress of each rank, by the user's pattern.
        records: Flight recorders of all ranks.
    """
    rank, suspect = name_suspect(answers, places)
    recorded, missing, fault = describe_records(records, world_size)
    if fault is not None and not suspect:
        rank, suspect = fault.ranks[0], fault.sentence
    if silent:
        verb = "do" if len(silent) > 1 else "does"
        suspect = f"{', '.join(silent[:4])} {verb} not answer, and the others wait"
    behind = describe_stragglers(progress)
    said = (*recorded, behind, *render_report(answers, world_size), missing)
    lines = [line for line in said if line]
    if len(lines) > LINES_MAX:
        lines = [*lines[: LINES_MAX - 1], f"and {len(lines) - LINES_MAX + 1} more"]
    headline = f"stalled: {what}" + (f"; {suspect}" if suspect else "")
    return Hang(_line(headline), tuple(map(_line, lines)), rank)


def _line(text: str) -> str:
    return quote(text, LINE_LENGTH)
