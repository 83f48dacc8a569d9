"""Node 0's end: the nodes that have joined, and the programs that run there for clients of this node.

A client (`launcher.remote.rsh`) connects to a socket in a private folder and names a host. Its streams are
passed on to that node and back.
"""

from __future__ import annotations

import os
import socket
import time
from errno import ECONNRESET, EPIPE

from launcher.channel.acceptor import Acceptor
from launcher.channel.connection import CLOSED, Connection
from launcher.channel.frames import FRAME_LIMIT_BYTES
from launcher.channel.keys import at_port
from launcher.channel.lines import WELCOME_LIMIT_BYTES, Lines, encode
from launcher.channel.listener import Listener, read_peer
from launcher.cluster.join import Join
from launcher.cluster.messages import Beat, Busy, Welcome
from launcher.core.files import remove_file
from launcher.core.frozen import frozen
from launcher.core.wire import Garbled, pack, parse, unpack
from launcher.job.settings import QUIET_S, find_given_up_s
from launcher.remote.protocol import (
    CHUNK_BYTES,
    FROM_CLIENT,
    FROM_NODE,
    LOST_AFTER_S,
    NOT_REACHED,
    UNSENT_LIMIT_BYTES,
    AskProgram,
    EndProgram,
    ProgramEnded,
    RunHere,
    RunProgram,
    RunThere,
    StreamData,
    StreamTaken,
    decode_data,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.core.log import Say
    from launcher.process.loop import Loop

LOST_S = find_given_up_s(LOST_AFTER_S)
"""Seconds after the last message until a node counts as lost."""
NOT_YET = "its launcher has not joined"
IN_ITS_PLACE = "another launcher has joined in its place"
ENDED = (CLOSED, os.strerror(ECONNRESET), os.strerror(EPIPE))
"""Reasons of a loss that come from the node's kernel: its launcher has ended, or has given us up."""


@frozen
class Gate:
    """How the nodes and the clients of a job reach node 0, and what the nodes are called.

    Attributes:
        hosts: The nodes' names or addresses, by rank.
        addresses: Their addresses, as far as they can be resolved.
        own: Further names of this node.
        path: Path of the socket for clients.
        key: Key of the job.
        listening: Listens for the other nodes; None for a job of one node.
        export: Shell text before each command line.
    """

    hosts: tuple[str, ...]
    addresses: tuple[str, ...]
    own: tuple[str, ...]
    path: str
    key: bytes
    listening: socket.socket | None = None
    export: str = ""

    @property
    def port(self) -> int:
        """Port at which we listen; 0 for a job of one node."""
        return 0 if self.listening is None else int(self.listening.getsockname()[1])


class Node:
    """Another node: its connection, and the clients of its programs by number."""

    def __init__(self, index: int, name: str, session: str) -> None:
        self.index, self.name, self.session = index, name, session
        self.connection: Connection
        self.clients: dict[int, Connection] = {}
        self.heard_at = time.monotonic()


class Hub:
    """The nodes that have joined, and their programs.

    Attributes:
        due: When `fire` has something to do.
    """

    def __init__(
        self,
        gate: Gate,
        loop: Loop,
        say: Say,
        on_joined: Callable[[int, Join], None],
        on_lost: Callable[[int, str, bool], None] = lambda index, why, ended: None,
        on_message: Callable[[int, object], None] = lambda index, message: None,
        kinds: tuple[type, ...] = (),
    ) -> None:
        """Begin to accept nodes and clients.

        Args:
            gate: Where they connect, and their names.
            loop: Waits for all sockets.
            say: Prints a message in the log.
            on_joined: Called with the rank and the first message of each node that has joined.
            on_lost: Called with the rank of each that is lost, the reason, and whether its connection has
                ended; else its launcher may not know that it is lost.
            on_message: Called with the rank of a node and a message that is not about programs.
            kinds: The types of these messages.
        """
        self._gate, self._loop, self._on_joined = gate, loop, on_joined
        self._on_lost, self._on_message, self._kinds = on_lost, on_message, kinds
        self._nodes: dict[int, Node] = {}
        self._lost: dict[int, str] = {}
        self._count = 0
        self.due: float | None = time.monotonic() + 1.0
        self._acceptor: Acceptor | None = None
        if gate.listening is not None:
            self._acceptor = Acceptor(gate.listening, at_port(gate.key, gate.port), loop, say, self._admit)
        server = socket.socket(socket.AF_UNIX)
        server.bind(gate.path)
        server.listen(512)
        self._clients = Listener(server, loop, self._take, say=say)

    def has(self, index: int) -> bool:
        """Whether a node has joined, and is heard."""
        return index in self._nodes

    def why(self, index: int) -> str:
        """Return why a node is not there."""
        return self._lost.get(index, NOT_YET)

    @property
    def turned_away(self) -> Mapping[str, str]:
        """Why connections were turned away, by address."""
        return self._acceptor.turned_away.reasons() if self._acceptor is not None else {}

    @property
    def has_heard(self) -> bool:
        """Whether anything has connected, of the job or not."""
        return self._acceptor is not None and self._acceptor.has_heard

    # --- nodes

    def _admit(self, connection: Connection, address: str, packed: Mapping[str, object]) -> None:
        """Take a node that has the key.

        Raises:
            Garbled: It is no node of the job.
        """
        join, heard_ns = unpack(packed, (Join,)), time.monotonic_ns()
        assert isinstance(join, Join)  # noqa: S101 - there is no other kind
        index, host = join.rank, join.host or address
        if index is None:
            index = next(filter(None, map(self._find, (*join.addresses, address))), None)
        if not index or index >= len(self._gate.hosts):
            connection.send(pack(Busy(f"{host} is no other node of this job: {self._names()}")))
            raise Garbled("is no other node of this job")
        before = self._nodes.get(index)
        if before is not None and before.name != host and before.heard_at > time.monotonic() - QUIET_S:
            connection.send(pack(Busy(f"node {index} is {before.name} already, not {host}")))
            raise Garbled("has the rank of another node")
        if before is not None:
            self._lose(before, "it has joined again" if before.session == join.session else IN_ITS_PLACE)
        node = self._nodes[index] = Node(index, host, join.session)
        node.connection = connection
        connection.redirect(
            lambda message: self._hear(node, message), lambda why: self._lose(node, why), UNSENT_LIMIT_BYTES
        )
        self._lost.pop(index, None)
        connection.send(pack(Welcome(join.mono_ns, heard_ns, time.monotonic_ns())))
        self._on_joined(index, join)

    def send(self, index: int, message: object) -> None:
        """Send a node a message, if it is there."""
        node = self._nodes.get(index)
        if node is not None:
            node.connection.send(pack(message))

    def _names(self) -> str:
        return ", ".join(self._gate.hosts[:20])

    def _find(self, name: str) -> int | None:
        """Return the rank of the node with this name or address."""
        for names in (self._gate.hosts, self._gate.addresses):
            if name in names:
                return names.index(name)
        return None

    def _lose(self, node: Node, why: str) -> None:
        """Note that a node is gone, with all of its programs."""
        is_known = self._nodes.get(node.index) is node
        if is_known:
            del self._nodes[node.index]
            self._lost[node.index] = why
        node.connection.close()
        for client in list(node.clients.values()):
            client.send(pack(ProgramEnded(0, NOT_REACHED, f"the connection to {node.name} is lost: {why}")))
            client.finish()
        node.clients.clear()
        if is_known:
            self._on_lost(node.index, why, why in ENDED)

    def _hear(self, node: Node, packed: Mapping[str, object]) -> None:
        """Handle a message from a node.

        Raises:
            Garbled: The message is invalid.
        """
        node.heard_at = time.monotonic()
        message = unpack(packed, (Beat, *FROM_NODE, *self._kinds))
        if isinstance(message, self._kinds):
            self._loop.guard(lambda: self._on_message(node.index, message))
            return
        number = message.number if isinstance(message, (StreamData, StreamTaken, ProgramEnded)) else 0
        client = node.clients.get(number)
        match message:
            case Beat():
                node.connection.send(pack(message))
            case StreamData() if client is not None:
                client.send(pack(StreamData(0, message.stream, message.data)))
            case StreamTaken() if client is not None:
                client.send(pack(StreamTaken(0, message.stream, message.size)))
            case ProgramEnded() if client is not None:
                del node.clients[number]
                client.send(pack(ProgramEnded(0, message.status, message.why)))
                client.finish()

    # --- clients

    def _take(self, connected: socket.socket, _: str) -> None:
        uid = read_peer(connected)[1]
        if uid != os.geteuid():
            connected.close()
            return
        client = Connection(
            connected,
            Lines(WELCOME_LIMIT_BYTES),
            self._loop,
            lambda packed: self._ask(client, parse(AskProgram, packed)),
            lambda why: None,
            UNSENT_LIMIT_BYTES,
        )

    def _ask(self, client: Connection, ask: AskProgram) -> None:
        """Start the program that a client asks for."""
        index, why = self._find(ask.host), ""
        if index == 0 or ask.host in self._gate.own:
            client.send(pack(RunHere()))
            client.finish()
            return
        if index is None:
            why = f"no node of this job is called {ask.host}: {self._names()}"
        elif index not in self._nodes:
            why = f"node {index} ({ask.host}): {self.why(index)}"
        run = pack(RunProgram(self._count + 1, self._gate.export + ask.line))
        size = len(encode(run))
        if not why and size > FRAME_LIMIT_BYTES:
            why = f"a command line of {size} bytes as a message, expected {FRAME_LIMIT_BYTES} at most"
        if why or index is None:
            client.send(pack(ProgramEnded(0, NOT_REACHED, why)))
            client.finish()
            return
        node = self._nodes[index]
        self._count += 1
        number = self._count
        client.send(pack(RunThere()))
        node.clients[number] = client
        client.redirect(lambda packed: self._feed(node, number, packed), lambda _: self._leave(node, number))
        node.connection.send(run)

    def _feed(self, node: Node, number: int, packed: Mapping[str, object]) -> None:
        """Pass on a client's standard input, and how much of the output it has taken.

        Raises:
            Garbled: The message is invalid.
        """
        message = unpack(packed, FROM_CLIENT)
        if isinstance(message, StreamData):
            if len(decode_data(message.data)) > CHUNK_BYTES:
                raise Garbled("more data than a message may have")
            node.connection.send(pack(StreamData(number, 0, message.data)))
        elif isinstance(message, StreamTaken):
            node.connection.send(pack(StreamTaken(number, 1, message.size)))

    def _leave(self, node: Node, number: int) -> None:
        """End a program whose client is gone."""
        if node.clients.pop(number, None) is not None:
            node.connection.send(pack(EndProgram(number)))

    # --- time

    def fire(self, now: float) -> None:
        """Give up the nodes that have sent no heartbeat for too long."""
        self._clients.fire(now)
        dues = [now + 1.0, self._clients.due]
        if self._acceptor is not None:
            self._acceptor.look(now)
            dues.append(self._acceptor.due)
        self.due = min(due for due in dues if due is not None)
        for node in list(self._nodes.values()):
            if now > node.heard_at + LOST_S:
                self._lose(node, f"nothing was heard of it for {LOST_S:g} s")

    def close(self) -> None:
        """End all connections."""
        if self._acceptor is not None:
            self._acceptor.close()
        self._clients.close()
        for node in list(self._nodes.values()):
            self._lose(node, "the job is over")
        remove_file(self._gate.path)
