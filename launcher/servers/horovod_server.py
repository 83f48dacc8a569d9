"""Serves the rendezvous of one Horovod job: Horovod's own server, on a known port.

It runs as a file in the Python that has Horovod (``python horovod_server.py PORT node0:2,node1:2
ADDRESS,...``), until SIGTERM. Horovod's ``RendezvousServer`` listens at all addresses on a random port, which
no rank could know. The HTTP server in it takes a given port and address, and here a second address, if ranks
of this node and those of other nodes use different ones. The protocol is not authenticated.

It needs Python 3.8 or newer, and imports nothing of the launcher.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    del sys.path[0]  # this directory, not one of the user's
    # Python's own modules before those of PYTHONPATH
    home = os.path.dirname(os.__file__)
    sys.path.sort(key=lambda folder: folder != home and not folder.endswith("/lib-dynload"))

import errno
import io
import logging
import re
import select
import signal
import socket
import socketserver
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

SCOPE, KEY = "launcher", "job"
"""Scope and key at which ranks check that this is their job's server; Horovod never uses this scope."""
PEER_BYTES = 256
"""Bytes of a value for each rank. A rank needs 136 for each other one: the address where it waits for it."""
VALUE_LEAST_BYTES = 1 << 16
TOTAL_LEAST_BYTES = 1 << 24
EXCHANGES = 2
"""Number of exchanges between all ranks that must fit before finished ones are dropped."""
END_OF_HEAD = re.compile(rb"\n\r?\n")
LENGTH = re.compile(rb"\ncontent-length: *([0-9]{1,12})\r?\n", re.IGNORECASE)
HEAD_BYTES = 1 << 14
READ_BYTES = 1 << 16
AT_ONCE, TICK_S = 64, 0.5
REQUEST_S = 30.0
"""Seconds that a whole request may take."""
REQUESTS_LEAST = 256
"""Number of requests at a time; a large job may have two for each rank."""
ENTRY_BYTES = 256
"""Bytes of an entry besides its name and its value."""
EXIT_MISSING, EXIT_NOT_READY = 69, 75


def main(port: int, slots: str, addresses: Sequence[str]) -> int:
    """Serve until a signal ends this process; return an exit status if that fails."""
    # With Python's own handler, a signal in the middle of an answer would end with a traceback
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    except ImportError as error:
        what = f"{sys.executable} cannot import horovod.runner ({error})"
        fix = "install horovod for the Python of the command, or name the Python that has it"
        return problem("horovod-missing", what, fix, EXIT_MISSING)
    logging.disable()  # Horovod logs requests as they were sent
    try:
        server = make_server(RendezvousHTTPServer, RendezvousHandler, port, slots, addresses)
    except OSError as error:
        state = "taken" if error.errno == errno.EADDRINUSE else "not available"
        what = f"port {port} of this node is {state} at {', '.join(addresses)} ({error.strerror})"
        fix = "--master-port N on every node (the rendezvous is at N + 1), or HOROVOD_GLOO_RENDEZVOUS_PORT"
        return problem("horovod-port", what, fix, EXIT_NOT_READY)
    hosts = parse_hosts(slots)
    server.init(get_host_assignments(hosts, sum(host.slots for host in hosts)))
    server.serve_forever()
    return 0


def make_server(server: Any, handler: Any, port: int, slots: str, addresses: Sequence[str]) -> Any:
    """Return Horovod's server with limits: connections from outside can neither fill it nor make it print.

    Args:
        server: Horovod's class of the server.
        handler: Horovod's class of the request handler.
        port: Port to listen on.
        slots: The nodes of the job and their processes, which answer a request for `KEY`.
        addresses: One or more IPv4 addresses of this node to listen at.

    Raises:
        OSError: The port is not available.
    """
    ranks = sum(int(node.rpartition(":")[2]) for node in slots.split(","))
    value_bytes = max(VALUE_LEAST_BYTES, ranks * PEER_BYTES)
    total_bytes = max(TOTAL_LEAST_BYTES, EXCHANGES * ranks * value_bytes)
    bounded = _bound_server(server, total_bytes, value_bytes, max(REQUESTS_LEAST, 2 * ranks))
    made = bounded((addresses[0], port), _bound_handler(handler, slots), 0)
    for address in addresses[1:]:
        made.add(address)
    return made


