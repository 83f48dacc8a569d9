"""The nodes of a job that node 0 leads, and its controller.

They join and are lost as in any job, with two differences. Programs run on them for node 0, and their streams
end with the connection: then the node is lost. And mpirun, not a node, starts its ranks: what ranks do is
reported by messages of their own (`launcher.mpi.protocol`).
"""

from __future__ import annotations

import os
import time
from errno import ECONNRESET, EPIPE

from launcher.channel.connection import CLOSED
from launcher.cluster.coordinator import Coordinator, Service
from launcher.cluster.join import Join
from launcher.cluster.messages import Over, Refuse
from launcher.cluster.roll import look_for
from launcher.core.errors import EXIT_NOT_READY, NotReady
from launcher.core.frozen import frozen, replace
from launcher.core.version import __version__
from launcher.job import events
from launcher.job.refusals import WAIT_LONGER
from launcher.job.settings import BEAT_S
from launcher.job.state import Phase
from launcher.machine.ports import find_free_port
from launcher.mpi.folder import cannot_have_ranks
from launcher.mpi.local import LocalRanks
from launcher.mpi.protocol import FROM_NODE, Variable
from launcher.process.signals import name_signal
from launcher.remote.hub import Hub
from launcher.remote.protocol import FROM_NODE as OF_PROGRAMS
from launcher.remote.protocol import UNSENT_LIMIT_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.channel.connection import Connection
    from launcher.cluster.settings import Shape
    from launcher.core.log import Say
    from launcher.core.supervision import Restarts
    from launcher.failure.arbiter import Event
    from launcher.mpi.protocol import Briefing
    from launcher.process.helper import Helpers
    from launcher.process.loop import Loop
    from launcher.recovery.history import History
    from launcher.remote.hub import Gate

    Message = dict[str, object]

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

    @property
    def world_size(self) -> int:
        """Number of ranks that were requested."""
        return self.shape.world_size or 0

    @property
    def per_node(self) -> int:
        """Number of ranks that were requested on each node."""
        return self.world_size // self.shape.node_count


class MpiNode:
    """One node of the job.

    Attributes:
        index: Its node rank.
        host: Its name or address in the host list.
        name: Its own host name.
        launcher: Name of its launcher, the latest one.
        lost: How the latest one was lost: whether its connection has ended, and when its ranks have ended at
            the latest (monotonic seconds), which is 0 if it never had any.
        free_at: Before this no other launcher's ranks start in its place.
        started: Ranks that have reported their start, by the PID of their wrapper.
        ended: PIDs of those that have ended.
    """

    def __init__(self, index: int, host: str) -> None:
        self.index, self.host = index, host
        self.name = self.launcher = ""
        self.lost, self.free_at = (True, 0.0), 0.0
        self.forget_ranks()

    def forget_ranks(self) -> None:
        """Forget the ranks of the last attempt."""
        self.started: dict[int, int] = {}
        self.ended: set[int] = set()

    @property
    def name_in_full(self) -> str:
        """Its rank and its host, e.g. ``node 1 (10.0.0.5)``."""
        return f"node {self.index} ({self.host})"

    @property
    def running(self) -> int:
        """Number of its running ranks."""
        return len(self.started) - len(self.ended)

    def runs(self, pid: int) -> bool:
        """Whether the rank whose wrapper has this PID has started here and not ended."""
        return pid in self.started and pid not in self.ended


