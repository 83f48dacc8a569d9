"""Serves OpenMetrics over HTTP with prometheus-client: read only, with limited requests and timeouts.

Source: OpenMetrics 1.0 (names, units, the exposition format); prometheus-client, "Custom Collectors".
"""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from http.server import ThreadingHTTPServer

from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from launcher.control.client import ask
from launcher.control.received import mappings, number, rows_of, words
from launcher.core.blocks import read_rows
from launcher.core.budget import find_busiest, network_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

PATHS = ("/metrics", "/")
REQUESTS_MAX = 8
"""Maximum number of requests at a time; one more closes the oldest of the busiest address."""
REQUEST_S = 5.0
"""Seconds after which a client that has not sent its whole request is dropped."""
HEAD_BYTES = 1 << 14
METRICS = read_rows("control/metrics.txt")
FAILED = "launcher_failed_attempts_total"


class NodeCollector(Collector):
    """Collector that asks the launcher of this node at each scrape."""

    def __init__(self, path: str) -> None:
        self._path = path

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics; only ``launcher_up`` with value 0 if the launcher does not answer."""
        try:
            (message,) = ask(self._path, "node")
        except (OSError, ValueError):
            yield GaugeMetricFamily("launcher_up", "Whether the launcher answers", value=0)
            return
        yield GaugeMetricFamily("launcher_up", "Whether the launcher answers", value=1)
        answer = message.get("answer")
        yield from make_metrics(answer if isinstance(answer, dict) else {})


def make_metrics(answer: Mapping[str, object]) -> Iterator[Metric]:
    """Yield the metrics of a node's answer; see `launcher.control.node.read_node`."""
    node_rank = number(answer, "node_rank")
    facts = {name: words(answer, name) for name in ("run", "host", "launcher")}
    facts["node"] = "" if node_rank is None else f"{node_rank:g}"
    yield InfoMetricFamily("launcher", "Identity of the launcher", value=facts)
    nodes = answer.get("nodes")
    ranks = [
        {**row, "running": int(words(row, "state") == "running")}
        for row in rows_of(answer)
        if number(row, "rank") is not None
    ]
    gpus = []
    for gpu in mappings(answer, "gpus"):
        busy_percent = number(gpu, "busy_percent")
        busy = {} if busy_percent is None else {"busy_ratio": busy_percent / 100}
        gpus.append({**gpu, **busy, "gpu": gpu.get("index")})
    yield from _read("launcher", [answer])
    failed = CounterMetricFamily(FAILED, "Failed attempts of the job by cause", labels=("cause",))
    causes = answer.get("failed")
    for cause, count in causes.items() if isinstance(causes, dict) else ():
        failed.add_metric([cause], count)
    yield failed
    yield from _read("rank", ranks, ("rank", "local_rank"))
    yield from _read("gpu", gpus, ("gpu",))
    yield from _read("node", [nodes] if isinstance(nodes, dict) else [])


def _read(
    of: str,
    rows: Iterable[Mapping[str, object]],
    labels: tuple[str, ...] = (),
) -> Iterator[Metric]:
    """Yield the metrics of the ranks, the GPUs, ..., each with one sample per row that has its field."""
    for _, name, field, text in (row for row in METRICS if row[0] == of):
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        metric = kind(name, text, labels=labels)
        for row in rows:
            value = number(row, field)
            if value is not None:
                metric.add_metric([f"{int(number(row, label) or 0)}" for label in labels], value)
        yield metric


class MetricsRequest(MetricsHandler):
    """Handler of one request: GET of the metrics, and nothing else."""

    timeout = REQUEST_S

    def setup(self) -> None:
        """Read at most `HEAD_BYTES`, within `REQUEST_S`; a request has nothing after its head."""
        super().setup()
        self.rfile = io.BytesIO(self._read_head())

    def _read_head(self) -> bytes:
        """Return the head of the request; a part of it if it is too long or too slow."""
        until, head = time.monotonic() + REQUEST_S, b""
        with contextlib.suppress(OSError):
            while b"\r\n\r\n" not in head and len(head) < HEAD_BYTES:
                self.connection.settimeout(max(until - time.monotonic(), 0.001))
                part = self.connection.recv(HEAD_BYTES - len(head))
                if not part:
                    break
                head += part
        self.connection.settimeout(REQUEST_S)
        return head if b"\r\n\r\n" in head else b""

    def do_GET(self) -> None:  # noqa: N802 - the library's name
        """Send the metrics, or status 404 for any other path."""
        if self.path.partition("?")[0] in PATHS:
            super().do_GET()
        else:
            self.send_error(404)


class MetricsServer(ThreadingHTTPServer):
    """HTTP server with at most `REQUESTS_MAX` requests at a time."""

    def __init__(self, listener: socket.socket, registry: CollectorRegistry) -> None:
        handler = MetricsRequest.factory(registry)
        super().__init__(listener.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self._open: dict[socket.socket, tuple[str, str]] = {}
        """The connections, the oldest first, with the network and the address of their callers."""
        self._lock, self._rooms = threading.Lock(), threading.Semaphore(REQUESTS_MAX)

    def get_request(self) -> tuple[socket.socket, object]:
        """Return a new connection; close one if there are too many."""
        request, address = super().get_request()
        with self._lock:
            if len(self._open) >= REQUESTS_MAX:
                busiest = find_busiest(list(self._open.values()))
                oldest = next(one for one, caller in self._open.items() if caller == busiest)
                del self._open[oldest]
                with contextlib.suppress(OSError):  # it has already ended
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread ends then
            self._open[request] = network_of(address[0]), address[0]
        return request, address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, as soon as an older one has ended."""
        self._rooms.acquire()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection, whether a thread could serve it or not, and make room for another one."""
        super().shutdown_request(request)
        with self._lock:
            self._open.pop(request, None)
        self._rooms.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of a request, e.g. of a client that closes the connection."""


def serve(listener: socket.socket, path: str) -> None:
    """Serve the metrics of the launcher whose socket is at ``path``, forever."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(path))
    MetricsServer(listener, registry).serve_forever(poll_interval=3600)