def _bound_handler(handler: Any, slots: str) -> Any:
    """Return Horovod's handler class, which reads a whole request from memory."""

    class RendezvousHandler(handler):  # type: ignore[misc]
        """Horovod's handler, which also answers for `KEY` and refuses larger values."""

        def setup(self) -> None:
            """Read the request, which is here as a whole, and keep the answer."""
            self.rfile, self.wfile = io.BytesIO(self.request), io.BytesIO()

        def finish(self) -> None:
            """Keep the answer."""

        def do_GET(self) -> None:  # noqa: N802 - as http.server calls it
            """Answer with the requested value."""
            if self.path == f"/{SCOPE}/{KEY}":
                self.send_response(200)
                self.send_header("Content-Length", str(len(slots)))
                self.end_headers()
                self.wfile.write(slots.encode("ascii"))
            else:
                super().do_GET()

        def do_HEAD(self) -> None:  # noqa: N802 - as http.server calls it
            """Refuse: http.server would answer about files of the working directory."""
            self.send_error(501)

        def do_PUT(self) -> None:  # noqa: N802 - as http.server calls it
            """Store a value, or answer 413 if it is too large or there is no room."""
            length = self.headers.get("Content-Length", "")
            here = str(len(self.request) - self.rfile.tell())
            if length == here and self.server.admit(len(self.path) + int(length)):
                super().do_PUT()
            else:
                self.send_status_code(413)

    return RendezvousHandler


class RendezvousRequest:
    """A connection, with what has arrived of its one request, or what is left of the answer.

    Attributes:
        wanted: Bytes of the whole request; 0 while its head is not there.
    """

    def __init__(self, connection: socket.socket, address: str) -> None:
        self.connection, self.address = connection, address
        self.until = time.monotonic() + REQUEST_S
        self.data = bytearray()
        self.wanted = 0
        self.answer = memoryview(b"")

    def is_whole(self, value_bytes: int) -> bool:
        """Whether the request is complete, or can only be refused; its value is too large then.

        Raises:
            OSError: Its head is too long.
        """
        if not self.wanted:
            ends = END_OF_HEAD.search(self.data)
            if not ends and len(self.data) > HEAD_BYTES:
                raise OSError(errno.EMSGSIZE, "the head is too long")
            if not ends:
                return False
            length = LENGTH.search(self.data, 0, ends.end())
            size = int(length[1]) if length else 0
            self.wanted = ends.end() + (size if size <= value_bytes else 0)
        return len(self.data) >= self.wanted


