"""Node 0 of a job that it leads: waits for the other nodes, hears what they report, and ends with them.

The nodes join and are lost as in any job, with two differences. Programs run on them for node 0, and their
streams end with the connection: then the node is lost. And mpirun, not a node, starts its ranks: what ranks
do is reported by messages of their own (`launcher.mpi.protocol`).
"""

from __future__ import annotations

import os
import time
from errno import ECONNRESET, EPIPE

from launcher.agent.coordination import Coordination
from launcher.channel.connection import CLOSED
from launcher.cluster.coordinator import Coordinator, Service
from launcher.cluster.join import Join
from launcher.cluster.messages import Over, Refuse, Start
from launcher.cluster.outcome import read_refusal
from launcher.cluster.roll import look_for
from launcher.core.errors import EXIT_NOT_READY
from launcher.core.frozen import frozen, replace
from launcher.core.version import __version__
from launcher.failure.arbiter import REFUSED, Event
from launcher.job import events
from launcher.job.refusals import WAIT_LONGER
from launcher.job.settings import BEAT_S
from launcher.job.state import Phase
from launcher.machine.ports import find_free_port
from launcher.mpi.leftovers import end_job
from launcher.mpi.local import LocalRanks
from launcher.mpi.protocol import FROM_NODE, Variable
from launcher.mpi.ranks import MpiNode
from launcher.process.signal_file import name_signal
from launcher.remote.hub import Hub
from launcher.remote.protocol import FROM_NODE as OF_PROGRAMS
from launcher.remote.protocol import UNSENT_LIMIT_BYTES
from launcher.remote.starter import tell_starter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.agent.agent import AgentParts
    from launcher.agent.runtime import Runtime
    from launcher.agent.signals import Target
    from launcher.channel.connection import Connection
    from launcher.cluster.settings import Shape
    from launcher.core.errors import LauncherError
    from launcher.failure.model import Verdict
    from launcher.mpi.protocol import Briefing
    from launcher.process.watchdog import Watchdog
    from launcher.remote.hub import Gate

CLOSE_S = 8.0
KILL_S = 3.0
"""Seconds that ranks may take to end after their grace."""
ENDED = (CLOSED, os.strerror(ECONNRESET), os.strerror(EPIPE))
"""Reasons of a loss that come from the node's kernel: its launcher has ended, or has given us up."""


@frozen
class ServedJob:
    """A job that node 0 leads.

    Attributes:
        shape: The nodes and ranks.
        briefing: Facts for each node about the first attempt; without its rank.
        variables: Variables of our environment for the ranks; None for one that they must not have.
        moves_port: Whether each attempt may have another port.
    """

    shape: Shape
    briefing: Briefing
    variables: Mapping[str, str | None] = {}
    moves_port: bool = False


