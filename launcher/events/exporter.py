"""Makes OpenTelemetry spans from a launcher's events, in a separate process, with OpenTelemetry's SDK.

The first node makes the span ``job``, each other one a span ``node`` in it. In these are ``start``,
``roll_call``, ``attempt`` (one for each), and in an attempt ``training`` and ``stop``. Every event of the
launcher is an event of the span that is open. docs/events.md has the table.

Source: OpenTelemetry, "Tracing SDK" and "OpenTelemetry Protocol Exporter".
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import re
from datetime import datetime, timezone

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

from launcher.core.redact import quote
from launcher.core.version import __version__
from launcher.events.ids import Ids, Parent, find_ids
from launcher.process.limits import limit_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

    Event = Mapping[str, object]
    Value = str | bool | int | float

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
READ_BYTES = 1 << 16
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
MODULES = {"http/protobuf": "http", "grpc": "grpc"}
"""Packages of the exporters, by protocol: opentelemetry-exporter-otlp-proto-NAME."""
SERVICE = "launcher"
OF_EVERY_EVENT = ("schema", "time", "job", "run", "event", "text")
"""Keys that are no attributes of a span; the node and the attempt are."""
SIMPLE = (str, bool, int, float)
COMPLAINT_LENGTH = 300
MEMORY_BYTES = 1 << 29
"""Limit of this process's memory: the SDK reads an answer of any length, and the job needs the memory. It
takes 45 MiB, and more for gRPC's threads."""
RETRIES = "Transient error"
"""In the SDK's warnings that it could not send. Its other warnings are about settings."""
SENDS = ("opentelemetry.exporter", "opentelemetry.sdk.trace.export", "opentelemetry.sdk._shared_internal")
"""Loggers of what sends spans."""


class OwnIds(RandomIdGenerator):
    """Ids of spans: one that the launcher has chosen, else a random one."""

    def __init__(self, trace_id: str) -> None:
        self.chosen: str | None = None
        self._trace_id = int(trace_id, 16)

    def generate_trace_id(self) -> int:
        """Return the trace's id."""
        return self._trace_id

    def generate_span_id(self) -> int:
        """Return the id that was chosen for the next span."""
        chosen, self.chosen = self.chosen, None
        return super().generate_span_id() if chosen is None else int(chosen, 16)


class Complaints(logging.Handler):
    """Passes the SDK's first complaint on to the launcher: that the spans do not leave."""

    def __init__(self, fd: int, environ: Mapping[str, str]) -> None:
        super().__init__(logging.WARNING)
        self._fd: int | None = fd
        self._endpoint = next(filter(None, map(environ.get, ENDPOINTS)), "the default endpoint")

    def emit(self, record: logging.LogRecord) -> None:
        """Pass it on as a line; the SDK's text has neither headers nor spans."""
        text = record.getMessage()
        if not record.name.startswith(SENDS) or (record.levelno < logging.ERROR and RETRIES not in text):
            return
        error = record.exc_info[1] if record.exc_info else None  # older exporters raise, and the SDK logs it
        text = text if error is None else f"{type(error).__name__}: {error}"
        found = re.search(r"\[Errno -?\d+\] ([\w ]+)", text)
        self.pass_on(f"{self._endpoint}: {text if found is None else found[1]}")

    def pass_on(self, what: str) -> None:
        """Pass on why there are no traces, once."""
        fd, self._fd = self._fd, None
        if fd is not None:
            text = quote(what, COMPLAINT_LENGTH)
            with contextlib.suppress(OSError):  # the launcher has ended
                os.write(fd, f"no traces so far: {text}; the job goes on\n".encode())


