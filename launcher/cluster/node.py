"""Coordination of one node with the others: starts with them, ends with them, does what node 0 decides."""

from __future__ import annotations

import time
from collections.abc import Callable

from launcher.agent.coordination import Coordination
from launcher.cluster import preemption
from launcher.cluster.coordinator import Coordinator
from launcher.cluster.job_view import RUN, JobView, name_run
from launcher.cluster.messages import Again, Hung, Look, News, Over, Refuse, Seen, Start, Stop
from launcher.cluster.node_ending import NodeEnding
from launcher.cluster.node_rendezvous import NodeRendezvous
from launcher.cluster.questions import Questions
from launcher.cluster.reporter import Reporter
from launcher.cluster.stopper import JobStopper
from launcher.core.signal import signal
from launcher.job.settings import BEAT_S
from launcher.process.loop import Every

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from launcher.cluster.client import CoordinatorClient
    from launcher.cluster.node_rendezvous import MakeChildren
    from launcher.cluster.settings import Shape
    from launcher.core.errors import LauncherError
    from launcher.failure.reason import Reason
    from launcher.process.spawn import Process
    from launcher.stacks.answer import Answer

MakeChannel = Callable[["ClusterNode"], "Coordinator | CoordinatorClient"]


class ClusterNode(Coordination):
    """The agent's side of the control channel.

    Attributes:
        view: The job as this node knows it.
        subscribers: Handlers of messages of node 0 that are not the channel's own, by type.
        channel: Channel to the other nodes: `Coordinator` on node 0, `CoordinatorClient` on the others; set
            by `gather`, like the parts below.
        reporter: Reports to node 0.
        stopper: Stops our processes when the job stops.
        ending: Ends an attempt, and the job, together with the other nodes.
        rendezvous: Waits for the start of an attempt.
    """

    shares_terminal = False
    has_others = True
    awaits_deadline = True
    channel: Coordinator | CoordinatorClient
    reporter: Reporter
    stopper: JobStopper
    ending: NodeEnding
    rendezvous: NodeRendezvous

    def __init__(
        self,
        shape: Shape,
        make_channel: MakeChannel,
        make_children: MakeChildren,
        make_twin: Callable[[ClusterNode], CoordinatorClient | None] = lambda node: None,
    ) -> None:
        """Keep the arguments for `gather`.

        Args:
            shape: The job.
            make_channel: Opens the channel.
            make_children: Makes the processes of this node from the values of the start signal.
            make_twin: On node 0, if the job's address or port of it is not ours: calls that, because another
                launcher may believe to be node 0 too.
        """
        self.view, self.speaks = JobView(shape), shape.speaks
        self.subscribers: dict[type, Callable[[Any], None]] = {}
        self._make_channel, self._make_children = make_channel, make_children
        self._make_twin = make_twin

    def say(self, text: str, event: str, **fields: object) -> None:
        """Print a message about the whole job, once per machine."""
        if self.speaks:
            self.agent.say(text, event, **fields)

    @property
    def run(self) -> str:
        """Name of this run: node 0's own, which the start signal tells the others."""
        if self.view.shape.index == 0:
            return self.agent.run_id
        return name_run(self.view.attempt.agreed or self.view.agreed_last or {})

    @property
    def node_mark(self) -> str:
        """Name in the mark of our processes: the run, and the place of this node in it."""
        return self._mark_of(self.run)

    def _mark_of(self, run: str) -> str:
        return f"{run}-{self.view.shape.index}" if run else ""

    # --- the start

    def gather(self) -> None:
        """Return when all nodes are here and our processes are known, or when we are told to stop.

        Raises:
            LauncherError: The nodes will not come (75), cannot work together (78), or our processes cannot be
                started.
        """
        self.channel = channel = self._make_channel(self)
        agent, view, say = self.agent, self.view, self.say
        self.reporter = reporter = Reporter(agent, channel, view)
        self.stopper = stopper = JobStopper(agent, channel, view, reporter, say)
        self.ending = ending = NodeEnding(agent, channel, view, reporter, stopper, say)
        self.rendezvous = NodeRendezvous(
            agent, channel, view, reporter, stopper, ending, say, self._make_children
        )
        self.questions = Questions(self)
        preemption.subscribe(self)
        self.rendezvous.gather(self._make_twin(self))
        self.has_work = view.attempt.agreed is not None

    def begin(self) -> None:
        """Prepare for the start of the processes."""
        timers = self.agent.loop.timers
        timers += [self.channel, self.stopper]
        if isinstance(self.channel, Coordinator):
            self.on_heard()
            timers.append(Every(BEAT_S, self.on_heard))

    def began(self) -> None:
        """Stop the started processes if the job has ended meanwhile."""
        if self.lease_until is not None and time.monotonic() > self.lease_until:
            self.agent.group.stopper.kill()  # we stood still, and another attempt may have started
        told = self.agent.forwarder.told  # on the way to node 0 this crossed the start
        if (told is not None or self.view.attempt.stop is not None) and not self.agent.is_ending:
            self.agent.target.stop(signal.SIGTERM)

    # --- from node 0

    def deliver(self, message: object) -> None:
        """Handle a message of node 0."""
        view, attempt = self.view, self.view.attempt
        match message:
            case Start():
                self.agent.place = view.take_start(message) or self.agent.place
                self.agent.output.set_node(self.agent.place.node_rank)
            case Refuse():
                view.refusal = view.refusal or message
            case Stop() if message.attempt == attempt.number:
                self.stopper.on_stop(message)
            case Stop():
                pass  # of an attempt that is over
            case Again() if message.attempt > attempt.number:
                attempt.again = attempt.again or message
                self.stopper.end_rest()
                if view.agreed_last is None:
                    self.rendezvous.end_predecessor(self._mark_of(name_run({RUN: message.run})))
            case Again():
                pass  # it came twice
            case News() if message.by != view.shape.node_rank:
                self.say(f"{message.what} (--keep-going: this node goes on)", "elsewhere")
            case Look():
                number, tell = message.number, self.reporter.tell_look
                self.agent.loop.guard(
                    lambda: self.agent.observers.hangs.ask(
                        lambda answers, progress: tell(number, answers, progress)
                    )
                )
            case Hung():
                self.agent.loop.guard(lambda: self.agent.observers.hangs.show(message))
            case Seen() if message.attempt == attempt.number:
                self.agent.evidence.groups = message.groups
            case Seen():
                pass  # of an attempt that is over
            case Over():
                view.over = view.over or message
                self.stopper.end_rest()
            case _:
                subscriber = self.subscribers.get(type(message))
                if subscriber is not None:
                    self.agent.loop.guard(lambda: subscriber(message))

    def on_heard(self) -> None:
        """Renew the lease of our processes, because node 0 was heard, or is this node and runs."""
        if not self.agent.watch.restarts.most:
            return
        now = time.monotonic()
        if self.lease_until is not None and now > self.lease_until and self.agent.group.running:
            self.agent.group.stopper.kill()  # we stood still, and another attempt may have started
        self.lease_until = now + self.view.shape.lease_s
        if self.agent.group.watchdog is not None:
            self.agent.group.watchdog.renew(self.lease_until)

    # --- from the agent

    def takes_signal(self, number: int, *, from_terminal: bool) -> bool:
        """Handle a signal before the start, or one that we have already received through another node."""
        return self.stopper.takes_signal(number)

    def on_told(self, number: int) -> None:
        """Tell the job that this node was told to stop, unless the job told us."""
        self.stopper.on_told(number)

    def on_ranks_ended(self) -> None:
        """Report that this node's ranks have ended; node 0 reports when those of all nodes have."""
        self.reporter.tell_end(0, None)
        self.stopper.end_companions()

    def on_failure(self, process: Process, *, follows: bool) -> None:
        """Report the failure of a process of ours."""
        self.reporter.tell_failure(process, follows=follows)

    def on_reason(self, reason: Reason) -> None:
        """Report that this node ends the job for a reason of its own."""
        self.reporter.tell_reason(reason)

    def on_quiet(self, what: str | None) -> bool:
        """Tell node 0 that nothing happens here, or that something does again: it asks all nodes."""
        if self.view.shape.keep_going:
            return False
        self.reporter.tell_quiet(what or "")
        return True

    def take_evidence(self, answers: Sequence[Answer]) -> None:
        """Report what the processes of this node did before they are stopped."""
        self.reporter.tell_look(0, answers)

    def on_refused(self, error: LauncherError) -> None:
        """Leave the job, because our processes cannot be started."""
        self.ending.leave_unstarted(error)

    def on_preemption(self, kind: str, what: str, left_s: float, *, ends: bool) -> None:
        """Tell all nodes that this node is to be preempted, or no longer."""
        may_restart = bool(self.agent.watch.restarts.most)
        preemption.tell(self.reporter, kind, what, left_s, ends or may_restart or self._has_ended_well)

    @property
    def _has_ended_well(self) -> bool:
        """Whether our processes have succeeded, and we wait for other nodes while nothing ends the job."""
        agent, attempt = self.agent, self.view.attempt
        is_ending = attempt.stop is not None or agent.forwarder.told is not None or attempt.has_failed
        return not self._has_ranks and agent.first is None and not is_ending

    @property
    def _has_ranks(self) -> bool:
        return any(not one.child.companion for one in self.agent.group.running.values())

    def describe_state(self) -> str | None:
        """Return what the node waits for; None while its ranks run."""
        member = self.view.shape.member
        if self.view.shape.is_spare:
            return f"spare {member}, waits to take the place of a lost one"
        attempt = self.view.attempt
        if attempt.again is not None or (attempt.number and not attempt.has_begun):
            number = attempt.number if attempt.again is None else attempt.again.attempt
            return self.agent.restarter.describe_wait(number, self.channel.starts_at)
        if not attempt.has_begun:
            return f"waits for the other {member}s"
        return None if self._has_ranks else f"ended, waits for the other {member}s"

    def describe_nodes(self) -> dict[str, object]:
        """Return the counts of all, present and lost nodes of the job, as far as this node knows."""
        return self.channel.count_nodes()

    # --- the end

    def restarts(self) -> bool:
        """Whether another attempt follows; returns when all nodes start it."""
        self.ending.end_attempt()
        again = self.view.attempt.again
        if again is None:
            return False
        self.ending.report(again.over)
        self.say(again.why, "restart")
        return self.rendezvous.await_attempt(again.attempt)

    def finish(self) -> int:
        """Report how the job ended, and return its status."""
        return self.ending.finish()

    def close(self) -> None:
        """Close the channel."""
        if hasattr(self, "channel"):
            self.channel.close()
