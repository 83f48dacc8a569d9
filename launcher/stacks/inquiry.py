"""Ask all processes of a job for their Python stacks, without ever waiting for an answer.

Three ways, in this order: the signal that `launcher.hook` has made the process answer; py-spy; and
what /proc tells about any process.
"""

from __future__ import annotations

import os

from launcher.process.descendants import find_descendants
from launcher.stacks.lane import Lane, find_stacks_file
from launcher.stacks.look import look_at
from launcher.stacks.report import render_stacks
from launcher.stacks.spy import SPY_S, Spy, find_py_spy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.stacks.answer import Answer

SPIES = 4
"""How many run at a time."""
FAMILY_LIMIT = 256
"""Processes looked at per rank."""


class Inquiry:
    """One round of questions to all processes."""

    def __init__(self, processes: Sequence[tuple[int, int]], folder: str | None) -> None:
        """Prepare to ask these (rank, pid) and all below them, whose files are somewhere in ``folder``."""
        self._ranks = list(processes)
        self._folder = None if folder is None else os.path.realpath(folder)
        self._answers: dict[int, Answer] = {}
        self._lanes: dict[str, Lane] = {}
        self._queue: list[Answer] = []
        self._spies: list[Spy] = []
        self._spy_until: float | None = None

    @property
    def answers(self) -> list[Answer]:
        """What is known by now, per rank from the started process downwards."""
        return list(self._answers.values())

    @property
    def complete(self) -> bool:
        """Whether everybody has answered, or had the time for it."""
        return not (self._ranks or self._lanes or self._queue or self._spies)

    def helpers(self) -> tuple[int, ...]:
        """Return the pids of py-spies: they are children of ours, and none of the job."""
        return tuple(spy.pid for spy in self._spies)

    def go_on(self, now: float) -> None:
        """Look at one more rank, take answers, ask the next."""
        if self._ranks:
            self._look_at(*self._ranks.pop(0))
        for path, lane in list(self._lanes.items()):
            lane.go_on(now)
            self._take(lane.take_answered())
            if lane.complete:
                self._queue += lane.unanswered
                del self._lanes[path]
        if not self._ranks and not self._lanes:
            self._start_spies(now)
            for spy in [spy for spy in self._spies if spy.is_over(now)]:
                self._spies.remove(spy)
                self._take([spy.finish()])

    def close(self) -> None:
        """Ask no longer."""
        for spy in self._spies:
            spy.close()
        for lane in self._lanes.values():
            lane.close()
        self._ranks, self._queue, self._spies = [], [], []
        self._lanes.clear()

    def _take(self, answers: Sequence[Answer]) -> None:
        self._answers.update((answer.pid, answer) for answer in answers)

    def _look_at(self, rank: int, leader: int) -> None:
        """Sort the processes of one rank by how they can be asked."""
        for pid in [leader, *find_descendants([leader])][:FAMILY_LIMIT]:
            answer = look_at(rank, pid)
            if answer is None or answer.state in "ZX":
                continue
            self._take([answer])
            file = find_stacks_file(pid, self._folder)
            if file is not None and answer.state not in "Tt":
                self._lanes.setdefault(file, Lane(file)).add(answer)
            elif answer.is_python:
                self._queue.append(answer.without_threads("it is stopped" if answer.state in "Tt" else ""))

    def _start_spies(self, now: float) -> None:
        if self._spy_until is None:
            self._spy_until = now + SPY_S
        program = find_py_spy() if self._queue else None
        while self._queue and len(self._spies) < SPIES:
            answer = self._queue.pop(0)
            if program is None:
                self._take([answer.without_threads("py-spy is not installed")])
            elif now > self._spy_until:
                self._take([answer.without_threads("no time was left for py-spy")])
            else:
                self._start_spy(program, answer, now)

    def _start_spy(self, program: str, answer: Answer, now: float) -> None:
        try:
            self._spies.append(Spy(program, answer, now))
        except OSError as error:
            self._take([answer.without_threads(f"py-spy: {error.strerror}")])


def write_stacks(folder: str, headline: str, answers: Sequence[Answer]) -> str:
    """Write everything to a new file in a folder; return its path.

    Raises:
        OSError: It cannot be written.
    """
    data = render_stacks(headline, answers).encode("utf-8", "replace")
    for number in range(1, 1000):
        path = os.path.join(folder, f"stall-{number}.txt")
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:  # of an earlier stall
            continue
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        return path
    raise FileExistsError(0, "a thousand reports are there already")
