"""The nodes of a job that node 0 leads: waits for them, and exchanges messages with them.

The launchers of the other nodes join over `launcher.remote`; the ranks of our own node are `LocalRanks`. A
node is first missing, then here, then ready: ranks can start there. When its connection ends, it is lost.
"""

from __future__ import annotations

import os
import time

from launcher.core.budget import Quota
from launcher.core.errors import EnvironmentUntrusted, LauncherError, NotReady, Problem
from launcher.core.redact import quote
from launcher.core.version import __version__
from launcher.job.refusals import SAME_IMAGE
from launcher.mpi.local import LocalRanks
from launcher.mpi.messages import FROM_NODE, CannotServe, Cleared, JobOver, NodeTold, Variable
from launcher.remote.hub import NOT_YET, Hub
from launcher.remote.messages import BEAT_S, LOST_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.core.log import Say
    from launcher.mpi.messages import Briefing
    from launcher.process.loop import Loop
    from launcher.remote.hub import Gate
    from launcher.remote.messages import NodeHere

LOST = 75
"""Exit status of a job that has lost a node: a retry can succeed."""
CLOSE_S = 8.0
SAY_EVERY_S = 15.0
LEFT = "the last attempt has not ended there"
ELSEWHERE = "ranks of the launcher that it replaces may still run"
KILL_S = 3.0
"""Seconds that ranks may take to end after their grace."""
NAMED_MAX = 20
"""Maximum number of nodes that a message names for one reason."""


class Node:
    """One node of the job.

    Attributes:
        index: Its node rank.
        host: Its name or address in the host list.
        is_here: Whether its launcher has joined, and is connected.
        is_ready: Whether ranks of the attempt can start there.
        is_gone: Whether it was lost, and has not come back.
        is_cleared: Whether its launcher has ended what the last attempt has left there.
        session: Name of its launcher, the latest one.
        lost: How the latest one was lost: whether its connection has ended, and when its ranks have ended at
            the latest (monotonic seconds), which is 0 if it never had any.
        free_at: Before this no other launcher's ranks start in its place.
        reason: Why it is not ready, as far as known.
        name: Its own host name.
        started: Ranks that have reported their start, by the PID of their wrapper.
        ended: PIDs of those that have ended.
    """

    def __init__(self, index: int, host: str) -> None:
        self.index, self.host = index, host
        self.is_here = self.is_ready = self.is_gone = self.is_cleared = False
        self.reason, self.name, self.session = NOT_YET, "", ""
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
    """All nodes of a job.

    Attributes:
        all: The nodes, by node rank.
        status: The job's status, which the nodes are told at the end.
        due: When `fire` has something to do.
        refused: Error if the job cannot be started with these nodes.
        has_begun: Whether an attempt runs, so that a node whose connection ends is lost for it.
    """

    def __init__(
        self,
        gate: Gate,
        loop: Loop,
        say: Say,
        variables: Mapping[str, str | None],
        brief: Callable[[int], Briefing],
        on_message: Callable[[Node, object], None],
        on_lost: Callable[[Node], None],
    ) -> None:
        """Let the nodes join.

        Args:
            gate: Where the other nodes come, and the hosts.
            loop: Waits for them.
            say: Prints a message in the log.
            variables: Variables of the head for the ranks.
            brief: Returns the facts for a node about the attempt that comes next.
            on_message: Handles a message from a node.
            on_lost: Handles the loss of a node while an attempt runs.
        """
        self.all = [Node(index, host) for index, host in enumerate(gate.hosts)]
        self.status = LOST
        self.refused: LauncherError | None = None
        self.has_begun = self._has_run = self._is_closing = False
        self._gate, self._loop, self._variables = gate, loop, variables
        self._say = Quota(say, len(self.all))
        self._brief, self._on_message, self._on_lost = brief, on_message, on_lost
        self._said_at = time.monotonic()
        self._ranks = LocalRanks(loop, lambda message: self._hear(0, message))
        self._hub = Hub(gate, loop, say, self._join, self._lose, self._hear, FROM_NODE)

    @property
    def timers(self) -> tuple[Hub, LocalRanks, Nodes]:
        """What the loop calls when it is due."""
        return self._hub, self._ranks, self

    def missing(self) -> list[Node]:
        """Return the nodes that are not ready for an attempt."""
        return [node for node in self.all if not node.is_ready]

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

    # --- between attempts

    def wait(self, is_true: Callable[[], bool], wait_s: float) -> None:
        """Turn the loop until a condition holds, for at most so long.

        Raises:
            EnvironmentUntrusted: Two hosts are the same node, or a node has another version of the launcher.
        """
        self._loop.turn_until(lambda: is_true() or self.refused is not None, wait_s)
        if self.refused is not None:
            self.status = self.refused.exit_status
            raise self.refused

    def gather(self, told: Callable[[], int | None], timeout_s: float) -> None:
        """Wait until every node is ready, or we are told to end.

        Args:
            told: The signal that told us to end; None if there was none.
            timeout_s: Seconds that the nodes may take.

        Raises:
            LauncherError: As `wait`; or some nodes have not joined in time.
        """
        self._loop.timers[:] = self.timers
        self._join_own()
        self.wait(lambda: told() is not None or not self.missing(), timeout_s)
        number = told()
        if number is not None:
            self.status = 128 + number
        elif self.missing():
            self._explain_missing()
            raise not_ready(self.missing(), timeout_s)

    def begin(self) -> None:
        """Note that an attempt begins: from now on a node whose connection ends is lost for it."""
        self.has_begun = self._has_run = True
        self._loop.timers += self.timers

    def _join_own(self) -> None:
        own = self.all[0]
        own.is_here, own.name = True, os.uname().nodename
        self._prepare(own)

    def renew(self) -> None:
        """Have all nodes clear away the last attempt, and prepare for another one."""
        self.has_begun, self._said_at = False, time.monotonic()
        for node in self.all:
            node.forget_ranks()
            node.is_ready = node.is_cleared = False
            if node.is_here:
                self._prepare(node)

    def _prepare(self, node: Node) -> None:
        """Tell a node the facts about the next attempt; it answers when ranks can start there."""
        node.reason = LEFT
        for name, value in self._variables.items():
            self._send(node, Variable(name, value))
        self._send(node, self._brief(node.index))

    def _explain_missing(self) -> None:
        """Note why nodes have not joined: what was turned away from there, or what a probe finds."""
        from launcher.cluster.reach import find_reasons

        gate, away = self._gate, self._hub.turned_away
        absent = [node for node in self.all if not node.is_here]
        for node in absent:
            node.reason = away.get(gate.addresses[node.index], "")
        unknown = {node.index: node.host for node in absent if not node.reason}
        for line in find_reasons(unknown, gate.port):
            rank, _, why = line.partition(" ")
            self.all[int(rank)].reason = why

    @property
    def due(self) -> float | None:
        """When to call `fire`."""
        if self.has_begun or self._is_closing or not self.missing():
            return None
        dues = [node.free_at for node in self.all if node.is_cleared and not node.is_ready]
        return min([self._said_at + SAY_EVERY_S, *dues])

    @property
    def free_at(self) -> float:
        """When the last node that only waits for its time is ready (monotonic seconds); 0 if none does."""
        return max((node.free_at for node in self.all if node.is_cleared and not node.is_ready), default=0.0)

    def fire(self, now: float) -> None:
        """Note the nodes whose time has come, and print which nodes are missing."""
        for node in self.all:
            if node.is_cleared and now >= node.free_at:
                node.is_ready, node.reason = True, ""
        missing = self.missing()
        if not missing or now < self._said_at + SAY_EVERY_S:
            return
        self._said_at = now
        self._say(
            f"waiting for {len(missing)} of {len(self.all)} nodes: {describe_nodes(missing)}", "waiting"
        )

    # --- from the nodes

    def _join(self, index: int, here: NodeHere) -> None:
        node = self.all[index]
        if here.launcher != __version__:
            self.refused = self.refused or EnvironmentUntrusted(other_version(node, here.launcher))
            return
        if node.is_gone:
            self._say(f"{node.name_in_full} is back", "node-back")
        # The same launcher knows what runs there, and so does another one of the same machine
        ended, until = node.lost
        if here.session != node.session and not (ended and here.node == node.name):
            node.free_at = max(node.free_at, until)
        node.session = here.session
        node.is_here, node.is_gone, node.reason, node.name = True, False, "", here.node
        if not self.has_begun and not self._is_closing:
            self._prepare(node)

    def _lose(self, index: int, why: str, ended: bool) -> None:
        node = self.all[index]
        node.is_here = node.is_ready = node.is_cleared = False
        node.is_gone, node.reason = True, why
        if self._has_run:  # if it is cut off, it has heard us until now at the latest
            notice_s = 0.0 if ended else LOST_S + BEAT_S
            node.lost = ended, time.monotonic() + notice_s + self._brief(index).grace_s + KILL_S
        if self._is_closing:
            return
        if self.has_begun:
            self._on_lost(node)
        else:
            self._say(f"{node.name_in_full} is lost: {why}", "node-lost")

    def _hear(self, index: int, message: object) -> None:
        node = self.all[index]
        match message:
            case CannotServe():
                node.reason = message.why
                self._find_twin(node, message.taken)
            case Cleared():
                node.is_cleared, node.reason = True, ELSEWHERE
                self.fire(time.monotonic())
            case _ if node.is_ready or isinstance(message, NodeTold):
                self._on_message(node, message)

    def _find_twin(self, node: Node, name: str) -> None:
        """Refuse the job if another node is on the same machine, whose name this is."""
        for twin in self.all:
            if twin is not node and twin.is_here and twin.name == name:
                problem = same_node(twin.host, node.host, name)
                self.refused = self.refused or EnvironmentUntrusted(problem)

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


