"""The end of an attempt, and of the job, on one node: waits for node 0's decision, reports it, and leaves."""

from __future__ import annotations

import time

from launcher.cluster.coordinator import Coordinator
from launcher.cluster.messages import Bye
from launcher.cluster.outcome import read_verdict
from launcher.cluster.rendezvous import LATE_COMERS_S
from launcher.cluster.settings import SAY_EVERY_S
from launcher.core.errors import EXIT_NOT_READY
from launcher.job.settings import LEAVE_S as COORDINATOR_LEAVE_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.agent.agent import Agent
    from launcher.cluster.client import CoordinatorClient
    from launcher.cluster.job_view import JobView
    from launcher.cluster.messages import First, Over
    from launcher.cluster.reporter import Reporter
    from launcher.cluster.stopper import JobStopper
    from launcher.core.errors import LauncherError
    from launcher.core.log import Say
    from launcher.failure.model import Verdict

LAST_TRY_S, JOIN_TRY_S = 5.0, 1.0
"""Seconds for a node that gave up node 0 to tell it so, and for one that is told to stop while it calls."""
LEAVE_S = 1.0
"""Seconds for our last message to arrive."""
PATIENCE_S = max(COORDINATOR_LEAVE_S, LATE_COMERS_S) + LEAVE_S


class NodeEnding:
    """Ends an attempt, and the job, together with the other nodes."""

    def __init__(
        self,
        agent: Agent,
        channel: Coordinator | CoordinatorClient,
        view: JobView,
        reporter: Reporter,
        stopper: JobStopper,
        say: Say,
    ) -> None:
        self._agent, self._channel, self._view = agent, channel, view
        self._reporter, self._stopper, self._say = reporter, stopper, say
        self._reported: First | None = None

    def end_attempt(self) -> None:
        """Tell node 0 how our processes ended, and wait until it has told what follows."""
        view, outcome = self._view, self._agent.restarter.find_outcome()
        if outcome.line:
            self._say(outcome.line, "survivors")
        has_given_up = self._channel.is_lost and not view.shape.keep_going
        status = outcome.status or (EXIT_NOT_READY if has_given_up else 0)
        self._reporter.tell_end(status, outcome.verdict)
        say_at = time.monotonic() + SAY_EVERY_S

        def is_waiting() -> bool:
            nonlocal say_at
            if time.monotonic() > say_at and not outcome.status and view.attempt.stop is None:
                say_at = float("inf")
                self._say(
                    "the processes of this node have succeeded; waiting for those of the other nodes",
                    "node-done",
                )
            return not view.is_attempt_over

        self._stopper.turn_while(is_waiting)

    def report(self, over: Over) -> None:
        """Report once which process failed first, with the same words on every node."""
        own = self._agent.restarter.find_outcome().verdict
        self._agent.loop.guard(lambda: self._report(over, own))

    def _report(self, over: Over, own: Verdict | None) -> None:
        if over.first is not None and over.first == self._reported:
            return
        self._reported = over.first
        agent, shape = self._agent, self._view.shape
        verdict = read_verdict(over, own, shape, agent.started_ns, agent.attempt)
        # In a rehearsal all nodes share one screen: without node 0, node 1 reports.
        stands_in = self._channel.is_lost and agent.environ.get("LAUNCHER_REHEARSED") == "1"
        if verdict is not None:
            agent.restarter.publish(verdict, shown=shape.speaks or stands_in)

    def finish(self) -> int:
        """Report how the job ended, and return its status."""
        shape, over, restarter = self._view.shape, self._view.over, self._agent.restarter
        outcome = restarter.find_outcome()
        self.leave()
        if over is None or (shape.keep_going and self._channel.is_lost):
            if outcome.verdict is not None:
                restarter.publish(outcome.verdict, shown=shape.speaks)
            return outcome.status if over is None else outcome.status or EXIT_NOT_READY
        if not over.leaves:
            self.report(over)
        if over.why:
            self._say(over.why, "no-restart")
        return over.status

    def leave_unstarted(self, error: LauncherError) -> None:
        """Leave, because our processes cannot be started."""
        self._reporter.tell_refused(error)
        wait_s = self._view.shape.grace_s + LEAVE_S
        self._agent.loop.turn_until(lambda: self._view.over is not None, wait_s)
        self.leave()

    def leave(self) -> None:
        """Leave the channel: a node at once, node 0 when all nodes have heard the end."""
        channel, loop = self._channel, self._agent.loop
        if isinstance(channel, Coordinator):
            loop.turn_until(lambda: channel.may_leave, PATIENCE_S)
            return
        if channel.is_lost:  # otherwise the others would take the job for a success
            loop.turn_until(lambda: channel.has_told_all, LAST_TRY_S)
        elif channel.is_calling:  # otherwise the others would wait for this node
            loop.turn_until(lambda: channel.has_told_all or not channel.is_calling, JOIN_TRY_S)
        channel.send(Bye())
