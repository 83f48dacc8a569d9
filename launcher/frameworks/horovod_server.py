"""Serve the rendezvous of one Horovod job: Horovod's own server, on a port that is agreed on.

Run as a file by the Python that has Horovod (``python horovod_server.py PORT node0:2,node1:2``), until
SIGTERM. Horovod's ``RendezvousServer`` takes a port at random, which nobody could know without asking;
the HTTP server inside of it takes the one it is told.

Python 3.8 and newer; nothing of the launcher is imported.
"""

from __future__ import annotations

import errno
import signal
import sys

SCOPE, KEY = "launcher", "job"
"""Where ranks look whether this is their job's server: a scope that Horovod never uses."""
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
    try:
        server = RendezvousHTTPServer(("", port), RendezvousHandler, 0)
    except OSError as error:
        state = "taken" if error.errno == errno.EADDRINUSE else "not to be had"
        what = f"port {port} of this node is {state} ({error.strerror})"
        fix = "--master-port N on every node (the rendezvous is at N + 1), or HOROVOD_GLOO_RENDEZVOUS_PORT"
        return _fail(EXIT_NOT_READY, "horovod-port", what, fix)
    hosts = parse_hosts(slots)
    server.daemon_threads = True
    server.init(get_host_assignments(hosts, sum(host.slots for host in hosts)))
    server.cache[SCOPE] = {KEY: slots.encode("ascii")}
    server.serve_forever()
    return 0


def _fail(status: int, code: str, what: str, fix: str) -> int:
    sys.stderr.write(
        f"launcher: error: [{code}] {what}\nlauncher:   from: Horovod's rendezvous server\n"
        f"launcher:   fix:  {fix}\n"
    )
    return status


if __name__ == "__main__":
    del sys.path[0]  # this folder, and not one of the user's
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