class Nodes:
    """All nodes of a job, and what runs on them.

    Attributes:
        all: The nodes, by node rank.
        channel: The control channel, with the controller.
        hub: The programs on them.
        ranks: The ranks of our own node.
    """

    def __init__(
        self,
        served: ServedJob,
        gate: Gate,
        loop: Loop,
        helpers: Helpers,
        say: Say,
        on_message: Callable[[MpiNode, object], None],
        deliver: Callable[[object], None],
        find_status: Callable[[Over], int],
        history: Callable[[], History],
        restarts: Restarts | None = None,
    ) -> None:
        """Let the nodes join.

        Args:
            served: The job.
            gate: Where the other nodes come, and the hosts.
            loop: Waits for them.
            helpers: Probe the hosts of missing nodes.
            say: Prints a message in the log.
            on_message: Handles a message about ranks of a node.
            deliver: Takes the messages for this node itself.
            find_status: Returns the exit status of the launchers from how the job has ended.
            history: Returns the record of attempts.
            restarts: What the user allows after a failure; None for no restarts.
        """
        self.all = [MpiNode(index, host) for index, host in enumerate(gate.hosts)]
        self._served, self._take_report, self._is_closing = served, on_message, False
        self._loop, self._find_status = loop, find_status
        self._master_port, shape = served.briefing.master_port, served.shape
        names = dict(zip(gate.addresses, gate.hosts, strict=True))
        service = Service(
            (*FROM_NODE, *OF_PROGRAMS), lambda address: gate.find(address) or None,
            lambda address: names.get(address, address), self._amend, self._finish, self._on_let_in,
            self._on_closed,
        )  # fmt: skip
        own = Join(0, os.urandom(8).hex(), host=os.uname().nodename, launcher=__version__)
        self.channel = channel = Coordinator(
            gate.listening, gate.key, shape, own, loop, say, deliver, self._brief,
            lambda ranks, take: look_for(ranks, take, shape, channel.port, helpers),
            history, restarts, served.briefing.job, service,
        )  # fmt: skip
        self.hub = Hub(gate, loop, say, channel.members.send, channel.members.why_silent)
        self.ranks = LocalRanks(loop, lambda message: self._hear_ranks(0, message))
        channel.subscribers |= dict.fromkeys(FROM_NODE, self._hear_ranks)
        channel.subscribers |= dict.fromkeys(OF_PROGRAMS, self.hub.hear)

    @property
    def timers(self) -> tuple[Coordinator, Hub, LocalRanks]:
        """What the loop calls when it is due."""
        return self.channel, self.hub, self.ranks

    @property
    def attempt(self) -> int:
        """Number of the attempt that runs, or ran last."""
        attempt = self.channel.state.attempt
        return 0 if attempt is None else attempt.number

    @property
    def failures(self) -> tuple[Event, ...]:
        """What has failed in that attempt."""
        attempt = self.channel.state.attempt
        return () if attempt is None else attempt.events

    def count_started(self) -> int:
        """Return the number of ranks that have reported their start."""
        return sum(len(node.started) for node in self.all)

    def _amend(self, event: events.JobEvent) -> events.JobEvent:
        """Return an event with what only we know."""
        match event:
            case events.Joined() if 0 <= event.node < len(self.all):
                free_at, host = self._find_free_at(event), self.all[event.node].host
                return replace(event, host=host, free_at=free_at)
            case events.Probed():
                return replace(event, or_else=WAIT_LONGER)
        return event

    def end_all(self, status: int) -> None:
        """Report that what ran on all nodes has ended."""
        for node in self.all:
            self.channel.feed(events.Exited(node.index, status, self.attempt))

    def gather(self, told: Callable[[], int | None], reap: Callable[[], object]) -> bool:
        """Wait until every node has joined, or we are told to end; return whether the job starts.

        Args:
            told: The signal that told us to end; None if there was none.
            reap: Reaps children of ours that have ended.

        Raises:
            LauncherError: Ranks cannot start on this node.
        """
        try:
            self.ranks.listen(self._served.briefing.job)
        except OSError as error:
            raise NotReady(cannot_have_ranks(error)) from error
        self._loop.timers[:] = self.timers
        self.channel.feed(events.Tick())
        while told() is None and self.channel.state.phase is Phase.GATHERING:
            self._loop.turn()
            reap()
        number = told()
        if number is not None:
            self.channel.feed(events.Received(0, number, name_signal(number)))
        return number is None

    def _finish(self, over: Over | Refuse) -> Over | Refuse:
        """Return how the job ends, with the status of all launchers: nodes may not have the head's flags."""
        return replace(over, status=self._find_status(over)) if isinstance(over, Over) else over

    def _brief(self, attempt: int) -> Message:
        """Send all nodes the facts about an attempt before its start."""
        port, served = self._master_port, self._served
        if attempt and served.moves_port and port:  # what is left of an attempt cannot connect to the next
            self._master_port = port = find_free_port(port) or port
        for name, value in served.variables.items():
            self.channel.broadcast(Variable(name, value))
        for node in self.all:
            node.forget_ranks()
            facts = {"node_rank": node.index, "attempt": attempt, "master_port": port}
            self.channel.tell(node.index, replace(served.briefing, **facts))
        return {}

    # --- from the nodes

    def _find_free_at(self, event: events.Joined) -> float:
        """Return before when no rank may start on a node whose launcher calls.

        The same launcher knows what runs there, and so does another one of the same machine.
        """
        node = self.all[event.node]
        ended, until = node.lost
        if event.session != node.launcher and not (ended and event.host == node.name):
            node.free_at = max(node.free_at, until)
        return node.free_at

    def _on_let_in(self, index: int, connection: Connection) -> None:
        """Note which launcher was let in."""
        connection.limit_bytes = UNSENT_LIMIT_BYTES
        node, member = self.all[index], self.channel.members.by_index[index]
        node.launcher, node.name = member.session, member.host
        left_s = node.free_at - time.monotonic()
        if self.channel.state.phase is Phase.BETWEEN and left_s > 0:
            what = "ranks of the launcher that it replaces may still run"
            self.channel.say(f"{node.name_in_full}: {what}, {left_s:.0f} s at most", "waiting")

    def _on_closed(self, index: int, why: str) -> None:
        """Note that a node is lost, with its programs and ranks."""
        node, ended = self.all[index], why in ENDED
        self.hub.lose(index, why)
        node.ended.update(node.started)
        state = self.channel.state
        if state.attempt is not None:  # if it is cut off, it has heard us until now at the latest
            notice_s = 0.0 if ended else self._served.shape.given_up_s + BEAT_S
            node.lost = ended, time.monotonic() + notice_s + self._served.briefing.grace_s + KILL_S
            # What still runs there ends by itself, and before that the node is not ready again
            self.channel.feed(events.Exited(index, EXIT_NOT_READY, self.attempt))

    def _hear_ranks(self, index: int, message: object) -> None:
        if self.channel.state.phase in (Phase.RUNNING, Phase.STOPPING):
            self._take_report(self.all[index], message)

    # --- the end

    def close(self) -> None:
        """Wait for all nodes to clean up and leave."""
        if self._is_closing:
            return
        self._is_closing = True
        self.channel.feed(events.Unable(0, "the launcher of node 0 has ended"))  # unless the job is over
        self.ranks.end()
        self._loop.timers[:] = self.timers
        self._loop.turn_until(lambda: self.ranks.is_over and not self.channel.members.are_connected, CLOSE_S)
        self.ranks.close()
        self.hub.close()
        self.channel.close()