class Lead:
    """Coordination of node 0 with the nodes that serve it.

    Attributes:
        job: The job.
        nodes: The nodes by node rank, and what is known of their ranks.
        channel: The control channel, with the controller.
        ranks: The ranks of our own node.
        timers: What the loop calls when it is due.
        over: How the job has ended; None before.
        parts: The parts of the agent; set before it runs.
        runtime: Values and tools of the launcher.
    """

    over: Over | Refuse | None = None
    parts: AgentParts
    runtime: Runtime
    _is_closing = False

    def __init__(self, job: ServedJob, guard: Watchdog, gate: Gate) -> None:
        """Create the coordination.

        Args:
            job: The job.
            guard: Removes the job's directory if we are killed before there is a watchdog of the agent.
            gate: Where the other nodes come, and the hosts.
        """
        self.job = job
        self.nodes = [MpiNode(index, host) for index, host in enumerate(gate.hosts)]
        self._guard, self._gate, self._master_port = guard, gate, job.briefing.master_port

    def coordinate(self) -> Coordination:
        """Return what the agent asks and reports."""
        return Coordination(
            self.gather, self.attach, shares_terminal=False, lends_terminal=False,
            has_others=len(self.nodes) > 1, begin=self.begin, on_refused=self.on_refused,
            clean_up=lambda: end_job(self.job.briefing.job, self.runtime.watch.grace_s), close=self.close,
        )  # fmt: skip

    def attach(self, runtime: Runtime) -> Target | None:
        """Let the nodes join."""
        self.runtime = runtime
        gate, loop, shape = self._gate, runtime.loop, self.job.shape
        names = dict(zip(gate.addresses, gate.hosts, strict=True))
        rule = runtime.watch.restarts if runtime.watch.restarts.most else None
        service = Service(
            (*FROM_NODE, *OF_PROGRAMS), lambda address: gate.find(address) or None,
            lambda address: names.get(address, address), self._amend, self._finish, self._on_let_in,
            self._on_closed,
        )  # fmt: skip
        own = Join(0, os.urandom(8).hex(), host=os.uname().nodename, launcher=__version__)
        self.channel = channel = Coordinator(
            gate.listening, gate.key, shape, own, loop, runtime.say, self.deliver, self._brief,
            lambda ranks, take: look_for(ranks, take, shape, channel.port, runtime.group.helpers),
            lambda: self.parts.outcomes.history, rule, self.job.briefing.job, service,
        )  # fmt: skip
        self._hub = Hub(gate, loop, runtime.say, channel.members.send, channel.members.why_silent)
        self.ranks = LocalRanks(loop, channel.send, 0, shape.grace_s)
        self.timers = channel, self._hub.clients, self.ranks
        channel.subscribers |= dict.fromkeys(OF_PROGRAMS, self._hub.hear)
        return None

    @property
    def attempt(self) -> int:
        """Number of the attempt that runs, or ran last."""
        return self.channel.state.attempt_number

    @property
    def failures(self) -> tuple[Event, ...]:
        """What has failed in that attempt."""
        attempt = self.channel.state.attempt
        return () if attempt is None else attempt.events

    def gather(self) -> bool:
        """Wait until every node has joined, or we are told to end; return whether the job starts.

        Raises:
            LauncherError: The job does not start, or ranks cannot start on this node.
        """
        runtime, channel = self.runtime, self.channel
        runtime.group.start_watchdog(None, self.parts.clean_up)
        self._guard.dismiss()
        self.ranks.listen(self.job.briefing.job)
        runtime.loop.timers[:] = self.timers
        channel.feed(events.Tick())
        runtime.group.turn_while(
            lambda: runtime.forwarder.told is None and channel.state.phase is Phase.GATHERING
        )
        told = runtime.forwarder.told
        if told is not None:
            self.on_told(told)
        elif isinstance(self.over, Refuse):
            raise read_refusal(self.over)
        return told is None

    def on_told(self, number: int) -> None:
        """Report that this launcher was told to stop."""
        self.channel.feed(events.Received(0, number, name_signal(number)))

    def begin(self) -> None:
        """Prepare for an attempt."""
        self.runtime.loop.timers += self.timers

    # --- from the controller

    def _brief(self, attempt: int) -> dict[str, object]:
        """Send all nodes the facts about an attempt before its start."""
        port, job = self._master_port, self.job
        if attempt and job.moves_port and port:  # what is left of an attempt cannot connect to the next
            self._master_port = port = find_free_port(port) or port
        for name, value in job.variables.items():
            self.channel.broadcast(Variable(name, value))
        for node in self.nodes:
            node.forget_ranks()
            facts = {"node_rank": node.index, "attempt": attempt, "master_port": port}
            self.channel.tell(node.index, replace(job.briefing, **facts))
        return {}

    def deliver(self, message: object) -> None:
        """Handle a message for this node, as the others get it."""
        match message:
            case Over() | Refuse():
                self.over = message
            case Start():
                tell_starter(self.runtime.environ)
            case _:
                self.ranks.obey(message)

    def _finish(self, over: Over | Refuse) -> Over | Refuse:
        """Return how the job ends, with the status of all launchers: nodes may not have the head's flags."""
        if isinstance(over, Refuse):
            return over
        outcomes = self.parts.outcomes
        outcomes.is_stopped = over.is_stopped
        verdict = self.runtime.loop.guarded(lambda: self.judge(over), None)
        return replace(over, status=outcomes.exit_status(over.status, verdict))

    def judge(self, over: Over) -> Verdict | None:
        """Return the verdict on the whole job; None if it is that on our own process."""
        return None

    # --- from the nodes

    def _amend(self, event: events.JobEvent) -> events.JobEvent:
        """Return an event with what only we know."""
        match event:
            case events.Joined() if 0 <= event.node < len(self.nodes):
                node = self.nodes[event.node]
                return replace(event, host=node.host, free_at=node.find_free_at(event.session, event.host))
            case events.Probed():
                return replace(event, or_else=WAIT_LONGER)
        return event

    def _on_let_in(self, index: int, connection: Connection) -> None:
        """Note which launcher was let in."""
        connection.limit_bytes = UNSENT_LIMIT_BYTES
        node, member = self.nodes[index], self.channel.members.by_index[index]
        node.launcher, node.name = member.session, member.host
        left_s = node.free_at - time.monotonic()
        if self.channel.state.phase is Phase.BETWEEN and left_s > 0:
            what = "ranks of the launcher that it replaces may still run"
            self.channel.say(f"{node.name_in_full}: {what}, {left_s:.0f} s at most", "waiting")

    def _on_closed(self, index: int, why: str) -> None:
        """Note that a node is lost, with its programs and ranks."""
        node, ended = self.nodes[index], why in ENDED
        self._hub.lose(index, why)
        node.ended.update(node.started)
        if self.channel.state.attempt is not None:
            # If it is cut off, it has heard us until now at the latest
            notice_s = 0.0 if ended else self.job.shape.given_up_s + BEAT_S
            node.lost = ended, time.monotonic() + notice_s + self.job.briefing.grace_s + KILL_S
            # What still runs there ends by itself, and before that the node is not ready again
            self.channel.feed(events.Exited(index, EXIT_NOT_READY, self.attempt))

    # --- the end

    def end_all(self, status: int) -> None:
        """Report that what ran on all nodes has ended."""
        for node in self.nodes:
            self.channel.feed(events.Exited(node.index, status, self.attempt))

    def on_refused(self, error: LauncherError) -> None:
        """End the job: what node 0 runs cannot be started."""
        event = Event(0, REFUSED, time.monotonic_ns(), error.exit_status, what=error.summary)
        self.channel.feed(events.Failed(0, event, self.attempt))
        self.end_all(error.exit_status)

    def close(self) -> None:
        """Wait for all nodes to clean up and leave."""
        if self._is_closing:
            return
        self._is_closing = True
        self.channel.feed(events.Unable(0, "the launcher of node 0 has ended"))  # unless the job is over
        self.ranks.end()
        loop = self.runtime.loop
        loop.timers[:] = self.timers
        loop.turn_until(lambda: self.ranks.is_over and not self.channel.members.are_connected, CLOSE_S)
        self.ranks.close()
        self._hub.close()
        self.channel.close()
