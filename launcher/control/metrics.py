"""The metrics of a node for those who scrape: a process of its own beside the job, from its start to its end.

A fork of the launcher, like the one that looks at the node (`launcher.observers.preflight`): an HTTP
server with prometheus-client takes 10 MiB and threads, and whoever reaches its port must not reach the loop
that passes signals on. It knows nothing by itself, and asks the launcher through its socket when it is asked:
the launcher does what it does for ``launcher status``, and nothing while nobody scrapes.
"""

from __future__ import annotations

import os
import socket

from launcher.cluster.reach import ANYWHERE, is_reachable
from launcher.core.signal import signal
from launcher.machine.host import Host
from launcher.observers.preflight import NICE
from launcher.process.kernel import die_with_parent, set_name
from launcher.process.watchdog import close_others

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.core.model import Supervision

PROCESS_NAME = "launcher-metric"
"""The kernel keeps 15 characters."""
WAITING_MAX = 16
LOCAL = "127.0.0.1"


class Exporter:
    """The process that serves metrics, as the launcher sees it.

    Attributes:
        pid: A child of ours that is none of the job; None once it was ended.
    """

    def __init__(self, path: str, port: int, address: str) -> None:
        """Begin to serve.

        Args:
            path: Of the launcher's socket.
            port: Where to listen.
            address: At which address.

        Raises:
            OSError: It is taken, or there are no more processes.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server((address, port), family=family, backlog=WAITING_MAX) as listener:
            launcher = os.getpid()
            self.pid: int | None = os.fork()
            if self.pid == 0:
                try:
                    _be_exporter(launcher, listener, path)
                finally:
                    os._exit(0)

    @property
    def pids(self) -> tuple[int, ...]:
        """Its own, while it is there."""
        return () if self.pid is None else (self.pid,)

    def close(self) -> None:
        """Serve no more."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)  # our child that nobody has waited for: the pid is its own
            os.waitpid(self.pid, 0)
            self.pid = None


def start_exporter(watch: Supervision, path: str, say: Callable[[str], None]) -> Exporter | None:
    """Serve the metrics of this node's part of a job; where that cannot be, say so: the job is worth more.

    Args:
        watch: Where, and for whom.
        path: Of the launcher's socket.
        say: Says something in the log.
    """
    address = find_address(watch.metrics_towards, Host())
    place = f"http://{f'[{address}]' if ':' in address else address}:{watch.metrics_port}/metrics"
    try:
        exporter = Exporter(path, watch.metrics_port, address)
    except OSError as error:
        say(f"no metrics at {place}: {error.strerror}; the job goes on (--metrics-port names another port)")
        return None
    say(f"metrics of this node: {place}")
    return exporter


def find_address(towards: str, host: Host) -> str:
    """Return our address in the network of the nodes; the loopback where there is only one, or none is found.

    Args:
        towards: Node 0, which may be this one; empty where there is one node.
        host: This node.
    """
    if not towards:
        return LOCAL
    own = host.own_addresses() - {host.hostname()}
    for address in (host.address_of(towards), *map(host.address_towards, (towards, *ANYWHERE))):
        if address in own and address is not None and is_reachable(address):
            return address
    return LOCAL


def _be_exporter(launcher: int, listener: socket.socket, path: str) -> None:
    """Be that process: all signals are blocked already."""
    die_with_parent(signal.SIGKILL)
    if os.getppid() != launcher:  # it was killed before the line above
        return
    os.nice(NICE)
    os.setpgid(0, 0)
    set_name(PROCESS_NAME)
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    close_others((0, 1, 2, listener.fileno()))
    from launcher.control.exporter import serve

    serve(listener, path)
