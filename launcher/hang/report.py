"""Reports a job that hangs, from what all ranks have answered: lines, groups for a record, a file."""

from __future__ import annotations

from launcher.core.files import create_file
from launcher.core.frozen import frozen
from launcher.core.ranks import name_ranks, render_ranges
from launcher.core.redact import printable, quote
from launcher.core.wire import LINE_LENGTH
from launcher.failure.model import RankGroup
from launcher.hang.conclude import SURE, conclude, describe_behind, describe_missing
from launcher.hang.limits import LINES_MAX, TEXT_LENGTH
from launcher.hang.places import (
    describe_process,
    find_speakers,
    find_suspects,
    group,
    is_tracker,
    name_suspect,
)
from launcher.observers.stragglers import describe_stragglers
from launcher.output.folder import REPORT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.hang.model import Answer, RankRecord
    from launcher.hang.places import Group
    from launcher.observers.stragglers import Numbers

LINES_FOR_CHILDREN = 4
PIDS_PER_LINE = 8
GROUPS_MAX, SUSPECTS_MAX = 56, 8
"""Maximum numbers of groups that wait, and of those for which they wait."""
STACK_MAX = 64
NAME = "flight recorder"
STRAGGLERS_MAX = 4
TO_ARM = "call launcher.setup() in the script, or run launcher hook install for its Python"
"""Two ways beside py-spy: the first one needs the launcher in the script's own Python, which an image may not
have."""


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
    found = conclude(records, world_size)
    fault = next((one for one in found if one.kind in SURE), None)
    if fault is not None and not suspect:
        rank, suspect = fault.ranks[0], fault.sentence
    if silent:
        verb = "do" if len(silent) > 1 else "does"
        suspect = f"{', '.join(silent[:4])} {verb} not answer, and the others wait"
    recorded = [one.text for one in found]
    if not any(one.ranks for one in found):
        recorded += describe_behind(records, world_size)[:STRAGGLERS_MAX]
    lines = [quote(f"{NAME}: {text}", TEXT_LENGTH) for text in recorded]
    lines += [describe_stragglers(progress), *render_report(answers, world_size)]
    lines = [line for line in (*lines, quote(describe_missing(records), TEXT_LENGTH)) if line]
    if len(lines) > LINES_MAX:
        lines = [*lines[: LINES_MAX - 1], f"and {len(lines) - LINES_MAX + 1} more"]
    headline = f"stalled: {what}" + (f"; {suspect}" if suspect else "")
    return Hang(quote(headline, LINE_LENGTH), tuple(quote(line, LINE_LENGTH) for line in lines), rank)


def render_report(answers: Sequence[Answer], world_size: int | None = None) -> list[str]:
    """Return lines that say where each rank waits, and for which one the others probably wait.

    Args:
        answers: Processes of each rank, from the started process downwards.
        world_size: Number of ranks on all nodes; None if unknown.
    """
    speakers = find_speakers(answers)
    groups = group(speakers)
    suspects, reason = find_suspects(groups)
    lines = []
    for item in sorted(groups, key=lambda item: (item in suspects, item.answers[0].rank)):
        lines.append(item.render(name_ranks(item.ranks)) + (f": {reason}" if item in suspects else ""))
    lines += explain_collectives(groups, world_size)
    known = set(map(id, speakers))
    lines += render_children([answer for answer in answers if id(answer) not in known])
    if any(answer.is_python and not answer.threads for answer in speakers):
        lines.append(f"for Python stacks {TO_ARM}")
    return lines


def explain_collectives(groups: Sequence[Group], world_size: int | None) -> list[str]:
    """Return what follows if all processes of this node wait for others; empty if not all do."""
    if not groups or not all(item.in_collective for item in groups):
        return []
    if len(groups) > 1:
        return ["they wait in different collective calls for each other: compare the order of their calls"]
    if world_size is not None and len(groups[0].answers) >= world_size:
        return [
            "all ranks of the job have reached this call: the network or a GPU does not answer, or "
            f"it waits for more processes than the {world_size} of this job (does the script name a number?)"
        ]
    return ["all ranks of this node have reached this call: see what the other nodes report"]


