"""Head-side manager of the sessions on all nodes: starts them, and exchanges messages with them.

A node is first missing, then ready, then gone. We hold its session by a child process: ssh, or on our own
node the session itself. When the child closes its output, the node is lost.
"""

from __future__ import annotations

import os
import time

from launcher.channel import lines
from launcher.channel.connection import NO_MESSAGE, READ_BYTES, Connection
from launcher.core.errors import EnvironmentUntrusted, LauncherError, NotReady
from launcher.core.messages import pack, unpack
from launcher.core.redact import printable, redact
from launcher.core.signal import signal
from launcher.core.version import __version__
from launcher.mpi.messages import FROM_SESSION, Cleared, JobOver, Leaving, NodeTold, SessionReady, Taken
from launcher.mpi.node import Line, Node, describe_nodes, join_reasons
from launcher.mpi.refusals import no_program, other_version, same_node
from launcher.remote import rsh
from launcher.remote.pipes import Pipes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.core.log import Say
    from launcher.mpi.messages import Briefing
    from launcher.process.loop import Loop
    from launcher.process.signals import SignalFile
    from launcher.remote.hub import Hub

RETRY_S = 1.0
SAY_EVERY_S = 15.0
COLLECT_S = 1.0
STDERR_BYTES = 4096
LEFT = "the last attempt has not ended there"