class Spans:
    """Spans of one launcher, made from its events in their order."""

    def __init__(self, ids: Ids, names: dict[str, str], provider: TracerProvider, event: Event) -> None:
        """Begin this launcher's span, with its own startup as the first part.

        Args:
            ids: Ids of spans.
            names: Attributes with the names of the job and of its run.
            provider: Makes the spans; its generator of ids is an `OwnIds`.
            event: The first event.
        """
        self._ids, self._chosen = ids, provider.id_generator
        self._tracer = provider.get_tracer("launcher", __version__)
        self._attempt: Span | None = None
        self._begun: dict[str, int] = {}
        """When the parts of the attempt began, nanoseconds since 1970."""
        self._ended_ns: int | None = None
        self._last_ns = now = read_time(event)
        flags = "01" if ids.above is None else ids.above.flags
        above = ids.above if ids.is_root else Parent(ids.trace_id, ids.root_id, flags)
        began = now - read_seconds(event)
        facts = {**describe(event, names), "launcher.version": __version__}
        name, context = "job" if ids.is_root else "node", None if above is None else within(above)
        self._own = self._begin(name, ids.own_id, began, context, facts)
        self._add("start", self._own, began, now)

    def take(self, event: Event) -> None:
        """Take an event: it begins or ends spans, and is an event of the one that is open."""
        now = self._last_ns = read_time(event)
        name, facts = str(event.get("event")), describe(event)
        if name in ("attempt-started", "end"):
            self._close_attempt()
        if name == "attempt-started":
            number, began = event.get("attempt"), now - read_seconds(event)
            own_id = self._ids.name_attempt(number if isinstance(number, int) else 0)
            self._attempt = self._begin("attempt", own_id, began, trace.set_span_in_context(self._own), facts)
        (self._attempt or self._own).add_event(name, {"text": str(event.get("text", "")), **facts}, now)
        if name == "gathered":
            self._add("roll_call", self._own, now - read_seconds(event), now)
        elif name in ("training", "stop"):
            self._begun[name] = now
        elif name == "attempt-ended" and self._attempt is not None:
            self._end_attempt(self._attempt, event, now)
        elif name == "first-failure" and self._attempt is not None:
            self._attempt.set_attributes(facts)
        elif name == "end":
            note_result(self._own, event)
            self._own.end(now)

    def _begin(
        self, name: str, own_id: str, began: int, context: Context | None, facts: dict[str, Value]
    ) -> Span:
        assert isinstance(self._chosen, OwnIds)  # noqa: S101 - `follow` has made it
        self._chosen.chosen = own_id
        return self._tracer.start_span(name, context, attributes=facts, start_time=began)

    def _add(self, name: str, above: Span, began: int, ended: int) -> None:
        """Add a span that is over."""
        span = self._tracer.start_span(name, trace.set_span_in_context(above), start_time=min(began, ended))
        span.end(ended)

    def _end_attempt(self, attempt: Span, event: Event, now: int) -> None:
        """Note the end of an attempt; its cause comes later, so its span stays open."""
        self._ended_ns = now
        note_result(attempt, event)
        for name, until in (("training", self._begun.get("stop", now)), ("stop", now)):
            if name in self._begun:
                self._add(name, attempt, self._begun[name], max(self._begun[name], until))
        self._begun = {}

    def _close_attempt(self) -> None:
        if self._attempt is not None:
            self._attempt.end(self._ended_ns or self._last_ns)
        self._attempt = self._ended_ns = None

    def close(self) -> None:
        """End what is open: the launcher was killed."""
        self._close_attempt()
        if self._own.is_recording():
            self._own.set_status(Status(StatusCode.ERROR, "the launcher was killed"))
            self._own.end(self._last_ns)


def note_result(span: Span, event: Event) -> None:
    """Note in a span how what it shows has ended."""
    span.set_attributes(describe(event))
    if event.get("status") != 0:
        span.set_status(Status(StatusCode.ERROR, str(event.get("text", ""))))


