"""Asks the processes of one node what they do, and then lets the launcher go on, within a limit of time."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.agent.agent import Agent
    from launcher.failure.model import RankGroup
    from launcher.stacks.answer import Answer
    from launcher.stacks.inquiry import Inquiry

    Then = Callable[[Sequence[Answer]], None]

LIMIT_S = 1.0
"""Maximum seconds for which the end of processes waits for their answers."""
HANG_LIMIT_S = 2.5
"""Maximum seconds for the answers of processes that hang; nothing waits for them."""
FRESH_S = 10.0
"""Age in seconds up to which answers are not asked for again."""
STEP_S = 0.005
"""Seconds between two checks whether a process has answered."""


class Evidence:
    """What the processes do: asked before they are stopped, and when the job hangs.

    Attributes:
        groups: The ranks of the whole job by place; empty if not asked.
        answers: The latest answers of this node's processes.
        stops: Whether the processes are asked now because they are about to be stopped.
        due: When to call `fire` (monotonic seconds); None if none is asked.
    """

    def __init__(self, agent: Agent) -> None:
        self.groups: tuple[RankGroup, ...] = ()
        self.answers: Sequence[Answer] = ()
        self.stops = False
        self.due: float | None = None
        self._agent = agent
        self._inquiry: Inquiry | None = None
        self._until = self._asked_at = 0.0
        self._then: list[Then] = []

    def begin(self) -> None:
        """Forget the attempt before."""
        self.close()
        self.groups, self.answers, self.stops = (), (), False

    def ask_before_stop(self, stop: Callable[[], None]) -> None:
        """Ask the processes, at most `LIMIT_S` and no longer than their grace; then stop them.

        Those of a job that hangs were asked a moment before.
        """
        agent = self._agent
        limit_s = min(LIMIT_S, agent.watch.grace_s)
        is_known = bool(self.answers) and time.monotonic() < self._asked_at + FRESH_S
        if is_known or limit_s <= 0 or not agent.group.running:
            stop()
            return
        self.stops = True

        def go_on(answers: Sequence[Answer]) -> None:
            self.stops = False
            agent.loop.guard(lambda: agent.coordination.take_evidence(answers))
            if not agent.group.stopper.begun and agent.group.running:
                stop()

        self.ask(go_on, limit_s)

    def ask(self, then: Then, limit_s: float = HANG_LIMIT_S) -> None:
        """Ask all processes, and call ``then`` with what they have answered by the limit."""
        agent, now = self._agent, time.monotonic()
        self._then.append(then)
        self._until = min(self._until, now + limit_s) if self._inquiry is not None else now + limit_s
        if self._inquiry is None:
            agent.loop.guard(self._begin)
        self.due = now

    def _begin(self) -> None:
        from launcher.stacks.inquiry import Inquiry

        self._inquiry = Inquiry(list_running(self._agent), self._agent.folder.path)

    def fire(self, now: float) -> None:
        """Go on with the questions; end them if all have answered, or if the time is up."""
        inquiry = self._inquiry
        if inquiry is not None:
            self._agent.loop.guard(lambda: inquiry.go_on(now))
        is_told = self.stops and self._agent.group.stopper.begun  # by a signal meanwhile
        if inquiry is None or inquiry.complete or now >= self._until or is_told:
            self._finish()
        else:
            self.due = now + STEP_S

    def _finish(self) -> None:
        inquiry, then = self._inquiry, self._then
        self.answers, self._asked_at = (() if inquiry is None else inquiry.answers), time.monotonic()
        self.close()
        for go_on in then:
            go_on(self.answers)

    def helpers(self) -> tuple[int, ...]:
        """Return the PIDs of our children that help here and are not processes of the job."""
        return () if self._inquiry is None else self._inquiry.helpers()

    def close(self) -> None:
        """Stop asking."""
        if self._inquiry is not None:
            self._inquiry.close()
        self._inquiry, self._then, self.due = None, [], None

    # --- the answers of a job of one node

    def join(self, answers: Sequence[Answer]) -> None:
        """Keep the ranks by place: these answers are those of all nodes."""
        from launcher.evidence.groups import make_groups

        self.groups = make_groups(answers)


def list_running(agent: Agent) -> list[tuple[int, int]]:
    """Return (rank, pid) of the running ranks of this node, including the workers of an engine's agent."""
    from launcher.process.families import list_ranks, read_table

    return list_ranks(agent.group.processes, read_table())
