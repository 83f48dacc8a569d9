"""Stops one node's processes when the job stops: on node 0's word, on a signal, or when node 0 is lost."""

from __future__ import annotations

import time

from launcher.cluster import preemption
from launcher.cluster.messages import Stop, Told
from launcher.cluster.outcome import lose_coordinator
from launcher.core.signal import signal
from launcher.preemption.events import DUE
from launcher.process.signals import ENDING, ENDING_IDLE, name_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.agent.agent import Agent
    from launcher.cluster.client import CoordinatorClient
    from launcher.cluster.coordinator import Coordinator
    from launcher.cluster.job_view import JobView
    from launcher.cluster.reporter import Reporter
    from launcher.core.log import Say


class JobStopper:
    """Stops this node's processes when the job stops; a timer of the loop, for the loss of node 0."""

    def __init__(
        self,
        agent: Agent,
        channel: Coordinator | CoordinatorClient,
        view: JobView,
        reporter: Reporter,
        say: Say,
    ) -> None:
        self._agent, self._channel, self._view = agent, channel, view
        self._reporter, self._say = reporter, say
        self._is_told = False
        self._still_to_come: int | None = None

    # --- node 0 has told

    def on_stop(self, stop: Stop) -> None:
        """Stop our processes, because something on some node ends the job."""
        agent, shape, attempt = self._agent, self._view.shape, self._view.attempt
        if attempt.stop is not None:
            return
        attempt.stop = stop
        is_ours = stop.by == shape.node_rank
        if stop.left_ms is not None and not is_ours and attempt.has_begun:
            agent.observers.respond(DUE, stop.what, preemption.read_left_s(stop.left_ms), stop.by)
        elif stop.told is not None:
            if not is_ours:
                self._say(f"{stop.what}: passing it on to all {shape.member}s", "signal")
                self._is_told = True
                self._pass_on_for_job(stop.told)
        else:
            if not is_ours:
                count = len(agent.group.running)
                stopping = f"; stopping {count} process{'' if count == 1 else 'es'} here" if count else ""
                self._say(f"{stop.what}{stopping}", "stopping")
            if attempt.has_begun and not agent.is_ending:
                agent.stop_rest()

    def end_rest(self) -> None:
        """Stop the companions when the attempt is over. Kill all if this node was lost: the next may run."""
        self.end_companions()
        agent, attempt = self._agent, self._view.attempt
        is_lost = attempt.has_begun and not attempt.has_told_end and not self._view.shape.keep_going
        if is_lost and agent.group.running:
            agent.target.kill()

    def end_companions(self) -> None:
        """Stop our companions, once the ranks of all nodes have ended."""
        agent, view = self._agent, self._view
        is_over = view.attempt.has_told_end and view.is_attempt_over
        if is_over and agent.group.running and not agent.is_ending:
            agent.group.stopper.begin(signal.SIGTERM)

    # --- signals

    def takes_signal(self, number: int) -> bool:
        """Handle a signal before the start, or one that we have already received through another node."""
        forwarder = self._agent.forwarder
        if not self._view.attempt.has_begun:
            if number in ENDING_IDLE and forwarder.told is None:
                forwarder.told = number
                self.on_told(number)
            return True
        if number == self._still_to_come:
            self._still_to_come = None
            others = f"the other {self._view.shape.member}s"
            self._say(f"{name_signal(number)}: already forwarded to the processes, as on {others}", "signal")
            return True
        return False

    def on_told(self, number: int) -> None:
        """Tell the job that this node was told to stop, unless the job told us."""
        if not self._is_told and not self._view.shape.is_spare:
            self._is_told = True
            self._reporter.tell(Told(int(number), name_signal(number)))

    def _pass_on_for_job(self, told: int) -> None:
        """Forward the signal that told another node to stop.

        The platform sends such a signal to all nodes, so we have received it too or will; it is forwarded
        only once.
        """
        forwarder = self._agent.forwarder
        if forwarder.told is not None:
            return
        self._still_to_come = told
        ending = told if told in ENDING else signal.SIGTERM
        if self._view.attempt.has_begun:
            forwarder.on_signal(ending, from_terminal=False)
        else:
            forwarder.told = ending

    # --- node 0 is lost

    @property
    def due(self) -> float | None:
        """Now, if node 0 is lost and that is not handled yet."""
        return 0.0 if self._channel.is_lost and self._view.over is None else None

    def fire(self, now: float) -> None:
        """Stop, or with ``--keep-going`` go on, because node 0 is lost and no node is left to agree with."""
        view = self._view
        if view.over is not None:
            return
        what, view.over = lose_coordinator(view.shape)
        if view.shape.keep_going:
            self._say(f"{what} (--keep-going: this node goes on)", "elsewhere")
            self.end_companions()
        else:
            self.on_stop(Stop(what, -1))

    def turn_while(self, is_waiting: Callable[[], bool]) -> None:
        """Run the loop while a message of node 0 is awaited; no longer than node 0 can be heard."""
        agent = self._agent
        while is_waiting():
            if self._channel.is_lost:
                self.fire(time.monotonic())
                return
            agent.loop.turn()
            agent.loop.guard(agent.group.collect)
