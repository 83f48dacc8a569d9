"""One node's part in the rendezvous: it calls, waits for the start of an attempt, and makes its processes."""

from __future__ import annotations

import time

from launcher.agent.agent import find_programs
from launcher.cluster.client import CoordinatorClient
from launcher.cluster.coordinator import Coordinator
from launcher.cluster.job_view import Attempt
from launcher.cluster.messages import Bye, ReadyAgain, Refuse
from launcher.cluster.node_ending import PATIENCE_S
from launcher.cluster.outcome import read_refusal
from launcher.core.errors import LauncherError, NotReady
from launcher.core.redact import printable, redact
from launcher.job.commands import Refusal
from launcher.job.events import Refused, Tick
from launcher.job.refusals import node_0_missing
from launcher.job.settings import LATE_COMERS_S
from launcher.process.loop import Later
from launcher.process.watchdog import kill_marked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.agent.agent import Agent
    from launcher.cluster.job_view import JobView
    from launcher.cluster.node_ending import NodeEnding
    from launcher.cluster.reporter import Reporter
    from launcher.cluster.stopper import JobStopper
    from launcher.core.log import Say
    from launcher.process.spawn import Child

    MakeChildren = Callable[[Mapping[str, object]], Sequence[Child]]

SURVIVORS_S, SURVIVORS_EVERY_S = 10.0, 0.25
"""How long, and how often, a node looks whether the kernel has ended the processes of the last attempt."""
KILLED_S, LOOK_AGAIN_S = 2.0, 0.02
"""How long, and how often, a launcher looks for the end of what the one before it has left."""
SURVIVORS_SHOWN = 4
PORTS_S, PORTS_EVERY_S = 5.0, 0.1
"""How long, and how often, a restart looks whether the ports of the last attempt are free."""


