"""A receiver of OpenTelemetry's OTLP over HTTP: it decodes what arrives with the protocol's own classes."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

PATH = "/v1/traces"


class Span(NamedTuple):
    """One span as it arrived."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    began_ns: int
    ended_ns: int
    status: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    events: list[str]


class Receiver:
    """What has arrived."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.spans: list[Span] = []
        self.headers: list[dict[str, str]] = []
        self.has_news = threading.Event()

    @property
    def environ(self) -> dict[str, str]:
        """The variables that send spans here, also from a busy machine."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "60",
        }

    def named(self, name: str) -> list[Span]:
        """Return the spans of a name, by their beginning."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.began_ns)

    def one(self, name: str) -> Span:
        """Return the only span of a name."""
        (span,) = self.named(name)
        return span

    def take(self, data: bytes) -> None:
        """Decode a request."""
        request = ExportTraceServiceRequest.FromString(data)
        for group in request.resource_spans:
            resource = _attributes(group.resource.attributes)
            for scope in group.scope_spans:
                self.spans += [_decode(span, resource) for span in scope.spans]
        self.has_news.set()


def _decode(span: Any, resource: dict[str, Any]) -> Span:
    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
    times = (span.start_time_unix_nano, span.end_time_unix_nano)
    names = [event.name for event in span.events]
    return Span(span.name, *ids, *times, span.status.code, _attributes(span.attributes), resource, names)


def _attributes(pairs: Sequence[Any]) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def receive(address: str = "127.0.0.1", port: int = 0) -> Iterator[Receiver]:
    """Receive at an address; a free port by default."""
    found: list[Receiver] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path != PATH or self.headers["Content-Type"] != "application/x-protobuf":
                self.send_error(404)
                return
            found[0].headers.append(dict(self.headers))
            found[0].take(data)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            """Write no log."""

    server = ThreadingHTTPServer((address, port), Handler)
    found.append(Receiver(server.server_address[1]))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield found[0]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def write_all(address: str, port: int, path: str) -> None:
    """Receive forever, and add each span to a file as a line of JSON: for a test's own node."""
    with open(path, "a") as file, receive(address, port) as receiver:
        print("ready", flush=True)
        while True:
            receiver.has_news.wait()
            receiver.has_news.clear()
            while receiver.spans:
                file.write(f"{json.dumps(receiver.spans.pop(0))}\n")
            file.flush()


if __name__ == "__main__":
    write_all(sys.argv[1], int(sys.argv[2]), sys.argv[3])
