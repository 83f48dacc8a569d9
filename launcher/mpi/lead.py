"""Base of what leads a job from node 0: waits for the sessions of all nodes, and closes them."""

from __future__ import annotations

from launcher.agent.coordination import Coordination
from launcher.core.files import remove_tree
from launcher.mpi.refusals import not_ready
from launcher.mpi.sessions import Sessions
from launcher.remote.hub import Hub

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.agent.agent import Agent
    from launcher.core.errors import LauncherError
    from launcher.mpi.messages import Briefing
    from launcher.mpi.node import Line, Node
    from launcher.remote.hub import Gate

LOST = 75
"""Exit status of a job that has lost a node: a retry can succeed."""
CLOSE_S = 8.0


class Lead(Coordination):
    """Coordination of the sessions on all nodes with the one command that starts processes there.

    Attributes:
        sessions: The sessions; created by `open_sessions`, which `attach` of the derived class calls.
        status: The job's status, which the sessions are told at the end.
    """

    shares_terminal = lends_terminal = False
    sessions: Sessions

    def __init__(self, private: str, timeout_s: float, gate: Gate) -> None:
        """Create the coordination.

        Args:
            private: The job's private folder, which `clean_up` removes.
            timeout_s: Seconds that nodes may take to answer.
            gate: Where the other nodes come.
        """
        self.status = LOST
        self._private, self._timeout_s, self._gate = private, timeout_s, gate

    def open_sessions(
        self,
        agent: Agent,
        lines: Sequence[Line],
        brief: Callable[[int], Briefing],
        on_message: Callable[[Node, object], None],
        on_lost: Callable[[Node], None],
    ) -> None:
        """Let the nodes join, and start a session on each.

        Args:
            agent: The agent of node 0.
            lines: How to start the session of each node, by node rank.
            brief: Returns the facts for a node about the attempt that comes next.
            on_message: Handles a message from the session of a node.
            on_lost: Handles the loss of a node.
        """
        self._hub = Hub(self._gate, agent.loop, agent.say, lambda index: self.sessions.note_joined(index))
        self.sessions = Sessions(
            lines, self._hub, brief, agent.loop, agent.signals, agent.environ, agent.say, on_message, on_lost
        )

    def gather(self) -> None:
        """Wait until every node has answered, or until we are told to end.

        Raises:
            NotReady: Some nodes have not answered by the deadline, or a session cannot be started.
            EnvironmentUntrusted: Two hosts are the same node, or a node has another version of the launcher.
        """
        agent = self.agent
        agent.group.start_watchdog(None, agent.clean_up)  # sessions end the job, after the grace
        agent.loop.timers[:] = [self._hub, self.sessions]
        self.turn_until(
            lambda: agent.forwarder.told is not None or not self.sessions.missing(), self._timeout_s
        )
        self.has_work = agent.forwarder.told is None
        if agent.forwarder.told is not None:
            self.status = 128 + agent.forwarder.told
        elif self.sessions.missing():
            self._explain_missing()
            raise not_ready(self.sessions.missing(), self._timeout_s)

    def _explain_missing(self) -> None:
        """Note why the nodes have not joined: what was turned away from there, or what a probe finds."""
        from launcher.cluster.reach import find_reasons

        gate, away = self._gate, self._hub.turned_away
        nodes = [node for node in self.sessions.missing() if node.index and not self._hub.has(node.index)]
        for node in nodes:
            node.reason = away.get(gate.addresses[node.index], "")
        unknown = {node.index: node.host for node in nodes if not node.reason}
        for line in find_reasons(unknown, gate.port):
            rank, _, why = line.partition(" ")
            self.sessions.nodes[int(rank)].reason = why

    def turn_until(self, is_true: Callable[[], bool], wait_s: float) -> None:
        """Turn the loop until a condition holds, for at most so long, while sessions are opened.

        Raises:
            LauncherError: As `gather`.
        """

        def is_over() -> bool:
            self.agent.group.reap()  # each ssh that has failed
            return is_true() or self.sessions.refused is not None

        self.agent.loop.turn_until(is_over, wait_s)
        if self.sessions.refused is not None:
            self.status = self.sessions.refused.exit_status
            raise self.sessions.refused

    def begin(self) -> None:
        """Note that an attempt begins: from now on a session that ends means a lost node."""
        self.sessions.has_begun = True
        self.agent.loop.timers += [self._hub, self.sessions]

    def on_refused(self, error: LauncherError) -> None:
        """Take the status of the error: the command cannot be started."""
        self.status = error.exit_status

    def helpers(self) -> tuple[int, ...]:
        """Return the processes that hold the sessions: these end by themselves."""
        return self.sessions.pids()

    def clean_up(self) -> None:
        """Remove the private folder, because it contains the key."""
        remove_tree(self._private)

    def close(self) -> None:
        """Close the sessions of all nodes."""
        self.sessions.close(self.status, CLOSE_S)
        self._hub.close()