def within(parent: Parent) -> Context:
    """Return the context of a span of another process."""
    flags = TraceFlags(int(parent.flags, 16) & TraceFlags.SAMPLED)
    ids = int(parent.trace_id, 16), int(parent.span_id, 16)
    context = SpanContext(*ids, is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(NonRecordingSpan(context))


def describe(event: Event, more: Mapping[str, str] | None = None) -> dict[str, Value]:
    """Return an event's attributes: its own fields, the node and the attempt."""
    facts: dict[str, Value] = dict(more or {})
    for name, value in event.items():
        if name not in OF_EVERY_EVENT and value is not None:
            key = "host.name" if name == "host" else f"launcher.{name}"
            facts[key] = value if isinstance(value, SIMPLE) else json.dumps(value)
    return facts


def read_time(event: Event) -> int:
    """Return the time of an event, nanoseconds since 1970."""
    moment = datetime.fromisoformat(str(event["time"]).removesuffix("Z")).replace(tzinfo=timezone.utc)
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000


def read_seconds(event: Event) -> int:
    """Return how long it took what an event reports, in nanoseconds."""
    seconds = event.get("seconds")
    return int(seconds * 1e9) if isinstance(seconds, int | float) else 0


def read_events(fd: int) -> Iterator[dict[str, object] | None]:
    """Yield the events from a socket, and None at its end."""
    rest = b""
    while data := os.read(fd, READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        yield from map(json.loads, filter(None, lines))
    yield None


def follow(fd: int, environ: Mapping[str, str], own: str, exporter: SpanExporter) -> None:
    """Make spans of the events until the launcher ends, and send them.

    Events wait until the run is known: another node may have to tell it, and the ids follow from it.
    """
    waiting: list[dict[str, object]] = []
    spans: Spans | None = None
    processor = BatchSpanProcessor(exporter)
    for event in read_events(fd):
        waiting += [] if event is None else [event]
        if spans is None and waiting and (event is None or event.get("run")):
            run = str(waiting[-1].get("run") or own)
            job = str(waiting[-1].get("job") or run)
            ids = find_ids(environ, job, run, own)
            provider = TracerProvider(
                resource=name_service(environ), id_generator=OwnIds(ids.trace_id), shutdown_on_exit=False
            )
            provider.add_span_processor(processor)
            spans = Spans(ids, {"launcher.job": job, "launcher.run": run}, provider, waiting[0])
        while spans is not None and waiting:
            spans.take(waiting.pop(0))
    if spans is not None:
        spans.close()
        processor.force_flush()  # the launcher limits the time
    exporter.shutdown()


def name_service(environ: Mapping[str, str]) -> Resource:
    """Return what the spans are about: the user's OTEL_RESOURCE_ATTRIBUTES, and a name if it has none."""
    resource = Resource.create()
    if environ.get("OTEL_SERVICE_NAME") or "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        return resource
    return resource.merge(Resource({"service.name": SERVICE, "service.version": __version__}))


def make_exporter(environ: Mapping[str, str]) -> SpanExporter:
    """Return the SDK's exporter for the user's protocol, which reads its other variables itself.

    Raises:
        LookupError: There is none for this protocol here; the text is for the user.
    """
    named = (environ.get(name, "").strip() for name in PROTOCOLS)
    protocol = next(filter(None, named), "http/protobuf")
    if protocol not in MODULES:
        raise LookupError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}, expected one of {', '.join(MODULES)}")
    package = f"opentelemetry.exporter.otlp.proto.{MODULES[protocol]}"
    try:
        module = __import__(f"{package}.trace_exporter", fromlist=["OTLPSpanExporter"])
    except ImportError as error:
        name = package.replace(".", "-")
        raise LookupError(f"{protocol} needs a package: pip install {name} ({error})") from error
    exporter: SpanExporter = module.OTLPSpanExporter()
    return exporter


def export(fd: int, environ: Mapping[str, str], own: str) -> None:
    """Run until the launcher ends: read its events from a socket, and report errors there.

    Args:
        fd: The socket.
        environ: The launcher's environment.
        own: The launcher's own run.
    """
    gc.enable()
    limit_memory(MEMORY_BYTES)
    complaints = Complaints(fd, environ)
    logging.getLogger("opentelemetry").addHandler(complaints)
    try:
        follow(fd, environ, own, make_exporter(environ))
    except Exception as error:  # nothing of this may reach the job
        complaints.pass_on(f"{type(error).__name__}: {error}")
