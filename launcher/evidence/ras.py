"""Asks NCCL's RAS when a job hangs (``--nccl-ras``), and prints what it says."""

from __future__ import annotations

import time

from launcher.recorder.ras import RasQuestion, find_nccl, refuse, shorten_status, warn
from launcher.recorder.watch import find_python

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.agent.agent import Agent

STEP_S = 0.05


class RasReport:
    """One question about the job.

    Attributes:
        due: When to call `fire` (monotonic seconds); None when it is over.
    """

    def __init__(self, agent: Agent) -> None:
        self.due: float | None = None
        self._agent = agent
        self._question: RasQuestion | None = None
        first = next((one.child for one in agent.group.processes if not one.child.companion), None)
        if first is None:
            return
        version = find_nccl(find_python(first.argv), first.environ)
        why, known = refuse(version, first.environ), warn(version)
        if why or known:
            agent.say(why or f"warning: {known}", "nccl-ras")
        if not why:
            self._question, self.due = RasQuestion(first.environ), time.monotonic()

    def fire(self, now: float) -> None:
        """Go on with the question, and print the answer."""
        question = self._question
        if question is None or self._agent.is_ending:
            self.close()
            return
        question.go_on(now)
        self.due = now + STEP_S
        if question.complete:
            self.close()
            lines = shorten_status(question.text) or [f"no answer: {question.problem}"]
            self._agent.say("\n  ".join(["NCCL's RAS says:", *lines]), "nccl-ras")

    def close(self) -> None:
        """Stop asking."""
        self.due = None
        if self._question is not None:
            self._question.close()
