"""Serves a node's metrics for Prometheus from a separate process, from the job's start to its end.

The process is a helper (`launcher.process.helper`), because an HTTP server with prometheus-client takes
10 MiB and threads, and because requests to its port must not reach the loop that passes signals on. At each
scrape it asks the launcher through the launcher's socket, as ``launcher status`` does. Without scrapes the
launcher does nothing.
"""

from __future__ import annotations

import socket

from launcher.agent.observers import NICE
from launcher.cluster.reach import ANYWHERE, is_reachable
from launcher.machine.host import Host
from launcher.machine.network import address_towards
from launcher.machine.own_names import address_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.agent.runtime import Runtime

PROCESS_NAME = "launcher-metric"
"""Name in ps; the kernel keeps 15 characters."""
WAITING_MAX = 16
LOCAL = "127.0.0.1"
OPEN_S = 60.0
"""Seconds in which the helper must listen; it resolves names before, such as node 0's."""
ENDED = "the metrics process was killed: metrics are no longer served"


def start_exporter(runtime: Runtime, path: str) -> None:
    """Start the process that serves the metrics of this node's part of a job.

    Args:
        runtime: Values and tools of the launcher.
        path: Path of the launcher's socket.
    """
    watch, said = runtime.watch, list[str]()
    listener: socket.socket | None = None

    def listen() -> Iterator[str]:
        """Listen, and yield the address; if that fails, yield the reason, because the job must go on."""
        nonlocal listener
        port, address = watch.metrics_port, find_address(watch.metrics_towards, Host())
        place = f"http://{f'[{address}]' if ':' in address else address}:{port}/metrics"
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            listener = socket.create_server((address, port), family=family, backlog=WAITING_MAX)
        except OSError as error:
            yield refuse(place, error)
        else:
            yield f"metrics of this node: {place}"

    def serve_forever() -> None:
        if listener is not None:
            from launcher.control.exporter import serve

            serve(listener, path)

    def hear(lines: Sequence[str]) -> None:
        said.extend(lines)
        for line in lines:
            runtime.say(line, "no-metrics" if line.startswith("no metrics") else "metrics")

    def note_end() -> None:
        if not any(line.startswith("no metrics") for line in said):
            runtime.say(ENDED, "no-metrics")

    try:
        runtime.group.helpers.ask(
            listen, hear, OPEN_S, name=PROCESS_NAME, nice=NICE, then=serve_forever, on_end=note_end
        )
    except OSError as error:
        runtime.say(refuse(f"port {watch.metrics_port}", error), "no-metrics")


def refuse(place: str, error: OSError) -> str:
    """Return the message that there are no metrics, with the reason."""
    return f"no metrics at {place}: {error.strerror}; the job goes on (--metrics-port names another port)"


def find_address(towards: str, host: Host) -> str:
    """Return our address in the nodes' network; the loopback address for a single node, or if none is found.

    Args:
        towards: Host of node 0, which may be this node; empty for a single node.
        host: This node.
    """
    if not towards:
        return LOCAL
    own = host.own_addresses() - {host.hostname()}
    for address in (
        address_of(host, towards),
        *(address_towards(host, target) for target in (towards, *ANYWHERE)),
    ):
        if address in own and address is not None and is_reachable(address):
            return address
    return LOCAL
