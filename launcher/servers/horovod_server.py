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
    del sys.path[0]  # this folder, not one of the user's
    # Python's own modules before those of PYTHONPATH
    home = os.path.dirname(os.__file__)
    sys.path.sort(key=lambda folder: folder != home and not folder.endswith("/lib-dynload"))

import collections
import errno
import io
import logging
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
LENGTH_DIGITS = 12
HEAD_BYTES = 1 << 14
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
    server.daemon_threads = True
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
    bounded = _bound_server(server, total_bytes, max(REQUESTS_LEAST, 2 * ranks))
    made = bounded((addresses[0], port), _bound_handler(handler, slots, value_bytes), 0)
    for address in addresses[1:]:
        made.add(address)
    return made


def _bound_handler(handler: Any, slots: str, value_bytes: int) -> Any:
    """Return Horovod's handler class, limited to values of a size that a rank could send."""

    class Handler(handler):  # type: ignore[misc]
        """Horovod's handler, which also answers for `KEY` and refuses larger values."""

        def setup(self) -> None:
            """Read at most `HEAD_BYTES` and what `do_PUT` allows, within `REQUEST_S`."""
            super().setup()
            self.bounded = Bounded(self.connection)
            self.rfile = io.BufferedReader(self.bounded)

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
            plain = length.isascii() and length.isdecimal() and len(length) <= LENGTH_DIGITS
            self.bounded.left += int(length) if plain and int(length) <= value_bytes else 0
            if plain and int(length) <= value_bytes and self.server.admit(len(self.path) + int(length)):
                super().do_PUT()
            else:
                self.close_connection = True
                self.send_status_code(413)

    return Handler


class Bounded(io.RawIOBase):
    """Reads a connection up to a number of bytes and a time.

    Attributes:
        left: Bytes that are left to read.
    """

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self.left, self._connection, self._until = HEAD_BYTES, connection, time.monotonic() + REQUEST_S

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read once; raise an OSError, which ends the request, if a limit is reached."""
        left_s = self._until - time.monotonic()
        if self.left <= 0 or left_s <= 0:
            raise OSError(errno.EMSGSIZE, "the request is too long")
        self._connection.settimeout(left_s)
        size = self._connection.recv_into(buffer, min(len(buffer), self.left))
        self.left -= size
        return size


def _bound_server(server: Any, total_bytes: int, requests_max: int) -> Any:
    """Return Horovod's server class, limited to ``total_bytes`` of stored values, and in its requests."""

    class Server(server):  # type: ignore[misc]
        """Horovod's server at several addresses, with a limit, and silent about broken connections."""

        kept_bytes = 0
        open: Any = None
        """The connections by their handlers, the oldest first."""

        def server_bind(self) -> None:
            """Bind the first address, without the name lookup of http.server."""
            socketserver.TCPServer.server_bind(self)
            self.server_name, self.server_port = self.server_address
            self.listening = {self.socket.fileno(): self.socket}
            self.ready = select.epoll()
            self.ready.register(self.socket.fileno(), select.EPOLLIN)

        def add(self, address: str) -> None:
            """Listen at another address, on the same port."""
            more = socket.create_server((address, self.server_port), backlog=self.request_queue_size)
            self.listening[more.fileno()] = more
            self.ready.register(more.fileno(), select.EPOLLIN)

        def fileno(self) -> int:
            """Return a descriptor that is readable when a connection waits at any of the addresses."""
            return self.ready.fileno()

        def get_request(self) -> Any:
            """Return a connection; without one raise an OSError, at which socketserver continues."""
            for number, _ in self.ready.poll(0, 1):
                return self.listening[number].accept()
            raise BlockingIOError

        def process_request(self, request: Any, client_address: Any) -> None:
            """Serve a connection; if there are too many, first end the oldest of the busiest address.

            All addresses are IPv4 here; see `launcher.core.budget.network_of` for others.
            """
            with self.cache_lock:
                self.open = self.open or {}
                if len(self.open) >= requests_max:
                    held = collections.Counter(address for _, address in self.open.values())
                    busiest = held.most_common(1)[0][0]
                    oldest = next(key for key, (_, address) in self.open.items() if address == busiest)
                    end(self.open.pop(oldest)[0])
                self.open[id(request)] = (request, client_address[0])
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            """Close a connection."""
            with self.cache_lock:
                self.open.pop(id(request), None)
            super().shutdown_request(request)

        def admit(self, size_bytes: int) -> bool:
            """Whether there is room for an entry; when full, count again without the dropped entries."""
            cost = size_bytes + ENTRY_BYTES
            with self.cache_lock:
                if self.kept_bytes + cost > total_bytes:
                    self.kept_bytes = _measure(self.cache)
                fits = self.kept_bytes + cost <= total_bytes
                self.kept_bytes += cost if fits else 0
                return fits

        def handle_error(self, request: object, client_address: object) -> None:
            """Print nothing: socketserver would print a traceback for every broken connection."""

    return Server


def end(connection: socket.socket) -> None:
    """End a connection that another thread reads."""
    try:  # noqa: SIM105
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has ended


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
