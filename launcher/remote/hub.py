"""Programs that run on other nodes for clients of node 0.

A client (`launcher.remote.rsh`) connects to a socket in a private directory and names a host. Its streams are
passed on to that node and back.
"""

from __future__ import annotations

import os
import socket
from collections import defaultdict

from launcher.channel.connection import Connection, Listener, read_peer
from launcher.channel.frames import FRAME_LIMIT_BYTES
from launcher.channel.lines import WELCOME_LIMIT_BYTES, Lines, encode
from launcher.core.frozen import frozen, replace
from launcher.core.wire import Garbled, pack, parse, unpack
from launcher.remote import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.core.log import Say
    from launcher.process.loop import Loop


@frozen
class Gate:
    """How the nodes and the clients of a job reach node 0, and what the nodes are called.

    Attributes:
        hosts: The nodes' names or addresses, by rank.
        addresses: Their addresses, as far as they can be resolved.
        own: Further names of this node.
        path: Path of the socket for clients.
        key: Key of the job.
        listening: Listens for the other nodes.
        export: Shell text before each command line.
    """

    hosts: tuple[str, ...]
    addresses: tuple[str, ...]
    own: tuple[str, ...]
    path: str
    key: bytes
    listening: socket.socket
    export: str = ""

    def find(self, name: str) -> int | None:
        """Return the rank of the node with this name or address."""
        for names in (self.hosts, self.addresses):
            if name in names:
                return names.index(name)
        return None


class Hub:
    """The programs on other nodes, and their clients.

    Attributes:
        clients: Accepts clients; a timer of the loop.
    """

    def __init__(
        self,
        gate: Gate,
        loop: Loop,
        say: Say,
        send: Callable[[int, object], object],
        find_silence: Callable[[int], str],
    ) -> None:
        """Begin to accept clients.

        Args:
            gate: Where they connect, and the names of the nodes.
            loop: Waits for all sockets.
            say: Prints a message in the log.
            send: Sends a node a message, by its rank.
            find_silence: Returns why a node cannot be reached, by its rank; empty if it can.
        """
        self._gate, self._loop, self._send, self._find_silence = gate, loop, send, find_silence
        self._programs: dict[int, dict[int, Connection]] = defaultdict(dict)
        """The client of each program by number, for each node."""
        self._count = 0
        server = socket.socket(socket.AF_UNIX)
        server.bind(gate.path)
        server.listen(512)
        self.clients = Listener(server, loop, self._take, say=say)

    # --- nodes

    def lose(self, index: int, why: str) -> None:
        """End the clients of a node whose connection has ended."""
        for client in list(self._programs.pop(index, {}).values()):
            what = f"the connection to {self._gate.hosts[index]} is lost: {why}"
            _send_last(client, protocol.ProgramEnded(0, protocol.NOT_REACHED, what))

    def hear(
        self, index: int, message: protocol.StreamData | protocol.StreamTaken | protocol.ProgramEnded
    ) -> None:
        """Pass on to its client what a node has sent of a program."""
        clients = self._programs[index]
        if message.number not in clients:
            return
        passed = replace(message, number=0)
        if isinstance(message, protocol.ProgramEnded):
            _send_last(clients.pop(message.number), passed)
        else:
            clients[message.number].send(pack(passed))

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
            lambda packed: self._ask(client, parse(protocol.AskProgram, packed)),
            lambda why: None,
            protocol.UNSENT_LIMIT_BYTES,
        )

    def _ask(self, client: Connection, ask: protocol.AskProgram) -> None:
        """Start the program that a client asks for."""
        index = self._gate.find(ask.host)
        if index == 0 or ask.host in self._gate.own:
            _send_last(client, protocol.RunHere())
            return
        if index is None:
            why = f"no node of this job is called {ask.host}: {', '.join(self._gate.hosts[:20])}"
        else:
            silence = self._find_silence(index)
            why = f"node {index} ({ask.host}): {silence}" if silence else ""
        run = protocol.RunProgram(self._count + 1, self._gate.export + ask.line)
        size = len(encode(pack(run)))
        if not why and size > FRAME_LIMIT_BYTES:
            why = f"a command line of {size} bytes as a message, expected {FRAME_LIMIT_BYTES} at most"
        if why or index is None:
            _send_last(client, protocol.ProgramEnded(0, protocol.NOT_REACHED, why))
            return
        self._count = number = run.number
        node = index
        client.send(pack(protocol.RunThere()))
        self._programs[node][number] = client
        client.redirect(lambda packed: self._feed(node, number, packed), lambda _: self._leave(node, number))
        self._send(node, run)

    def _feed(self, node: int, number: int, packed: Mapping[str, object]) -> None:
        """Pass on a client's standard input, and how much of the output it has taken.

        Raises:
            Garbled: The message is invalid.
        """
        message = unpack(packed, protocol.FROM_CLIENT)
        if (
            isinstance(message, protocol.StreamData)
            and len(protocol.decode_data(message.data)) > protocol.CHUNK_BYTES
        ):
            raise Garbled("more data than a message may have")
        self._send(node, replace(message, number=number))

    def _leave(self, node: int, number: int) -> None:
        """End a program whose client is gone."""
        if self._programs[node].pop(number, None) is not None:
            self._send(node, protocol.EndProgram(number))

    def close(self) -> None:
        """Stop accepting clients, and close the present ones."""
        self.clients.close()
        for index in list(self._programs):
            self.lose(index, "the job is over")


def _send_last(client: Connection, message: object) -> None:
    """Send a client its last message."""
    client.send(pack(message))
    client.finish()
