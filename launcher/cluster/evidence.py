"""Evidence of all nodes in one attempt, on node 0: collected in a hang, and before the ranks are stopped.

A job hangs when every node is quiet that has not ended and can be heard: one node whose ranks write nothing
proves nothing while the ranks of another one do.
"""

from __future__ import annotations

import time

from launcher.core.redact import LimitedSearch
from launcher.hang.limits import LOOK_S
from launcher.hang.model import Hung, Look, Quiet, Seen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.cluster.members import Members
    from launcher.failure.model import Cause
    from launcher.hang.model import Answer, Looked, RankRecord, Thread

PAUSE_S, PAUSE_MAX_S = 1.0, 60.0
"""Seconds from the nth question to the next: n times the first, at most the second. A node may lie."""

AGAIN_S = 5.0
"""Seconds until nodes that are quiet, but have no rank, are asked again."""
ENDS = "the job hangs (--on-stall stop)"


class JobEvidence:
    """The stacks of all nodes, and the nodes that are quiet.

    Attributes:
        due: When to call `fire` (monotonic seconds); None while no node is quiet.
    """

    def __init__(
        self,
        members: Members,
        attempt: int,
        tell_all: Callable[[object], None],
        end: Callable[[int, str, Cause], None],
    ) -> None:
        """Begin without an answer.

        Args:
            members: The nodes.
            attempt: Number of the attempt.
            tell_all: Sends a message to all nodes.
            end: Ends the attempt because of a node, with a description and a cause.
        """
        self.due: float | None = None
        self._members, self._attempt, self._tell_all, self._end = members, attempt, tell_all, end
        self._answers: dict[int, list[Answer]] = {}
        self._progress: dict[int, list[tuple[int, float]]] = {}
        self._records: dict[int, tuple[RankRecord, ...]] = {}
        self._threads: dict[tuple[Thread, ...], tuple[Thread, ...]] = {}
        self._taken: set[tuple[int, int]] = set()
        self._quiet: dict[int, Quiet] = {}
        self._number = 0
        self._look_until: float | None = None
        self._look_after = 0.0
        self._looked: set[int] = set()
        self._has_reported = False

    # --- answers

    def take(self, node: int, looked: Looked) -> None:
        """Keep what the ranks of a node do."""
        if looked.number and looked.number != self._number:
            return  # of an earlier question
        if (node, looked.number) in self._taken:
            return  # a node answers once, so that what is kept of it has a limit
        self._taken.add((node, looked.number))
        from launcher.hang.packing import unpack

        answers = unpack(looked.stacks) if isinstance(looked.stacks, dict) else []
        # A thousand ranks have few stacks, and share them; nodes send that of the main thread alone
        self._answers[node] = [
            one.with_threads(self._threads.setdefault(one.threads[:1], one.threads[:1]), one.means)
            if one.threads
            else one
            for one in answers
        ]
        self._progress[node] = [(one.rank, one.value) for one in looked.progress]
        self._records[node] = looked.records
        self._looked.add(node)
        if self._look_until is not None:
            self.due = time.monotonic()

    def _join(self) -> list[Answer]:
        """Return the answers of all nodes, sorted by rank."""
        found = [answer for answers in self._answers.values() for answer in answers]
        return sorted(found, key=lambda answer: answer.rank)

    def _join_records(self) -> list[RankRecord]:
        """Return the flight recorders of all nodes."""
        return [record for records in self._records.values() for record in records]

    def share(self) -> None:
        """Tell all nodes what the ranks did: the attempt is over, and each writes its record."""
        answers = self._join()
        if answers:
            from launcher.core.shorten import fit
            from launcher.hang.groups import make_groups
            from launcher.hang.records import group_records

            with LimitedSearch():
                recorded = group_records(self._join_records(), self._members.shape.world_size)
                seen = fit(Seen((*recorded, *make_groups(answers)), self._attempt))
            self._tell_all(seen)

    # --- a job that hangs

    def note_quiet(self, node: int, quiet: Quiet) -> None:
        """Note that nothing happens on a node, or that something does again."""
        if quiet.what:
            self._quiet[node] = quiet
            self.due = time.monotonic()
        else:
            self._quiet.pop(node, None)
            self._has_reported = False
            self._look_until = None

    def fire(self, now: float, *, is_ending: bool) -> None:
        """Ask all nodes if the job hangs, and report when they have answered; not if it ends anyway."""
        self.due = None
        if not self._quiet or is_ending:
            return
        self.due = self._go_on(now)

    def _go_on(self, now: float) -> float | None:
        """Do what is due; return when to look again."""
        heard, silent = self._members.list_open()
        if self._has_reported or not all(node in self._quiet for node in heard):
            return None if self._has_reported else now + 1.0
        if self._look_until is None:
            if now < self._look_after:
                return self._look_after
            self._look_until = self.begin_look(now)
            self._tell_all(Look(self._number))  # node 0 may answer before this returns
        if now < self._look_until and not all(node in self._looked for node in heard):
            return min(self._look_until, now + 1.0)  # a node may fall silent meanwhile
        self._look_until = None
        if not silent and not any(self._answers.values()):
            return now + AGAIN_S  # the ranks of torchrun's agents have not started yet
        self._has_reported = True
        self._report(silent)
        return None

    def begin_look(self, now: float) -> float:
        """Begin another question, and forget the answers to the last one; return until when to wait."""
        self._number += 1
        self._look_after = now + min(self._number * PAUSE_S, PAUSE_MAX_S)
        self._looked, self._answers, self._progress, self._records = set(), {}, {}, {}
        self._taken = {(rank, number) for rank, number in self._taken if not number}
        self._threads.clear()
        return now + LOOK_S

    def _report(self, silent: list[int]) -> None:
        from launcher.failure.symptoms import make_cause
        from launcher.hang.describe import describe_hang

        answers = self._join()
        nodes = {answer.rank: node for node, found in self._answers.items() for answer in found}
        places = {rank: self._members.place(node) for rank, node in nodes.items()}
        unheard = [self._members.name(node) for node in silent]
        first = next(iter(self._quiet.values()))
        progress = [pair for pairs in self._progress.values() for pair in pairs]
        records, size = self._join_records(), self._members.shape.world_size
        with LimitedSearch():
            hang = describe_hang(first.what, answers, size, places, unheard, progress, records)
        self._tell_all(Hung(hang.headline, hang.lines))
        if any(quiet.ends for quiet in self._quiet.values()):
            node = silent[0] if silent else nodes.get(hang.rank, next(iter(self._quiet)))
            self._end(node, ENDS, make_cause("stalled", what=hang.headline))