class Sessions:
    """All nodes of a job, and their sessions.

    Attributes:
        nodes: The nodes, by node rank.
        due: When `fire` has something to do.
        refused: Error if the job cannot be started with these nodes.
        has_begun: Whether an attempt runs. Otherwise a session that ends is started again.
    """

    def __init__(
        self,
        places: Sequence[Line],
        hub: Hub | None,
        brief: Callable[[int], Briefing],
        loop: Loop,
        watched: SignalFile,
        environ: Mapping[str, str],
        say: Say,
        hear: Callable[[Node, object], None],
        lose: Callable[[Node], None],
    ) -> None:
        self.nodes = [Node(index, line) for index, line in enumerate(places)]
        self._hub = hub
        self.due: float | None = 0.0
        self._brief, self._loop, self._watched, self._environ = brief, loop, watched, environ
        self._say, self._hear_message, self._lose = say, hear, lose
        self._said_at = time.monotonic()
        self._closing = False
        self.has_begun = False
        self._opened: set[int] = set()
        self.refused: LauncherError | None = None

    def pids(self) -> tuple[int, ...]:
        """Return the PIDs of the processes that hold the sessions; they are not the job's processes."""
        return tuple(self._sessions())

    def _sessions(self) -> list[int]:
        return [node.pid for node in self.nodes if node.pid is not None]

    def missing(self) -> list[Node]:
        """Return the nodes that are not ready for an attempt."""
        return [node for node in self.nodes if not (node.is_ready and node.is_clear)]

    def tell(self, message: object) -> None:
        """Send a message to all sessions."""
        packed = pack(message)
        for node in self.nodes:
            if node.connection is not None:
                node.connection.send(packed)

    # --- start

    def renew(self) -> None:
        """Prepare all nodes for another attempt: clear away the last one, and try lost nodes again."""
        self.has_begun, self._said_at = False, time.monotonic()
        for node in self.nodes:
            node.forget_ranks()
            node.is_clear = False
            if node.is_ready:
                self._send_briefing(node)
            else:
                node.retry_at = self._said_at
        self.due = self._said_at

    def fire(self, now: float) -> None:
        """Retry the nodes that failed, and print which nodes are missing."""
        for node in self.nodes:
            if node.retry_at is not None and node.retry_at <= now:
                node.retry_at = None
                self._reach(node)
        missing = self.missing()
        if missing and not self._closing and now >= self._said_at + SAY_EVERY_S:
            self._said_at = now
            self._say(
                f"waiting for {len(missing)} of {len(self.nodes)} nodes: {describe_nodes(missing)}", "waiting"
            )
        retries = [node.retry_at for node in self.nodes if node.retry_at is not None]
        words = [self._said_at + SAY_EVERY_S] if missing and not self._closing else []
        self.due = min([*retries, *words], default=None)

    def _reach(self, node: Node) -> None:
        """Start the session of a node that has joined; the others are tried when they do."""
        node.errors = b""
        if not node.index or self._hub is None or self._hub.has(node.index):
            self._open(node)
        else:
            node.reason = join_reasons(node.reason, self._hub.why(node.index))

    def note_joined(self, index: int) -> None:
        """Start the session of a node, because its launcher has joined."""
        node = self.nodes[index]
        if node.pid is None and not self.has_begun and not self._closing:
            self.due = node.retry_at = time.monotonic()

    def _open(self, node: Node) -> None:
        """Start the session of a node."""
        try:
            # The session of our own node cleans up after us. Those of other nodes see their connection end.
            process = Pipes(node.line.argv, self._environ, self._watched.reset, outlives=not node.index)
        except OSError as error:
            self.refused = self.refused or NotReady(no_program(node.line.argv[0], error))
            return
        node.pid = process.pid
        self._opened.add(process.pid)
        node.stderr, node.why_ending = process.stderr, ""
        self._loop.add(node.stderr, lambda: self._read_errors(node))
        node.connection = Connection(
            (process.stdout, process.stdin),
            lines.Lines(),
            self._loop,
            lambda packed: self._on_message(node, packed),
            lambda why: self._end(node, why),
            lines.WELCOME_LIMIT_BYTES,
        )

    def _read_errors(self, node: Node) -> None:
        try:
            data = os.read(node.stderr, READ_BYTES)
        except BlockingIOError:
            return
        node.errors = (node.errors + data)[-STDERR_BYTES:]
        if not data:
            self._loop.remove(node.stderr)

    def _on_message(self, node: Node, packed: Mapping[str, object]) -> None:
        """Handle a message from a session.

        Raises:
            Garbled: The message is invalid.
        """
        message = unpack(packed, FROM_SESSION)
        self._loop.guard(lambda: self._hear(node, message))

    def _hear(self, node: Node, message: object) -> None:
        match message:
            case SessionReady():
                self._greet(node, message)
            case Taken():
                self._note_taken(node, message.node)
            case Leaving():
                node.why_ending = message.why
            case Cleared():
                node.is_clear, node.reason = True, ""
            case _ if node.is_clear or isinstance(message, NodeTold):
                self._hear_message(node, message)

    def _note_taken(self, node: Node, name: str) -> None:
        """Note that the node has a session already: under another host name, or one that we have lost."""
        node.why_ending = "this node already has a session of this job"
        for twin in self.nodes:
            if twin.is_ready and twin.name == name:
                self.refused = self.refused or EnvironmentUntrusted(
                    same_node(twin.host, node.host, twin.name)
                )

    def _greet(self, node: Node, ready: SessionReady) -> None:
        if ready.launcher != __version__:
            self.refused = self.refused or EnvironmentUntrusted(other_version(node, ready.launcher))
            return
        if node.is_gone:
            self._say(f"{node.name_in_full} is back", "node-back")
        node.is_ready, node.is_gone, node.reason, node.name = True, False, "", ready.node
        self._send_briefing(node)

    def _send_briefing(self, node: Node) -> None:
        """Tell a node the facts about the next attempt; before the first, there is nothing to clear away."""
        briefing = self._brief(node.index)
        node.is_clear = node.is_clear or not briefing.attempt
        node.reason = "" if node.is_clear else LEFT
        if node.connection is not None:
            node.connection.send(pack(briefing))

    def _end(self, node: Node, why: str) -> None:
        """Handle the end of a session: the node is lost if the job has begun, else it is tried again."""
        self._read_errors_left(node)
        if why.startswith(NO_MESSAGE):
            node.errors = f"its session {why}".encode()
        self._loop.remove(node.stderr)
        os.close(node.stderr)
        node.connection, node.stderr, node.pid = None, -1, None
        was_ready, node.is_ready, node.is_clear = node.is_ready, False, False
        self._note_failure(node)
        node.is_gone = node.is_gone or was_ready
        if self._closing or not was_ready:
            return
        if self.has_begun:
            node.retry_at = None
            self._lose(node)
        else:
            self._say(f"{node.name_in_full} is lost: {node.reason}", "node-lost")

    def _note_failure(self, node: Node) -> None:
        """Record why a node is not ready, and schedule another try."""
        words = node.errors.decode("utf-8", "replace").replace(rsh.WHO, "")
        reason = node.why_ending or (
            printable(redact(words.strip().splitlines()[-1])) if words.strip() else "its session has ended"
        )
        node.reason = join_reasons(node.reason, reason)
        if not self._closing:
            node.retry_at = time.monotonic() + RETRY_S
            self.due = min(node.retry_at, self.due or node.retry_at)

    def _read_errors_left(self, node: Node) -> None:
        if self._loop.watches(node.stderr):
            self._read_errors(node)

    # --- the end

    def close(self, status: int, wait_s: float) -> None:
        """Tell all sessions how the job ended, and wait for them to clean up and exit; then kill them."""
        self._closing = True
        self.tell(JobOver(status))
        for node in self.nodes:
            node.retry_at = None
            if node.connection is not None and not node.is_ready:  # still connecting
                node.send_signal(signal.SIGKILL)
        for node in self.nodes:
            node.send_signal(signal.SIGCONT)  # a stopped session could not read the message
        self._loop.turn_until(lambda: not self._sessions(), wait_s)
        for node in self.nodes:
            node.send_signal(signal.SIGKILL)
        self._collect(time.monotonic() + COLLECT_S)

    def _collect(self, deadline: float) -> None:
        """Reap our children until the deadline: PID 1 might not. All have ended, or are about to."""
        while self._opened and time.monotonic() < deadline:
            self._opened = {pid for pid in self._opened if not _has_ended(pid)}
            time.sleep(0.002 if self._opened else 0)


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # the agent has reaped it already
        return True