def render_children(answers: Sequence[Answer]) -> list[str]:
    """Return lines about Python processes that represent no rank, e.g. DataLoader workers."""
    groups = group([answer for answer in answers if answer.frames and not is_tracker(answer)])
    lines = []
    for item in groups[:LINES_FOR_CHILDREN]:
        lines.append(item.render(name_processes("with", item.answers)))
    if len(groups) > LINES_FOR_CHILDREN:
        lines.append(f"children in {len(groups) - LINES_FOR_CHILDREN} more places")
    return lines


def name_processes(word: str, answers: Sequence[Answer]) -> str:
    """Return processes that represent no rank: ``with rank 3: pid 21``."""
    pids = ", ".join(str(answer.pid) for answer in answers[:PIDS_PER_LINE])
    more = len(answers) - PIDS_PER_LINE
    ranks = name_ranks(answer.rank for answer in answers)
    return f"{word} {ranks}: pid {pids}" + (f" and {more} more" if more > 0 else "")


def make_groups(
    answers: Sequence[Answer], records: Sequence[RankRecord] = (), world_size: int | None = None
) -> tuple[RankGroup, ...]:
    """Return what is known of the ranks of all nodes, for the failure report and the record.

    First what the flight recorders say; then the ranks by place, those for which the others wait last.

    Args:
        answers: Processes of each rank, from the started process downwards.
        records: Flight recorders of all ranks.
        world_size: Number of ranks on all nodes; None if unknown.
    """
    found = conclude(records, world_size)
    made = [_make_group(one.ranks, f"{NAME}: {one.text}", one.kind in SURE) for one in found]
    groups = group(find_speakers(answers))
    suspects, _ = find_suspects(groups)
    groups.sort(key=lambda item: item.ranks[0])
    kept = [item for item in groups if item not in suspects][:GROUPS_MAX]
    for item in (*kept, *[item for item in groups if item in suspects][:SUSPECTS_MAX]):
        first = item.answers[0]
        # A Python that has not answered, and of which nothing else is known, may just be ending
        is_silent = item.spot is None and first.is_python and not item.state
        stack = [f"{one.file}:{one.line} {one.function}" for one in first.frames[:STACK_MAX]]
        text = item.render(name_ranks(item.ranks))
        made.append(_make_group(item.ranks, text, item in suspects and not is_silent, stack))
    return tuple(made)


def _make_group(ranks: Sequence[int], doing: str, differs: bool, stack: Sequence[str] = ()) -> RankGroup:
    texts = [quote(text, TEXT_LENGTH) for text in (render_ranges(ranks), doing, *stack)]
    return RankGroup(texts[0], texts[1], differs, tuple(texts[2:]))


def render_stacks(headline: str, answers: Sequence[Answer]) -> str:
    """Return everything that is known, as text for a file."""
    lines = [headline]
    for answer in answers:
        lines += ["", f"rank {answer.rank}: {describe_process(answer)}", f"  {answer.command}"]
        lines += [f"  no Python stack: {answer.why}"] if answer.why else []
        for thread in answer.threads:
            lines.append(f"  {thread.name}, innermost first ({answer.means}):")
            lines += thread.render()
    return "".join(f"{printable(line)}\n" for line in lines)


def write_stacks(folder: int, headline: str, answers: Sequence[Answer]) -> str:
    """Write all stacks to a new file in the directory with this descriptor; return its name.

    Raises:
        OSError: The file cannot be written.
    """
    data = render_stacks(headline, answers).encode("utf-8", "replace")
    for number in range(1, 1000):
        name = f"{REPORT}{number}.txt"
        try:
            create_file(data, name, 0o600, at=folder)
        except FileExistsError:  # from an earlier stall
            continue
        return name
    raise FileExistsError(0, "too many reports in this directory")