def describe_nodes(nodes: Sequence[Node]) -> str:
    """Return the nodes with the reason of each; nodes with the same reason are grouped."""
    groups: dict[str, list[str]] = {}
    for node in nodes:
        groups.setdefault(node.reason, []).append(node.host)
    parts = []
    for reason, hosts in groups.items():
        more = f" and {len(hosts) - NAMED_MAX} more" if len(hosts) > NAMED_MAX else ""
        parts.append(f"{', '.join(hosts[:NAMED_MAX])}{more}: {reason}")
    return "; ".join(parts)


def not_ready(nodes: Sequence[Node], waited_s: float) -> NotReady:
    """Return the error that names the nodes without an answer in time."""
    return NotReady(
        Problem(
            "nodes-missing",
            f"{len(nodes)} node{'s' if len(nodes) > 1 else ''} did not answer within {waited_s:g} s: "
            f"{describe_nodes(nodes)}",
            "the nodes of this job",
            "start the same command on them with the same token, correct the host list, or wait longer: "
            "--roll-call-timeout S",
        )
    )


def other_version(node: Node, version: str) -> Problem:
    what = f"{node.host} has launcher {quote(version, 40)}, this node {__version__}"
    return Problem("other-version", what, "the nodes of this job", SAME_IMAGE)


def same_node(one: str, other: str, name: str) -> Problem:
    return Problem(
        "same-node",
        f"{one} and {other} are the same node, {quote(name, 64)}",
        "the hosts of the job",
        "name each node once; or check what the name resolves to on the head (getent hosts)",
    )
