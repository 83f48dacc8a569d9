"""What follows from a stall: all ranks are asked what they do, and the report says for which the others wait.

On one node the agent asks its own processes. In a job of several nodes each node tells node 0 that it is
quiet; when all of them are, node 0 asks all (`launcher.cluster.evidence`).
"""

from __future__ import annotations

import os

from launcher.core.frozen import frozen
from launcher.core.redact import quote
from launcher.core.wire import LINE_LENGTH
from launcher.evidence.recorders import describe_records
from launcher.failure.arbiter import STALLED
from launcher.failure.reason import Reason
from launcher.observers.stragglers import describe_stragglers
from launcher.stacks.inquiry import write_stacks
from launcher.stacks.report import name_suspect, render_report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.agent.agent import Agent
    from launcher.cluster.messages import Hung
    from launcher.observers.movement import Movement
    from launcher.observers.stall import StallDetector
    from launcher.observers.stragglers import Numbers
    from launcher.recorder.facts import RankRecord
    from launcher.stacks.answer import Answer

IDLE_WINDOWS = 10
"""Number of windows without movement that make a stall, without ``--stall-timeout``."""
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


class HangHandler:
    """Watches the processes of one node for stalls, and handles them."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._detector: StallDetector | None = None

    def watch(self, started: float) -> None:
        """Watch an attempt that started at this monotonic time."""
        from launcher.observers.stall import StallDetector
        from launcher.output.progress import Gpus

        agent = self._agent
        self._detector = StallDetector(
            agent.watch.stall_timeout_s or agent.watch.idle_timeout_s,
            lambda: agent.output.last_s,
            self.on_stall,
            self.on_move,
            started=started,
            gpus=Gpus(agent.environ.get("CUDA_VISIBLE_DEVICES")),
            movement=None if agent.watch.stall_timeout_s else self._make_movement(),
            sees_output=agent.output.sees_all,
        )
        agent.loop.timers.append(self._detector)

    def _make_movement(self) -> Movement:
        """Return what reads CPU time and network, which count without ``--stall-timeout``."""
        from launcher.observers.movement import Movement
        from launcher.process.families import list_ranks

        agent = self._agent
        window_s = agent.watch.idle_timeout_s / IDLE_WINDOWS
        return Movement(lambda table: list_ranks(agent.group.processes, table), window_s)

    def close(self) -> None:
        """Stop watching: the attempt has ended."""
        if self._detector is not None:
            self._detector.close()
            self._detector = None

    def on_stall(self, what: str) -> None:
        """Ask all ranks, and report; in a job of several nodes node 0 does."""
        agent = self._agent
        if agent.is_ending or agent.coordination.on_quiet(what) or not agent.group.running:
            return
        self.ask(lambda answers, progress: self._report(what, answers, progress))

    def ask(self, then: Callable[[Sequence[Answer], Numbers], None]) -> None:
        """Ask the processes of this node what they do and how far they are."""
        agent = self._agent
        agent.evidence.ask(lambda answers: self._ask_progress(lambda progress: then(answers, progress)))

    def _ask_progress(self, take: Callable[[Numbers], None]) -> None:
        """Call ``take`` with the progress of each rank here by ``--progress-pattern``; none if not known."""
        agent = self._agent
        pattern, ranks = agent.watch.restarts.progress_pattern, agent.group.processes
        if not pattern:
            take(())
            return
        from launcher.observers.stragglers import ask_numbers

        tails = {one.child.rank: b"\n".join(agent.output.read_tails(index)) for index, one in enumerate(ranks)
                 if not (one.child.companion or one.child.called)}  # fmt: skip
        try:
            ask_numbers(pattern, tails, agent.group.helpers, take)
        except OSError:  # the kernel is short of something
            take(())

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
        if agent.watch.on_stall == "stop":
            agent.end_for(Reason(STALLED, hang.headline))

    def show(self, hang: Hang | Hung) -> None:
        """Print the report, and write all stacks of this node to a file."""
        agent = self._agent
        lines = [*self._write(hang.headline), *self._name_dumps()]
        agent.output.say("\n  ".join([hang.headline, *hang.lines, *lines]), "stall")

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
        folder, answers = self._agent.folder, self._agent.evidence.answers
        if folder.fd is None or not answers:
            return []
        try:
            name = write_stacks(folder.fd, headline, answers)
        except OSError as error:
            return [f"all stacks: cannot be written to {folder.path}: {error.strerror}"]
        folder.keeps = True
        return [f"all stacks: {folder.path}/{name}"]
