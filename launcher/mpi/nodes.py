"""The nodes of a job that node 0 leads: they join, get ready for each attempt, are lost, and come back.

The launchers of the other nodes join over `launcher.remote`; the ranks of our own node are `LocalRanks`.
`launcher.job.controller` decides: a node has joined when ranks can start there, and it is ready for another
attempt when nothing of the last one is left there. When its connection ends, it is lost.
"""

from __future__ import annotations

import os
import time

from launcher.cluster.attempts import rescue
from launcher.core.budget import Quota
from launcher.core.errors import EXIT_NOT_READY, EXIT_UNTRUSTED, NotReady, Problem
from launcher.core.frozen import frozen, replace
from launcher.core.model import Restarts
from launcher.core.redact import quote
from launcher.core.version import __version__
from launcher.job import between, commands, controller, events
from launcher.job.feed import Feed
from launcher.job.refusals import WAIT_LONGER, other_versions
from launcher.job.settings import BEAT_S, SAY_EVERY_S
from launcher.job.state import Job, Phase
from launcher.machine.ports import find_free_port
from launcher.mpi.folder import no_folder
from launcher.mpi.local import LocalRanks
from launcher.mpi.protocol import FROM_NODE, CannotServe, Cleared, JobOver, NodeTold, Variable
from launcher.remote.hub import LOST_S, NOT_YET, Hub

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.cluster.join import Join
    from launcher.cluster.settings import Shape
    from launcher.core.log import Say
    from launcher.failure.arbiter import Event
    from launcher.job.state import State
    from launcher.mpi.protocol import Briefing
    from launcher.process.helper import Helpers
    from launcher.process.loop import Loop
    from launcher.remote.hub import Gate

CLOSE_S = 8.0
LEFT = "the last attempt has not ended there"
KILL_S = 3.0
"""Seconds that ranks may take to end after their grace."""
END_S = 30.0
"""Seconds beside the grace in which mpirun has ended after its ranks."""


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


