"""Serve the rendezvous of one Horovod job: Horovod's own server, on a port that is agreed on.

Run as a file by the Python that has Horovod (``python horovod_server.py PORT node0:2,node1:2``), until
SIGTERM. Horovod's ``RendezvousServer`` takes a port at random, which nobody could know without asking;
the HTTP server inside of it takes the one it is told.

Python 3.8 and newer; nothing of the launcher is imported.
"""

from __future__ import annotations

import errno
import logging
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCOPE, KEY = "launcher", "job"
"""Where ranks look whether this is their job's server: a scope that Horovod never uses."""
VALUE_BYTES = 1 << 24
"""More than a rank has to tell the others: its addresses, one for each of them."""
EXIT_MISSING, EXIT_NOT_READY = 69, 75


def main(port: int, slots: str) -> int:
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
        return _fail(EXIT_MISSING, "horovod-missing", what, fix)
    logging.disable()  # Horovod writes down what strangers ask, as they have sent it
    try:
        server = make_server(RendezvousHTTPServer, RendezvousHandler, port, slots)
    except OSError as error:
        state = "taken" if error.errno == errno.EADDRINUSE else "not to be had"
        what = f"port {port} of this node is {state} ({error.strerror})"
        fix = "--master-port N on every node (the rendezvous is at N + 1), or HOROVOD_GLOO_RENDEZVOUS_PORT"
        return _fail(EXIT_NOT_READY, "horovod-port", what, fix)
    hosts = parse_hosts(slots)
    server.daemon_threads = True
    server.init(get_host_assignments(hosts, sum(host.slots for host in hosts)))
    server.serve_forever()
    return 0


def make_server(server: Any, handler: Any, port: int, slots: str) -> Any:
    """Return Horovod's server, which strangers can neither fill nor make talk.

    Args:
        server: Horovod's server, a class.
        handler: Horovod's handler of requests, a class.
        port: Where to listen, at all addresses: the master's name may be one of a network beyond.
        slots: The nodes of the job, which is what whoever asks for `KEY` is told.

    Raises:
        OSError: The port is not to be had.
    """

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
            if length.isascii() and length.isdecimal() and int(length) <= VALUE_BYTES:
                super().do_PUT()
            else:
                self.close_connection = True
                self.send_status_code(413)

    class Server(server):  # type: ignore[misc]
        """Horovod's, in silence about requests that no rank has sent."""

        def handle_error(self, request: object, client_address: object) -> None:
            """Say nothing: socketserver would print a traceback for every connection that breaks."""

    return Server(("", port), Handler, 0)


def _fail(status: int, code: str, what: str, fix: str) -> int:
    sys.stderr.write(
        f"launcher: error: [{code}] {what}\nlauncher:   from: Horovod's rendezvous server\n"
        f"launcher:   fix:  {fix}\n"
    )
    return status


if __name__ == "__main__":
    del sys.path[0]  # this folder, and not one of the user's
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
