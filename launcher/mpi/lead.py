"""Node 0 of a job whose other nodes serve: waits for them, hears what they report, and ends with them."""

from __future__ import annotations

import time

from launcher.agent.coordination import Coordination
from launcher.cluster.messages import Again, Over, Refuse, Start
from launcher.cluster.outcome import read_refusal
from launcher.failure.arbiter import REFUSED, Event
from launcher.job import events
from launcher.mpi.leftovers import LINGER_S, end_job
from launcher.mpi.nodes import Nodes
from launcher.remote.starter import tell_starter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.agent.agent import AgentParts
    from launcher.agent.forwarder import Target
    from launcher.agent.runtime import Runtime
    from launcher.core.errors import LauncherError
    from launcher.mpi.nodes import MpiNode, ServedJob
    from launcher.process.watchdog import Watchdog
    from launcher.remote.hub import Gate


class Lead:
    """Coordination of node 0 with the nodes that serve it.

    Attributes:
        job: The job.
        nodes: The nodes, and the controller.
        over: How the job has ended; None before.
        parts: The parts of the agent; set before it runs.
        runtime: Values and tools of the launcher.
    """

    over: Over | Refuse | None = None
    parts: AgentParts
    runtime: Runtime

    def __init__(self, job: ServedJob, guard: Watchdog, gate: Gate) -> None:
        """Create the coordination.

        Args:
            job: The job.
            guard: Removes the job's directory if we are killed before there is a watchdog of the agent.
            gate: Where the other nodes come.
        """
        self.job = job
        self._guard, self._gate = guard, gate

    def coordinate(self) -> Coordination:
        """Return what the agent asks and reports."""
        return Coordination(
            self.attach, self.gather, shares_terminal=False, lends_terminal=False,
            has_others=len(self.job.shape.hosts) > 1, begin=self.begin, on_refused=self.on_refused,
            clean_up=self.clean_up, close=self.close,
        )  # fmt: skip

    def attach(self, runtime: Runtime) -> Target | None:
        """Let the nodes join."""
        self.runtime = runtime
        rule = runtime.watch.restarts if runtime.watch.restarts.most else None
        self.nodes = Nodes(
            self.job, self._gate, runtime.loop, runtime.group.helpers, runtime.say, self.on_message,
            self.deliver, self.find_status, lambda: self.parts.outcomes.recovery, rule,
        )  # fmt: skip
        return None

    def gather(self) -> bool:
        """Wait until every node is ready, or until we are told to end; return whether the job starts.

        Raises:
            LauncherError: The job does not start.
        """
        runtime = self.runtime
        runtime.group.start_watchdog(None, self.parts.clean_up)
        self._guard.dismiss()
        starts = self.nodes.gather(lambda: runtime.forwarder.told, runtime.group.reap)
        if starts and isinstance(self.over, Refuse):
            raise read_refusal(self.over)
        return starts

    def begin(self) -> None:
        """Prepare for an attempt."""
        self.runtime.loop.timers += self.nodes.timers

    def on_message(self, node: MpiNode, message: object) -> None:
        """Handle a message about ranks of a node."""

    def deliver(self, message: object) -> None:
        """Handle a message for this node, as the others get it."""
        match message:
            case Over() | Refuse():
                self.over = message
            case Again():
                ready = events.Ready(0, message.attempt)
                self.nodes.ranks.clear(message.run, LINGER_S, lambda: self.nodes.channel.hear(0, ready))
            case Start():
                tell_starter(self.runtime.environ)
            case _:
                self.nodes.ranks.obey(message)

    def find_status(self, over: Over) -> int:
        """Return the exit status of the launchers from how the job has ended."""
        self.parts.outcomes.is_stopped = over.is_stopped
        return self.parts.outcomes.exit_status(over.status)

    def on_refused(self, error: LauncherError) -> None:
        """End the job: what node 0 runs cannot be started."""
        event = Event(0, REFUSED, time.monotonic_ns(), error.exit_status, what=error.summary)
        self.nodes.channel.feed(events.Failed(0, event, self.nodes.attempt))
        self.nodes.end_all(error.exit_status)

    def clean_up(self) -> None:
        """End what is left here; the watchdog calls this if we were killed."""
        end_job(self.job.briefing.job, self.runtime.watch.grace_s)

    def close(self) -> None:
        """Leave the nodes."""
        self.nodes.close()
