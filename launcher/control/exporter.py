"""Serve OpenMetrics over HTTP, by prometheus-client: read only, so many at a time, and each for so long.

Source: OpenMetrics 1.0 (names, units, the exposition format); prometheus-client, "Custom Collectors".
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn

from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from launcher.control.client import ask
from launcher.control.table import number, rows_of, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Message = dict[str, object]
Request = socket.socket | tuple[bytes, socket.socket]

PATHS = ("/metrics", "/")
REQUESTS_MAX = 8
"""At a time; who comes beyond that is hung up on."""
REQUEST_S = 5.0
"""How long a client may take, once another one wants its place; and silence after which it is given up."""
OF_RANKS = (
    # in an answer, name of the metric, what it is
    ("memory_bytes", "launcher_rank_memory_bytes", "Resident memory of a rank and its children"),
    ("process_count", "launcher_rank_processes", "Processes of a rank, itself and its children"),
    ("silence_s", "launcher_rank_last_output_seconds", "Seconds since a rank wrote something"),
)
OF_GPUS = (
    ("used_bytes", "launcher_gpu_memory_used_bytes", "Memory of a GPU that is in use, by anybody"),
    ("total_bytes", "launcher_gpu_memory_bytes", "Memory that a GPU has"),
)
OF_NODES = (
    ("count", "launcher_nodes", "Nodes of the job"),
    ("heard", "launcher_nodes_heard", "Nodes that node 0 hears; on others: this one, and node 0"),
    ("lost", "launcher_nodes_lost", "Nodes that are lost"),
)


class Node:
    """Asks the launcher of this node whenever the metrics are collected."""

    def __init__(self, path: str) -> None:
        self._path = path

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now; only that there is no answer, if there is none."""
        up = GaugeMetricFamily("launcher_up", "Whether the launcher answers")
        try:
            (message,) = ask(self._path, "node")
        except (OSError, ValueError):
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        answer = message.get("answer")
        yield from make_metrics(answer if isinstance(answer, dict) else {})


def make_metrics(answer: Mapping[str, object]) -> Iterator[Metric]:
    """Yield the metrics that are in a node's answer; see `launcher.control.node.read_node`."""
    facts = {name: words(answer, name) for name in ("run", "host", "launcher")}
    node_rank = number(answer, "node_rank")
    info = InfoMetricFamily("launcher", "Which launcher this is")
    info.add_metric([], {**facts, "node": "" if node_rank is None else f"{node_rank:g}"})
    yield info
    yield _gauge("launcher_elapsed_seconds", "Since the launcher has begun", number(answer, "elapsed_s"))
    restarts = CounterMetricFamily("launcher_restarts", "How often the processes were started again")
    restarts.add_metric([], number(answer, "attempt") or 0)
    yield restarts
    yield from _rank_metrics([row for row in rows_of(answer) if number(row, "rank") is not None])
    yield from _gpu_metrics(answer.get("gpus"))
    nodes = answer.get("nodes")
    for name, metric, help_text in OF_NODES:
        yield _gauge(metric, help_text, number(nodes, name) if isinstance(nodes, dict) else None)


def _gauge(name: str, help_text: str, value: float | None) -> Metric:
    metric = GaugeMetricFamily(name, help_text)
    if value is not None:
        metric.add_metric([], value)
    return metric


def _rank_metrics(rows: list[Message]) -> Iterator[Metric]:
    running = GaugeMetricFamily("launcher_rank_running", "Whether a rank runs", labels=("rank", "local_rank"))
    cpu = CounterMetricFamily(
        "launcher_rank_cpu_seconds", "CPU time of a rank and its children", labels=("rank", "local_rank")
    )
    for row in rows:
        cpu_s = number(row, "cpu_s")
        running.add_metric(_labels(row), float(words(row, "state") == "running"))
        if cpu_s is not None:
            cpu.add_metric(_labels(row), cpu_s)
    yield running
    yield cpu
    for name, metric, help_text in OF_RANKS:
        gauge = GaugeMetricFamily(metric, help_text, labels=("rank", "local_rank"))
        for row in rows:
            value = number(row, name)
            if value is not None:
                gauge.add_metric(_labels(row), value)
        yield gauge


def _labels(row: Message) -> list[str]:
    return [f"{int(number(row, name) or 0)}" for name in ("rank", "local_rank")]


def _gpu_metrics(gpus: object) -> Iterator[Metric]:
    found = [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    busy = GaugeMetricFamily(
        "launcher_gpu_busy_ratio", "How much of the time a kernel ran on a GPU", labels=("gpu",)
    )
    for gpu in found:
        percent = number(gpu, "busy_percent")
        if percent is not None:
            busy.add_metric([_index(gpu)], percent / 100)
    yield busy
    for name, metric, help_text in OF_GPUS:
        gauge = GaugeMetricFamily(metric, help_text, labels=("gpu",))
        for gpu in found:
            gauge.add_metric([_index(gpu)], number(gpu, name) or 0)
        yield gauge


def _index(gpu: Message) -> str:
    return f"{int(number(gpu, 'index') or 0)}"


class Handler(BaseHTTPRequestHandler):
    """One request: GET of the metrics, and nothing else."""

    timeout = REQUEST_S
    server: Server

    def do_GET(self) -> None:
        """Answer."""
        if self.path.partition("?")[0] not in PATHS:
            self.send_error(404)
            return
        encode, kind = choose_encoder(self.headers.get("Accept", ""))
        body = encode(self.server.registry)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the library's name
        """Say nothing: the log is the job's."""


class Server(ThreadingMixIn, HTTPServer):
    """So many requests at a time, and each for so long."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, registry: CollectorRegistry) -> None:
        super().__init__(listener.getsockname()[:2], Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.registry = listener, registry
        self._open: dict[int, tuple[socket.socket, float]] = {}
        self._lock = threading.Lock()

    def verify_request(self, request: Request, client_address: object) -> bool:
        """Whether there is room; whoever has had his time makes some."""
        now = time.monotonic()
        with self._lock:
            for one, until in self._open.values():
                if now >= until:
                    with contextlib.suppress(OSError):
                        one.shutdown(socket.SHUT_RDWR)  # its thread ends then
            if len(self._open) >= REQUESTS_MAX or not isinstance(request, socket.socket):
                return False
            self._open[id(request)] = request, now + REQUEST_S
            return True

    def shutdown_request(self, request: Request) -> None:
        """A request has ended."""
        with self._lock:
            self._open.pop(id(request), None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is none of our business."""


def serve(listener: socket.socket, path: str) -> None:
    """Serve the metrics of the launcher whose socket is at ``path``, for ever."""
    registry = CollectorRegistry()
    registry.register(Node(path))
    Server(listener, registry).serve_forever(poll_interval=3600)
