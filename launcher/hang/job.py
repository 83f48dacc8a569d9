"""What the ranks of all nodes do, on node 0: collected if the job hangs, and before the ranks are stopped.

A job hangs when every node is quiet that has not ended and can be heard: one node whose ranks write nothing
proves nothing while the ranks of another one do.
"""

from __future__ import annotations

import time

from launcher.core.redact import LimitedSearch
from launcher.failure.arbiter import STALLED, Event
from launcher.failure.reason import STALLED_STATUS
from launcher.hang.limits import LOOK_S
from launcher.hang.model import Hung, Look, Quiet, Seen
from launcher.job.events import Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.hang.model import Answer, Looked, RankRecord, Thread

PAUSE_S, PAUSE_MAX_S = 1.0, 60.0
"""Seconds from the nth question to the next: n times the first, at most the second. A node may lie."""
AGAIN_S = 5.0
"""Seconds until nodes that are quiet, but have no rank, are asked again."""
ENDS = "the job hangs (--on-stall stop)"


class JobEvidence:
    """What the nodes have answered in an attempt, and the nodes that are quiet.

    Attributes:
        due: When to call `fire` (monotonic seconds); None while no node is quiet.
    """

    def __init__(
        self,
        list_open: Callable[[], tuple[list[int], list[int]]],
        name: Callable[[int], str],
        place: Callable[[int], str],
        world_size: int | None,
        tell_all: Callable[[object], None],
        fail: Callable[[Failed], None],
    ) -> None:
        """Begin with the first attempt.

        Args:
            list_open: Returns the nodes whose processes run: those that are heard, and the others.
            name: Returns the name of a node in messages.
            place: Returns the place of a node's processes in messages.
            world_size: Number of ranks of the job; None if unknown.
            tell_all: Sends a message to all nodes.
            fail: Ends the attempt because of a node.
        """
        self._list_open, self._name, self._place = list_open, name, place
        self._world_size, self._tell_all, self._fail = world_size, tell_all, fail
        self.begin(0)

    def begin(self, attempt: int) -> None:
        """Begin with an attempt, without an answer."""
        self.due: float | None = None
        self._attempt = attempt
        self._answers: dict[int, list[Answer]] = {}
        self._looked: dict[int, Looked] = {}
        self._threads: dict[tuple[Thread, ...], tuple[Thread, ...]] = {}
        self._taken: set[tuple[int, int]] = set()
        self._quiet: dict[int, Quiet] = {}
        self._quiet_at: dict[int, float] = {}
        self._number = 0
        self._look_until: float | None = None
        self._look_after = 0.0
        self._has_reported = False

    # --- answers

    def take(self, node: int, looked: Looked) -> None:
        """Keep what the ranks of a node do."""
        if looked.number not in (0, self._number):
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
        self._looked[node] = looked
        if self._look_until is not None:
            self.due = time.monotonic()

    def _join(self) -> list[Answer]:
        """Return the answers of all nodes, sorted by rank."""
        found = [answer for answers in self._answers.values() for answer in answers]
        return sorted(found, key=lambda answer: answer.rank)

    def share(self) -> None:
        """Tell all nodes what the ranks did: the attempt is over, and each writes its record."""
        answers = self._join()
        if answers:
            from launcher.core.shorten import fit
            from launcher.hang.report import make_groups

            with LimitedSearch():
                groups = make_groups(answers, self._join_records(), self._world_size)
                seen = fit(Seen(groups, self._attempt))
            self._tell_all(seen)

    def _join_records(self) -> list[RankRecord]:
        return [record for looked in self._looked.values() for record in looked.records]

    # --- a job that hangs

    def note_quiet(self, node: int, quiet: Quiet) -> None:
        """Note that nothing happens on a node, or that something does again."""
        if quiet.what:
            self._quiet[node], self._quiet_at[node] = quiet, time.monotonic()
            self.due = time.monotonic()
        else:
            self._quiet.pop(node, None)
            self._has_reported = False
            self._look_until = None

    def fire(self, now: float, *, is_ending: bool) -> None:
        """Ask all nodes if the job hangs, and report when they have answered; not if it ends anyway."""
        self.due = None
        if self._quiet and not is_ending and not self._has_reported:
            self.due = self._go_on(now)

    def _go_on(self, now: float) -> float | None:
        """Do what is due; return when to look again."""
        heard, silent = self._list_open()
        if not all(node in self._quiet for node in heard):
            return now + 1.0
        if now < (due := self._find_first_due(heard)):
            return due
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

    def _find_first_due(self, heard: Sequence[int]) -> float:
        """Return when the silence of all nodes is a stall; at once if one of them has made progress."""
        if all(self._quiet[node].more_s for node in heard):
            return max((self._quiet_at[node] + self._quiet[node].more_s for node in heard), default=0.0)
        return 0.0

    def begin_look(self, now: float) -> float:
        """Begin another question, and forget the answers to the last one; return until when to wait."""
        self._number += 1
        self._look_after = now + min(self._number * PAUSE_S, PAUSE_MAX_S)
        self._taken = {(node, number) for node, number in self._taken if not number}
        for kept in (self._answers, self._looked, self._threads):
            kept.clear()
        return now + LOOK_S

    def _report(self, silent: list[int]) -> None:
        from launcher.failure.symptoms import make_cause
        from launcher.hang.report import describe_hang
        from launcher.output.progress import duration

        homes = {answer.rank: node for node, found in self._answers.items() for answer in found}
        places = {rank: self._place(node) for rank, node in homes.items()}
        unheard = [self._name(node) for node in silent]
        progress = [(one.rank, one.value) for looked in self._looked.values() for one in looked.progress]
        what = next(iter(self._quiet.values())).what
        more_s = min(quiet.more_s for quiet in self._quiet.values())
        what += f" and {duration(more_s)} more, before the first progress" if more_s else ""
        with LimitedSearch():
            hang = describe_hang(
                what, self._join(), self._world_size, places, unheard, progress, self._join_records()
            )
        self._tell_all(Hung(hang.headline, hang.lines))
        if any(quiet.ends for quiet in self._quiet.values()):
            node = silent[0] if silent else homes.get(hang.rank, next(iter(self._quiet)))
            cause, now_ns = make_cause("stalled", what=hang.headline), time.monotonic_ns()
            event = Event(node, STALLED, now_ns, STALLED_STATUS, what=ENDS, cause=cause)
            self._fail(Failed(node, event, self._attempt))