def _bound_server(server: Any, total_bytes: int, value_bytes: int, requests_max: int) -> Any:
    """Return Horovod's server class, limited to ``total_bytes`` of stored values, and in its requests."""

    class RendezvousServer(server):  # type: ignore[misc]
        """Horovod's server at several addresses, in one thread, which waits for no connection.

        A connection costs a socket until its request is here as a whole: a thread for each would make the
        others wait in the kernel's queue.
        """

        request_queue_size = requests_max
        kept_bytes = 0

        def server_bind(self) -> None:
            """Bind the first address, without the name lookup of http.server."""
            socketserver.TCPServer.server_bind(self)
            self.server_name, self.server_port = self.server_address
            self.listening: dict[int, socket.socket] = {}
            self.requests: dict[int, RendezvousRequest] = {}
            self.held: dict[str, dict[int, RendezvousRequest]] = {}
            self.ready = select.epoll()
            self.listen_to(self.socket)

        def add(self, address: str) -> None:
            """Listen at another address, on the same port."""
            self.listen_to(socket.create_server((address, self.server_port), backlog=self.request_queue_size))

        def listen_to(self, listening: socket.socket) -> None:
            """Accept connections from a socket."""
            listening.setblocking(False)
            self.listening[listening.fileno()] = listening
            self.ready.register(listening.fileno(), select.EPOLLIN)

        def serve_forever(self, poll_interval: float = TICK_S) -> None:
            """Serve until a signal ends this process."""
            while True:
                self.turn(poll_interval)

        def turn(self, wait_s: float) -> None:
            """Handle what has arrived; end what has taken too long."""
            for number, _ in self.ready.poll(wait_s, AT_ONCE):
                if number in self.listening:
                    self.accept(self.listening[number])
                elif number in self.requests:
                    self.go_on(self.requests[number])
            now = time.monotonic()
            while self.requests and now > (oldest := next(iter(self.requests.values()))).until:
                self.end(oldest)

        def accept(self, listening: socket.socket) -> None:
            """Take the connections that wait; if there are too many, end the oldest of the busiest address.

            All addresses are IPv4 here; see `launcher.core.budget.network_of` for others.
            """
            for _ in range(AT_ONCE):
                try:
                    connection, (address, _) = listening.accept()
                except OSError as error:
                    if error.errno in (errno.EMFILE, errno.ENFILE):
                        self.make_room()
                    return
                if len(self.requests) >= requests_max:
                    self.make_room()
                connection.setblocking(False)
                request = RendezvousRequest(connection, address)
                self.requests[connection.fileno()] = request
                self.held.setdefault(address, {})[connection.fileno()] = request
                self.ready.register(connection.fileno(), select.EPOLLIN)
                self.go_on(request)

        def make_room(self) -> None:
            """End the oldest connection of the busiest address."""
            if self.held:
                self.end(next(iter(max(self.held.values(), key=len).values())))
            else:
                time.sleep(TICK_S)  # others have all descriptors

        def go_on(self, request: RendezvousRequest) -> None:
            """Read what there is of a request, and answer it when it is whole."""
            try:
                if not request.answer:
                    data = request.connection.recv(READ_BYTES)
                    request.data += data
                    if not request.is_whole(value_bytes) and data:
                        return
                    request.answer = memoryview(self.answer(request))
                    self.ready.modify(request.connection.fileno(), select.EPOLLOUT)
                request.answer = request.answer[request.connection.send(request.answer) :]
                if not request.answer:
                    self.end(request)
            except BlockingIOError:
                pass
            except Exception:
                self.end(request)

        def answer(self, request: RendezvousRequest) -> bytes:
            """Return the answer to a whole request."""
            handler = self.RequestHandlerClass(bytes(request.data), (request.address, 0), self)
            return bytes(handler.wfile.getvalue())

        def end(self, request: RendezvousRequest) -> None:
            """Close a connection."""
            number = request.connection.fileno()
            del self.requests[number], self.held[request.address][number]
            if not self.held[request.address]:
                del self.held[request.address]
            request.connection.close()

        def admit(self, size_bytes: int) -> bool:
            """Whether there is room for an entry; when full, count again without the dropped entries."""
            cost = size_bytes + ENTRY_BYTES
            if self.kept_bytes + cost > total_bytes:
                self.kept_bytes = _measure(self.cache)
            fits = self.kept_bytes + cost <= total_bytes
            self.kept_bytes += cost if fits else 0
            return fits

    return RendezvousServer


def _measure(cache: Any) -> int:
    """Return the bytes that all values take; ``cache`` has them by scope and key."""
    return sum(
        len(scope) + len(key) + len(value) + ENTRY_BYTES
        for scope, values in cache.items()
        for key, value in values.items()
    )


def problem(code: str, what: str, fix: str, status: int) -> int:
    """Print a problem; return the exit status."""
    sys.stderr.write(
        f"launcher: error: [{code}] {what}\nlauncher:   from: Horovod's rendezvous server\n"
        f"launcher:   fix:  {fix}\n"
    )
    return status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")))
