"""What follows from a stall: all ranks are asked what they do, and the report says for which the others wait.

On one node the agent asks its own processes. In a job of several nodes each node tells node 0 that it is
quiet; when all of them are, node 0 asks all (`launcher.cluster.hangs`).
"""

from __future__ import annotations

import os

from launcher.core.frozen import frozen
from launcher.core.messages import LINE_LENGTH
from launcher.core.redact import quote
from launcher.evidence.recorders import describe_records
from launcher.failure.reason import STALLED, Reason
from launcher.observers.stragglers import describe_stragglers
from launcher.stacks.inquiry import write_stacks
from launcher.stacks.report import name_suspect, render_report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.agent.agent import Agent
    from launcher.cluster.messages import Hung
    from launcher.observers.stragglers import Numbers
    from launcher.recorder.facts import RankRecord
    from launcher.stacks.answer import Answer

LINES_MAX = 30
"""Maximum number of lines of a report; what is more is in the files with all stacks."""


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
    recorded, fault = describe_records(records, world_size)
    if fault is not None and not suspect:
        rank, suspect = fault.ranks[0], fault.sentence
    if silent:
        verb = "do" if len(silent) > 1 else "does"
        suspect = f"{', '.join(silent[:4])} {verb} not answer, and the others wait"
    behind = describe_stragglers(progress)
    first = [*recorded, *filter(None, [behind])]
    lines = [_line(line) for line in (*first, *render_report(answers, world_size))]
    if len(lines) > LINES_MAX:
        lines = [*lines[: LINES_MAX - 1], f"and {len(lines) - LINES_MAX + 1} more"]
    headline = f"stalled: {what}" + (f"; {suspect}" if suspect else "")
    return Hang(_line(headline), tuple(lines), rank)


def _line(text: str) -> str:
    return quote(text, LINE_LENGTH)


class HangHandler:
    """Handles the stalls of one node.

    Attributes:
        reports: Paths of the files with all stacks; their folder must be kept.
    """

    def __init__(self, agent: Agent) -> None:
        self.reports: list[str] = []
        self._agent = agent

    @property
    def _stops(self) -> bool:
        return self._agent.watch.on_stall == "stop"

    def on_stall(self, what: str) -> None:
        """Ask all ranks, and report; in a job of several nodes node 0 does."""
        agent = self._agent
        if agent.is_ending or agent.coordination.on_quiet(what) or not agent.group.running:
            return
        self.ask(lambda answers, progress: self._report(what, answers, progress))

    def ask(self, then: Callable[[Sequence[Answer], Numbers], None]) -> None:
        """Ask the processes of this node what they do and how far they are."""
        agent = self._agent
        agent.evidence.ask(
            lambda answers: agent.observers.ask_progress(lambda progress: then(answers, progress))
        )

    def on_move(self) -> None:
        """Note that the processes of this node go on."""
        self._agent.coordination.on_quiet(None)

    def _report(self, what: str, answers: Sequence[Answer], progress: Numbers) -> None:
        agent = self._agent
        if agent.is_ending:
            return
        agent.evidence.join(answers)
        size, records = agent.place.world_size, agent.evidence.records
        hang = describe_hang(what, answers, size, {}, (), progress, records)
        self.show(hang)
        if self._stops:
            agent.end_for(Reason(STALLED, hang.headline))

    def show(self, hang: Hang | Hung) -> None:
        """Print the report, and write all stacks of this node to a file."""
        agent = self._agent
        lines = [*self._write(hang.headline), *self._name_dumps()]
        agent.output.say("\n  ".join([hang.headline, *hang.lines, *lines]))
        if agent.watch.nccl_ras and not agent.place.node_rank and not agent.is_ending:
            from launcher.evidence.ras import RasReport

            agent.loop.timers.append(RasReport(agent))

    def _name_dumps(self) -> list[str]:
        """Return lines with the folder of the copies of dumps, and with what was left out of it."""
        agent = self._agent
        dumps, notes = agent.evidence.dumps, agent.evidence.notes
        if not dumps:
            return notes
        folder = os.path.dirname(dumps[-1])
        is_ours = agent.folder.path is not None and folder.startswith(f"{agent.folder.path}/")
        agent.folder.keeps = agent.folder.keeps or is_ours
        return [f"dumps of the flight recorders: {_line(folder)}", *notes]

    def _write(self, headline: str) -> list[str]:
        """Write all stacks to a file; return a line with its path, or with the error."""
        folder, answers = self._agent.folder.path, self._agent.evidence.answers
        if folder is None or not answers:
            return []
        try:
            path = write_stacks(folder, headline, answers)
        except OSError as error:
            return [f"all stacks: cannot be written to {folder}: {error.strerror}"]
        self.reports.append(path)
        self._agent.folder.keeps = True
        return [f"all stacks: {path}"]
