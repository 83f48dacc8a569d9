"""Node 0 of a job whose other nodes serve: waits for them, hears what they report, and ends with them."""

from __future__ import annotations

from launcher.agent.coordination import Coordination
from launcher.core.files import remove_tree
from launcher.job import events
from launcher.mpi.leftovers import end_job
from launcher.mpi.nodes import Nodes
from launcher.mpi.protocol import NodeTold
from launcher.process.signals import ENDING, name_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.agent.agent import Agent
    from launcher.agent.forwarder import Target
    from launcher.agent.runtime import Runtime
    from launcher.core.errors import LauncherError
    from launcher.job.commands import Command
    from launcher.mpi.nodes import Node, ServedJob
    from launcher.remote.hub import Gate


class Lead(Coordination):
    """Coordination of node 0 with the nodes that serve it.

    Attributes:
        job: The job.
        nodes: The nodes, and the controller.
        agent: The agent of this node; set before it runs.
    """

    shares_terminal = lends_terminal = False

    agent: Agent

    def __init__(self, job: ServedJob, private: str, gate: Gate) -> None:
        """Create the coordination.

        Args:
            job: The job.
            private: The job's private folder, which `clean_up` removes.
            gate: Where the other nodes come.
        """
        self.job, self.has_others = job, len(job.shape.hosts) > 1
        self._private, self._gate = private, gate

    def attach(self, runtime: Runtime) -> Target | None:
        """Let the nodes join."""
        super().attach(runtime)
        rule = runtime.watch.restarts if runtime.watch.restarts.most else None
        self.nodes = Nodes(
            self.job, self._gate, runtime.loop, runtime.group.helpers, runtime.say, self.on_message,
            self.act, rule,
        )  # fmt: skip
        return None

    def gather(self) -> None:
        """Wait until every node is ready, or until we are told to end.

        Raises:
            LauncherError: See `Nodes.gather`.
        """
        runtime = self.runtime
        runtime.group.start_watchdog(None, self.agent.clean_up)
        self.has_work = self.nodes.gather(lambda: runtime.forwarder.told, runtime.group.reap)

    def begin(self) -> None:
        """Prepare for an attempt."""
        self.nodes.begin()

    def on_message(self, node: Node, message: object) -> None:
        """Report a signal that a serving node has received: it is for the whole job."""
        if isinstance(message, NodeTold) and message.number in ENDING:
            self.nodes.feed(events.Received(node.index, message.number, name_signal(message.number)))

    def act(self, command: Command) -> None:
        """Do what the controller decides."""

    def on_refused(self, error: LauncherError) -> None:
        """Take the status of the error: the job cannot be started."""
        self.nodes.status = error.exit_status

    def clean_up(self) -> None:
        """Remove the private folder, and end what is left here; the watchdog calls this if we were killed."""
        remove_tree(self._private)
        end_job(self.job.briefing.job, self.runtime.watch.grace_s)

    def close(self) -> None:
        """Leave the nodes."""
        self.nodes.close()
