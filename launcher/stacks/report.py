"""Reports where each rank waits, and for which others: a few lines for users, everything for a file. Pure."""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.redact import printable
from launcher.stacks.answer import RUNNING, Spot, find_spot, is_starter, is_tracker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.stacks.answer import Answer

LINES_FOR_CHILDREN = 4
PIDS_PER_LINE = 8


@frozen
class Group:
    """Processes in one and the same place; ``spot`` is None if the place is unknown."""

    answers: tuple[Answer, ...]
    spot: Spot | None

    @property
    def in_collective(self) -> bool:
        """Whether they wait for other processes."""
        return self.spot is not None and self.spot.in_collective

    def render(self, names: str) -> str:
        """Return what they do, e.g. ``ranks 0, 2 wait in all_reduce (...) <- train.py:47``."""
        first = self.answers[0]
        if self.spot is None:
            why = f": {first.why}" if first.why else ""
            return f"{names}: no Python stack ({describe_process(first)}){why}"
        verb = "run" if all(answer.call == RUNNING for answer in self.answers) else "wait"
        return f"{names} {verb}{'' if len(self.answers) > 1 else 's'} {self.spot.render(first.call)}"


TO_ARM = "call launcher.setup() in the script, or run launcher hook install for its Python"
"""Two ways beside py-spy: the first one needs the launcher in the script's own Python, which an image may not
have."""


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
        names = name_ranks([answer.rank for answer in item.answers])
        lines.append(item.render(names) + (f": {reason}" if item in suspects else ""))
    lines += explain_collectives(groups, world_size)
    lines += render_children([answer for answer in answers if answer not in speakers])
    if any(answer.is_python and not answer.threads for answer in speakers):
        lines.append(f"for Python stacks {TO_ARM}")
    return lines


def find_speakers(answers: Sequence[Answer]) -> list[Answer]:
    """Return the process that represents each rank: the first Python process that does work of its own.

    A shell around it does not count, nor does a Python process that only waits for another one that it
    started.
    """
    speakers = []
    for rank in sorted({answer.rank for answer in answers}):
        family = [answer for answer in answers if answer.rank == rank]
        known = [answer for answer in family if answer.frames and not is_tracker(answer)]
        working = [answer for answer in known if not is_starter(answer)]
        pythons = [answer for answer in family if answer.is_python]
        speakers.append((working or known or pythons or family)[0])
    return speakers


def group(answers: Sequence[Answer]) -> list[Group]:
    """Return the processes by place; a process whose place is unknown is a group of its own."""
    found: dict[object, list[Answer]] = {}
    for answer in answers:
        found.setdefault(find_spot(answer) or answer, []).append(answer)
    return [Group(tuple(members), find_spot(members[0])) for members in found.values()]


def find_suspects(groups: Sequence[Group]) -> tuple[list[Group], str]:
    """Return the groups for which the others probably wait, and a phrase that says so."""
    waiting = [item for item in groups if item.in_collective]
    elsewhere = [item for item in groups if not item.in_collective]
    if waiting and elsewhere:
        several = sum(len(item.answers) for item in elsewhere) > 1
        return elsewhere, f"probably {'those' if several else 'the one'} that the others wait for"
    most = max(groups, key=lambda item: len(item.answers), default=None)
    rest = [item for item in groups if item is not most]
    # On a GPU a process waits where the script next needs a result (loss.item()), not in a collective.
    if most and not waiting and len(most.answers) > max(1, sum(len(item.answers) for item in rest)):
        return rest, "not where the others are"
    return [], ""


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
        pids = ", ".join(str(answer.pid) for answer in item.answers[:PIDS_PER_LINE])
        more = len(item.answers) - PIDS_PER_LINE
        ranks = name_ranks(sorted({answer.rank for answer in item.answers}))
        names = f"with {ranks}: pid {pids}" + (f" and {more} more" if more > 0 else "")
        lines.append(item.render(names))
    if len(groups) > LINES_FOR_CHILDREN:
        lines.append(f"children in {len(groups) - LINES_FOR_CHILDREN} more places")
    return lines


def name_ranks(ranks: Sequence[int]) -> str:
    """Return sorted ranks as ``rank 3``, ``ranks 0, 1`` or ``ranks 0-2, 5``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(texts)}"


def describe_process(answer: Answer) -> str:
    """Return what the kernel knows about a process, e.g. ``pid 812, bash, state S, in wait4``."""
    facts = [f"pid {answer.pid}", answer.command.partition(" ")[0].rpartition("/")[2]]
    facts.append(f"state {answer.state}" if answer.state else "")
    facts.append(f"in {answer.call}" if answer.call not in ("", RUNNING) else "")
    facts.append(f"waits in {answer.kernel}" if answer.kernel else "")
    return ", ".join(fact for fact in facts if fact)


def render_stacks(headline: str, answers: Sequence[Answer]) -> str:
    """Return everything that is known, as text for a file."""
    lines = [headline]
    for answer in answers:
        lines += ["", f"rank {answer.rank}: {describe_process(answer)}", f"  {answer.command}"]
        lines += [f"  no Python stack: {answer.why}"] if answer.why else []
        for thread in answer.threads:
            lines.append(f"  {thread.name}, innermost first ({answer.means}):")
            lines += [f"    {frame.render()}" for frame in thread.frames]
            lines += [] if thread.frames else ["    no Python frame"]
    return "".join(f"{printable(line)}\n" for line in lines)