class Node:
    """One node of the job.

    Attributes:
        index: Its node rank.
        host: Its name or address in the host list.
        is_here: Whether its launcher is connected.
        is_ready: Whether ranks of the attempt can start there.
        reason: Why it is not ready, as far as known.
        name: Its own host name.
        session: Name of its connection.
        launcher: Name of its launcher, the latest one.
        lost: How the latest one was lost: whether its connection has ended, and when its ranks have ended at
            the latest (monotonic seconds), which is 0 if it never had any.
        free_at: Before this no other launcher's ranks start in its place.
        started: Ranks that have reported their start, by the PID of their wrapper.
        ended: PIDs of those that have ended.
    """

    def __init__(self, index: int, host: str) -> None:
        self.index, self.host = index, host
        self.is_here = self.is_ready = False
        self.reason, self.name, self.session, self.launcher = NOT_YET, "", "", ""
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
    """All nodes of a job, and the controller.

    Attributes:
        all: The nodes, by node rank.
        state: The job, as the controller knows it.
        status: The job's status, which the nodes are told at the end.
        say: Prints a line that others cause, up to a limit.
    """

    def __init__(
        self,
        served: ServedJob,
        gate: Gate,
        loop: Loop,
        helpers: Helpers,
        say: Say,
        on_message: Callable[[Node, object], None],
        act: Callable[[commands.Command], None],
        restarts: Restarts | None = None,
    ) -> None:
        """Let the nodes join.

        Args:
            served: The job.
            gate: Where the other nodes come, and the hosts.
            loop: Waits for them.
            helpers: Probe the hosts of missing nodes.
            say: Prints a message in the log.
            on_message: Handles a message from a node.
            act: Does what the controller decides about attempts and the job.
            restarts: What the user allows after a failure; None for no restarts.
        """
        self.all = [Node(index, host) for index, host in enumerate(gate.hosts)]
        self.status = EXIT_NOT_READY
        self._briefing, shape = served.briefing, served.shape
        # The loss of a connection is that of mpirun's daemon on that node: there is no waiting for it
        job = Job(
            shape.node_count, grace_s=shape.grace_s, lost_after_s=0.0, roll_call_s=shape.timeout_s,
            restarts=restarts or Restarts(), seed=self._briefing.job, end_s=END_S,
        )  # fmt: skip
        self.state: State = controller.begin(job, self.all[0].session, time.monotonic(), gate.hosts[0])
        self.say = Quota(say, len(self.all))
        self._shape, self._gate, self._loop, self._helpers = shape, gate, loop, helpers
        self._variables, self._moves_port = served.variables, served.moves_port
        self._on_message, self._act = on_message, act
        self._feed = Feed(self._take, lambda event, error: rescue(self.state, event, error))
        self._is_closing = False
        self._say_at = time.monotonic() + SAY_EVERY_S
        self._ranks = LocalRanks(loop, lambda message: self._hear(0, message))
        self._hub = Hub(gate, loop, say, self._join, self._lose, self._hear, FROM_NODE)

    @property
    def timers(self) -> tuple[Hub, LocalRanks, Nodes]:
        """What the loop calls when it is due."""
        return self._hub, self._ranks, self

    @property
    def attempt(self) -> int:
        """Number of the attempt that runs, or ran last."""
        return 0 if self.state.attempt is None else self.state.attempt.number

    @property
    def failures(self) -> tuple[Event, ...]:
        """What has failed in that attempt."""
        return () if self.state.attempt is None else self.state.attempt.events

    def count_started(self) -> int:
        """Return the number of ranks that have reported their start."""
        return sum(len(node.started) for node in self.all)

    def tell(self, message: object) -> None:
        """Send a message to all nodes."""
        for node in self.all:
            self._send(node, message)

    def _send(self, node: Node, message: object) -> None:
        if node.index:
            self._hub.send(node.index, message)
        else:
            self._ranks.obey(message)

    # --- the controller

    def feed(self, event: events.JobEvent) -> None:
        """Let the controller handle an event, and do what it decides."""
        self._feed(event)

    def _take(self, event: events.JobEvent) -> None:
        self.state, found = controller.step(self.state, event, time.monotonic())
        for command in found:
            self._do(command)

    def _do(self, command: commands.Command) -> None:
        match command:
            case commands.Print():
                self.say(command.text, command.event)
            case commands.To(what=commands.Over(leaves=True, status=status)):
                for node in self.all:
                    if node.session == command.session:
                        self._send(node, JobOver(status))
            case commands.Probe():
                self._look(lambda found: self.feed(events.Probed(found, or_else=WAIT_LONGER)))
            case commands.Again():
                self._act(command)
                self._renew(command.attempt)
            case _:
                self._act(command)

    def gather(self, told: Callable[[], int | None], reap: Callable[[], object]) -> bool:
        """Wait until every node has joined, or we are told to end; return whether the job starts.

        Args:
            told: The signal that told us to end; None if there was none.
            reap: Reaps children of ours that have ended.

        Raises:
            LauncherError: Nodes have not joined in time, or cannot take part.
        """
        own = self.all[0]
        self._loop.timers[:] = self.timers
        own.is_here, own.name = True, os.uname().nodename
        self._prepare(own)
        if not own.is_ready:
            raise NotReady(no_folder(f"this node cannot have ranks: {own.reason}"))
        self.feed(events.Tick())
        while told() is None and self.state.phase is Phase.GATHERING:
            self._loop.turn()
            reap()
        number, over = told(), self.state.over
        if number is not None:
            self.status = 128 + number
        elif over is not None:
            from launcher.cluster.outcome import make_refusal, read_refusal

            self.status = over.status
            assert over.refusal is not None  # noqa: S101 - before the start
            raise read_refusal(make_refusal(over.refusal))
        return number is None

    def begin(self) -> None:
        """Prepare for an attempt."""
        self._loop.timers += self.timers

    def _renew(self, attempt: int) -> None:
        """Have all nodes clear away the last attempt, and prepare for another one."""
        port = self._briefing.master_port
        if self._moves_port and port:  # what is left of an attempt cannot connect to the next one
            port = find_free_port(port) or port
        self._briefing = replace(self._briefing, attempt=attempt, master_port=port)
        self._say_at = time.monotonic() + SAY_EVERY_S
        for node in self.all:
            node.forget_ranks()
            node.is_ready = False
            if node.is_here:
                self._prepare(node)

    def _prepare(self, node: Node) -> None:
        """Tell a node the facts about the next attempt; it answers when ranks can start there."""
        node.reason = LEFT
        for name, value in self._variables.items():
            self._send(node, Variable(name, value))
        self._send(node, replace(self._briefing, node_rank=node.index))

    # --- from the nodes

    def _join(self, index: int, join: Join) -> None:
        node = self.all[index]
        # The same launcher knows what runs there, and so does another one of the same machine
        (ended, until), name, version = node.lost, join.host or "", join.launcher or ""
        if join.session != node.launcher and not (ended and name == node.name):
            node.free_at = max(node.free_at, until)
        node.launcher = join.session
        node.is_here, node.reason, node.name = True, "", name
        node.session = f"{node.index}-{os.urandom(8).hex()}"
        if version != __version__:
            problem = other_versions(self.all[0].host, {node.host: quote(version, 40)})
            self.feed(events.Joined(index, node.session, refusal=commands.Refusal(EXIT_UNTRUSTED, problem)))
        elif self.state.phase in (Phase.GATHERING, Phase.BETWEEN):
            self._prepare(node)

    def _lose(self, index: int, why: str, ended: bool) -> None:
        node = self.all[index]
        node.is_here = node.is_ready = False
        node.reason = why
        if self.state.attempt is not None:  # if it is cut off, it has heard us until now at the latest
            notice_s = 0.0 if ended else LOST_S + BEAT_S
            node.lost = ended, time.monotonic() + notice_s + self._briefing.grace_s + KILL_S
        node.ended.update(node.started)
        if not self._is_closing:
            self.feed(events.Lost(index, time.monotonic(), why=why))
            # What still runs there ends by itself, and before that the node is not ready again
            self.feed(events.Exited(index, EXIT_NOT_READY, self.attempt))

    def _hear(self, index: int, message: object) -> None:
        node = self.all[index]
        match message:
            case CannotServe():
                node.reason = message.why
                self._find_twin(node, message.taken)
            case Cleared() if self.state.phase in (Phase.GATHERING, Phase.BETWEEN):
                node.is_ready, node.reason = True, ""
                left_s = node.free_at - time.monotonic()
                if left_s > 0:
                    what = "ranks of the launcher that it replaces may still run"
                    self.say(f"{node.name_in_full}: {what}, {left_s:.0f} s at most", "waiting")
                if self.state.nodes[index] is None:
                    self.feed(events.Joined(index, node.session, host=node.host, free_at=node.free_at))
                else:
                    self.feed(events.Ready(index, self._briefing.attempt))
            case _ if node.is_ready or isinstance(message, NodeTold):
                self._on_message(node, message)

    def _find_twin(self, node: Node, name: str) -> None:
        """Refuse the job if another node is on the same machine, whose name this is."""
        for twin in self.all:
            if twin is not node and twin.is_here and twin.name == name:
                problem = same_node(twin.host, node.host, name)
                self.feed(events.Refused(commands.Refusal(EXIT_UNTRUSTED, problem)))

    # --- time

    @property
    def due(self) -> float | None:
        """When to call `fire`."""
        is_waiting = self.state.phase in (Phase.GATHERING, Phase.BETWEEN)
        times = (self.state.due, self._say_at if is_waiting else None)
        return min((due for due in times if due is not None), default=None)

    def fire(self, now: float) -> None:
        """Let time pass for the controller, and print what the job waits for."""
        if self.state.due is not None and now >= self.state.due:
            self.feed(events.Tick())
        if now < self._say_at:
            return
        self._say_at = now + SAY_EVERY_S
        if self.state.phase is Phase.GATHERING:
            self._look(self._say_missing)
        elif self.state.phase is Phase.BETWEEN and (waiting := between.describe_wait(self.state, now)):
            self.say(waiting, "waiting")

    def _look(self, then: Callable[[str], None]) -> None:
        """Find why nodes are missing, and pass on their description."""
        from launcher.cluster.roll import Missing
        from launcher.cluster.start import look_for

        shape, port, helpers, hub = self._shape, self._gate.port, self._helpers, self._hub
        names = dict(zip(self._gate.addresses, self._gate.hosts, strict=True))
        absent = [index for index, node in enumerate(self.state.nodes) if node is None]
        here = {index: self.all[index].reason for index in absent if self.all[index].is_here}
        Missing(
            shape,
            lambda ranks, take: look_for(ranks, take, shape, port, helpers),
            lambda: {names.get(address, address): why for address, why in hub.turned_away.items()},
            lambda: hub.has_heard,
        ).look(lambda: absent, lambda: {**self.state.left, **here}, then)

    def _say_missing(self, described: str) -> None:
        if self.state.phase is Phase.GATHERING:
            self.say(f"waiting for {self.state.missing} of {len(self.all)} nodes: {described}", "waiting")

    # --- the end

    def close(self) -> None:
        """Tell all nodes how the job ended, and wait for them to clean up and leave."""
        if self._is_closing:
            return
        self._is_closing = True
        for node in self.all[1:]:
            self._send(node, JobOver(self.status))
        self._ranks.end()
        self._loop.timers[:] = [self._hub, self._ranks]
        self._loop.turn_until(
            lambda: self._ranks.is_over and not any(node.is_here for node in self.all[1:]), CLOSE_S
        )
        self._ranks.close()
        self._hub.close()
        self.say.say_dropped()


def same_node(one: str, other: str, name: str) -> Problem:
    return Problem(
        "same-node",
        f"{one} and {other} are the same node, {quote(name, 64)}",
        "the hosts of the job",
        "name each node once; or check what the name resolves to on the head (getent hosts)",
    )
