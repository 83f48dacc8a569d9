"""Serve the rendezvous of one Horovod job: Horovod's own server, on a port that is agreed on.

Run as a file by the Python that has Horovod (``python horovod_server.py PORT node0:2,node1:2 ADDRESS,...``),
until SIGTERM. Horovod's ``RendezvousServer`` takes a port at random, which no rank could know without asking,
at all addresses; the HTTP server inside of it takes the port and the address that it is told, and a second
address where ranks of this node and of others ask at different ones. Its protocol has no key.

Python 3.8 and newer; nothing of the launcher is imported.
"""

from __future__ import annotations

import errno
import logging
import select
import signal
import socket
import socketserver
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

SCOPE, KEY = "launcher", "job"
"""Where ranks look whether this is their job's server: a scope that Horovod never uses."""
PEER_BYTES = 256
"""More than a rank has to tell each of the others: 136 bytes, the address where it waits for that one."""
VALUE_LEAST_BYTES = 1 << 16
TOTAL_LEAST_BYTES = 1 << 24
EXCHANGES = 2
"""How many times all ranks may tell all others something, before what is finished with is dropped."""
LENGTH_DIGITS = 12
ENTRY_BYTES = 256
"""What an entry takes besides its name and its value."""
EXIT_MISSING, EXIT_NOT_READY = 69, 75


def main(port: int, slots: str, addresses: Sequence[str]) -> int:
    """Serve until told to end; return an exit status."""
    # By default a signal would find Python in the middle of an answer, and end it with a traceback
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    except ImportError as error:
        what = f"{sys.executable} cannot import horovod.runner ({error})"
        fix = "install horovod for the Python of the command, or name the Python that has it"
        return problem("horovod-missing", what, fix, EXIT_MISSING)
    logging.disable()  # Horovod writes down what is asked, as it was sent
    try:
        server = make_server(RendezvousHTTPServer, RendezvousHandler, port, slots, addresses)
    except OSError as error:
        state = "taken" if error.errno == errno.EADDRINUSE else "not to be had"
        what = f"port {port} of this node is {state} at {', '.join(addresses)} ({error.strerror})"
        fix = "--master-port N on every node (the rendezvous is at N + 1), or HOROVOD_GLOO_RENDEZVOUS_PORT"
        return problem("horovod-port", what, fix, EXIT_NOT_READY)
    hosts = parse_hosts(slots)
    server.daemon_threads = True
    server.init(get_host_assignments(hosts, sum(host.slots for host in hosts)))
    server.serve_forever()
    return 0


def make_server(server: Any, handler: Any, port: int, slots: str, addresses: Sequence[str]) -> Any:
    """Return Horovod's server, which connections from outside can neither fill nor make talk.

    Args:
        server: Horovod's server, a class.
        handler: Horovod's handler of requests, a class.
        port: Where to listen.
        slots: The nodes of the job, which is the answer to a request for `KEY`.
        addresses: Where to listen, IPv4 addresses of this node: one or more.

    Raises:
        OSError: The port is not to be had.
    """
    ranks = sum(int(node.rpartition(":")[2]) for node in slots.split(","))
    value_bytes = max(VALUE_LEAST_BYTES, ranks * PEER_BYTES)
    total_bytes = max(TOTAL_LEAST_BYTES, EXCHANGES * ranks * value_bytes)
    bounded = _bound_server(server, total_bytes)
    made = bounded((addresses[0], port), _bound_handler(handler, slots, value_bytes), 0)
    for address in addresses[1:]:
        made.add(address)
    return made


def _bound_handler(handler: Any, slots: str, value_bytes: int) -> Any:
    """Return Horovod's handler, for requests that a rank could send: with values of a size at most."""

    class Handler(handler):  # type: ignore[misc]
        """Horovod's, for requests that a rank could send."""

        def do_GET(self) -> None:  # noqa: N802 - as http.server calls it
            """Answer with a value."""
            if self.path == f"/{SCOPE}/{KEY}":
                self.send_response(200)
                self.send_header("Content-Length", str(len(slots)))
                self.end_headers()
                self.wfile.write(slots.encode("ascii"))
            else:
                super().do_GET()

        def do_PUT(self) -> None:  # noqa: N802 - as http.server calls it
            """Take a value."""
            length = self.headers.get("Content-Length", "")
            plain = length.isascii() and length.isdecimal() and len(length) <= LENGTH_DIGITS
            if plain and int(length) <= value_bytes and self.server.admit(len(self.path) + int(length)):
                super().do_PUT()
            else:
                self.close_connection = True
                self.send_status_code(413)

    return Handler


def _bound_server(server: Any, total_bytes: int) -> Any:
    """Return Horovod's server, which keeps so much at most."""

    class Server(server):  # type: ignore[misc]
        """Horovod's, in silence about requests that no rank has sent, and with an end to what it keeps."""

        kept_bytes = 0

        def server_bind(self) -> None:
            """Take an address, without http.server's question to name servers what it is called."""
            socketserver.TCPServer.server_bind(self)
            self.server_name, self.server_port = self.server_address
            self.listening = {self.socket.fileno(): self.socket}
            self.ready = select.epoll()
            self.ready.register(self.socket.fileno(), select.EPOLLIN)

        def add(self, address: str) -> None:
            """Listen at one more address."""
            more = socket.create_server((address, self.server_port), backlog=self.request_queue_size)
            self.listening[more.fileno()] = more
            self.ready.register(more.fileno(), select.EPOLLIN)

        def fileno(self) -> int:
            """Return what is readable when a connection waits at any of the addresses."""
            return self.ready.fileno()

        def get_request(self) -> Any:
            """Return a connection; socketserver goes on where an OSError says that there is none."""
            for number, _ in self.ready.poll(0, 1):
                return self.listening[number].accept()
            raise BlockingIOError

        def admit(self, size_bytes: int) -> bool:
            """Whether an entry of a size may come in; when full, what was dropped is counted out."""
            cost = size_bytes + ENTRY_BYTES
            with self.cache_lock:
                if self.kept_bytes + cost > total_bytes:
                    self.kept_bytes = _measure(self.cache)
                fits = self.kept_bytes + cost <= total_bytes
                self.kept_bytes += cost if fits else 0
                return fits

        def handle_error(self, request: object, client_address: object) -> None:
            """Say nothing: socketserver would print a traceback for every connection that breaks."""

    return Server


def _measure(cache: Any) -> int:
    """Return what a server's values take, by scope and key."""
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
    del sys.path[0]  # this folder, and not one of the user's
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")))