class NodeRendezvous:
    """Waits for the start of an attempt together with the other nodes, and makes our processes for it."""

    def __init__(
        self,
        agent: Agent,
        channel: Coordinator | CoordinatorClient,
        view: JobView,
        reporter: Reporter,
        stopper: JobStopper,
        ending: NodeEnding,
        say: Say,
        make_children: MakeChildren,
    ) -> None:
        self._agent, self._channel, self._view = agent, channel, view
        self._reporter, self._stopper, self._ending = reporter, stopper, ending
        self._say, self._make_children = say, make_children
        self._predecessor, self._given_up_at = b"", 0.0

    # --- before the first attempt

    def gather(self, twin: CoordinatorClient | None) -> None:
        """Return when all nodes are here and our processes are known, or when we are told to stop.

        Args:
            twin: On node 0, if the job's address or port of it is not ours: calls that.

        Raises:
            LauncherError: The nodes will not come (75), cannot work together (78), or our processes cannot be
                started.
        """
        channel, loop = self._channel, self._agent.loop
        loop.timers[:] = [channel] if twin is None else [channel, twin]
        loop.guard(self._agent.observers.serve)
        loop.guard(lambda: self._reporter.tell_health(0))
        if isinstance(channel, Coordinator):
            loop.guard(lambda: channel.feed(Tick()))
        try:
            self._wait()
        finally:
            if twin is not None:
                twin.close()
        if self._view.refusal is not None:
            self._leave_refused(self._view.refusal)
        if self._agent.forwarder.told is not None:
            self._leave_waiting()
        elif self._view.attempt.agreed is not None:
            self._take_children()

    def _wait(self) -> None:
        """Wait for the start, a refusal, or a signal that tells us to stop.

        Raises:
            NotReady: Node 0 has not answered in time.
        """
        agent, channel, view = self._agent, self._channel, self._view
        while not view.has_news and agent.forwarder.told is None:
            agent.loop.turn()
            agent.group.reap()
            if channel.is_lost:
                self._stopper.fire(time.monotonic())
            elif isinstance(channel, CoordinatorClient) and channel.is_late and view.refusal is None:
                raise NotReady(node_0_missing(view.shape.member, view.shape.timeout_s, channel.explain()))

    def on_twin(self, message: object) -> None:
        """Handle the refusal of another launcher that is node 0 too."""
        if not isinstance(message, Refuse) or message.code != "two-nodes-one-rank":
            return  # of a job that has ended, or runs
        if isinstance(self._channel, Coordinator):
            refusal = Refusal(message.status, read_refusal(message).problems[0], message.lines)
            self._channel.feed(Refused(refusal))

    def _leave_waiting(self) -> None:
        """Leave as a spare node that was told to end; the job goes on without it."""
        if self._view.shape.is_spare and isinstance(self._channel, CoordinatorClient):
            self._channel.send(Bye())

    def _leave_refused(self, refusal: Refuse) -> None:
        """Leave a job that does not start.

        Raises:
            LauncherError: Why it does not start; not raised if we were told to stop.
        """
        channel, forwarder = self._channel, self._agent.forwarder
        if forwarder.told is not None:
            self._ending.leave()
            return
        error = read_refusal(refusal)
        for line in refusal.lines:
            self._say(line, "nodes-differ")
        if isinstance(channel, Coordinator) and channel.state.missing:
            for problem in error.problems:
                self._say(f"the job does not start: [{problem.code}] {problem.what}", "not-started")
            self._say(f"this launcher stays {LATE_COMERS_S:g} s to tell late nodes", "late-nodes")
            self._agent.loop.turn_until(lambda: channel.may_leave or forwarder.told is not None, PATIENCE_S)
        else:
            self._ending.leave()
        raise error

    # --- each attempt

    def await_attempt(self, number: int) -> bool:
        """Wait for the start of another attempt; return whether it starts.

        Raises:
            LauncherError: Our processes cannot be started.
        """
        view = self._view
        view.attempt = Attempt(number)
        self._agent.restarter.wait_for_gpus(lambda: self._tell_ready(number, time.monotonic() + SURVIVORS_S))
        self._stopper.turn_while(lambda: not view.has_news)
        if view.attempt.agreed is None:
            return False
        self._agent.begin_again(number)
        self._take_children()
        return True

    def end_predecessor(self, mark: str) -> None:
        """Kill what a launcher before us has left on this machine: its watchdog may have been killed, too.

        Args:
            mark: Name in the mark of its processes; empty if it is not known.
        """
        self._predecessor, self._given_up_at = mark.encode(), time.monotonic() + KILLED_S
        self._has_predecessor()

    def _has_predecessor(self) -> bool:
        """Whether something of it is left: the kernel needs a moment to free the memory of a process."""
        if self._predecessor and (
            not kill_marked(self._predecessor) or time.monotonic() >= self._given_up_at
        ):
            self._predecessor = b""  # the processes of our own will have the same mark
        return bool(self._predecessor)

    def _tell_ready(self, number: int, until: float) -> None:
        """Report that this node is ready once no process of the last attempt is left here.

        Args:
            number: The attempt.
            until: When to report what is left (monotonic seconds).
        """
        survivors, has_predecessor = self._agent.group.describe_survivors(), self._has_predecessor()
        if has_predecessor or (survivors and time.monotonic() < until):
            wait_s = LOOK_AGAIN_S if has_predecessor else SURVIVORS_EVERY_S
            again = Later(time.monotonic() + wait_s, lambda: self._tell_ready(number, until))
            self._agent.loop.timers.append(again)  # a process that is not our child reports no end
        elif not survivors:
            self._reporter.tell_health(number)
        else:
            what = f"{len(survivors)} survive SIGKILL: {'; '.join(survivors[:SURVIVORS_SHOWN])}"
            self._reporter.tell(ReadyAgain(number, printable(redact(what)), is_held=True))

    def _take_children(self) -> None:
        """Make our processes from the values of the start signal.

        Raises:
            LauncherError: They cannot be started.
        """
        view = self._view
        try:
            children = self._wait_for_children()
            self._agent.take(children, find_programs(children))
        except LauncherError as error:
            self._ending.leave_unstarted(error)
            raise
        view.attempt.has_begun, view.agreed_last = True, view.attempt.agreed
        self._agent.attempt = view.attempt.number

    def _wait_for_children(self) -> Sequence[Child]:
        """Return our processes; after a failure the kernel may need a moment to free their ports.

        Raises:
            LauncherError: They cannot be started.
        """
        agent, attempt = self._agent, self._view.attempt
        deadline = time.monotonic() + (PORTS_S if attempt.number else 0.0)
        while True:
            try:
                return self._make_children(attempt.agreed or {})
            except NotReady:
                if time.monotonic() > deadline or agent.forwarder.told is not None:
                    raise
            agent.loop.turn_until(lambda: agent.forwarder.told is not None, PORTS_EVERY_S)
