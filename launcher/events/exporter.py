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

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
READ_BYTES = 1 << 16
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
MODULES = {"http/protobuf": "http", "grpc": "grpc"}
"""Packages of the exporters, by protocol: opentelemetry-exporter-otlp-proto-NAME."""
SERVICE = "launcher"
OF_EVERY_EVENT = ("schema", "time", "job", "run", "node", "attempt", "event", "text")
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

    def __init__(self, ids: Ids, names: dict[str, str], provider: TracerProvider, chosen: OwnIds) -> None:
        """Make no span yet.

        Args:
            ids: Their ids.
            names: Attributes with the names of the job and of its run.
            provider: Makes the spans.
            chosen: Gives them their ids.
        """
        self._names = names
        self._ids, self._chosen = ids, chosen
        self._tracer = provider.get_tracer("launcher", __version__)
        self._own: Span | None = None
        self._attempt: Span | None = None
        self._stop: Span | None = None
        self._trains_ns: int | None = None
        self._stops_ns: int | None = None
        self._ended_ns: int | None = None
        self._last_ns = 0

    def take(self, event: Event) -> None:
        """Take an event: it begins or ends spans, and is an event of the one that is open."""
        now = self._last_ns = read_time(event)
        name = str(event.get("event"))
        if self._own is None:
            self._begin(event, now)
        if name == "attempt-started":
            self._begin_attempt(event, now)
        elif name == "end":
            self._close_attempt()
        at = self._attempt or self._own
        assert at is not None  # noqa: S101 - `_begin` has made it
        at.add_event(name, describe(event, {"text": str(event.get("text", ""))}), now)
        if name == "gathered":
            self._add("roll_call", now - read_seconds(event), now)
        elif name == "training":
            self._trains_ns = now
        elif name == "stop":
            self._stops_ns = now
        elif name == "attempt-ended":
            self._note_end(event, now)
        elif name == "first-failure" and self._attempt is not None:
            self._attempt.set_attributes(describe(event, {}))
        elif name == "end":
            self._end(event, now)

    def _begin(self, event: Event, now: int) -> None:
        """Begin this launcher's span, with its own startup as the first part."""
        ids, started = self._ids, now - read_seconds(event)
        facts = {**describe(event, self._names), "launcher.version": __version__}
        above = ids.above if ids.is_root else Parent(ids.trace_id, ids.root_id, self._flags)
        context = None if above is None else within(above)
        self._chosen.chosen = ids.own_id
        name = "job" if ids.is_root else "node"
        self._own = self._tracer.start_span(name, context, attributes=facts, start_time=started)
        self._add("start", started, now)

    @property
    def _flags(self) -> str:
        return "01" if self._ids.above is None else self._ids.above.flags

    def _add(self, name: str, began: int, ended: int, parent: Span | None = None) -> None:
        """Add a span that is over."""
        above = parent or self._own
        assert above is not None  # noqa: S101 - it is made first
        span = self._tracer.start_span(name, trace.set_span_in_context(above), start_time=min(began, ended))
        span.end(ended)

    def _begin_attempt(self, event: Event, now: int) -> None:
        self._close_attempt()
        assert self._own is not None  # noqa: S101 - it is made first
        number = event.get("attempt")
        self._chosen.chosen = self._ids.name_attempt(number if isinstance(number, int) else 0)
        self._attempt = self._tracer.start_span(
            "attempt",
            trace.set_span_in_context(self._own),
            attributes=describe(event, {}),
            start_time=now - read_seconds(event),
        )

    def _note_end(self, event: Event, now: int) -> None:
        """Note the end of an attempt; its cause comes later, so its span stays open."""
        if self._attempt is None:
            return
        self._ended_ns = now
        self._attempt.set_attributes(describe(event, {}))
        if self._trains_ns is not None:
            self._add("training", self._trains_ns, max(self._trains_ns, self._stops_ns or now), self._attempt)
        if self._stops_ns is not None:
            self._add("stop", self._stops_ns, now, self._attempt)
        self._trains_ns = self._stops_ns = None
        if event.get("status"):
            self._attempt.set_status(Status(StatusCode.ERROR, str(event.get("text", ""))))

    def _close_attempt(self) -> None:
        if self._attempt is not None:
            self._attempt.end(self._ended_ns or self._last_ns)
        self._attempt = self._ended_ns = None

    def _end(self, event: Event, now: int) -> None:
        """End this launcher's own span: the job is over here."""
        if self._own is not None:
            self._own.set_attributes(describe(event, {}))
            if event.get("status") != 0:
                self._own.set_status(Status(StatusCode.ERROR, str(event.get("text", ""))))
            self._own.end(now)
            self._own = None

    def close(self) -> None:
        """End what is open: the launcher was killed."""
        self._close_attempt()
        if self._own is not None:
            self._own.set_status(Status(StatusCode.ERROR, "the launcher was killed"))
            self._own.end(self._last_ns)


def within(parent: Parent) -> Context:
    """Return the context of a span of another process."""
    flags = TraceFlags(int(parent.flags, 16) & TraceFlags.SAMPLED)
    ids = int(parent.trace_id, 16), int(parent.span_id, 16)
    context = SpanContext(*ids, is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(NonRecordingSpan(context))


def describe(event: Event, more: dict[str, str]) -> dict[str, str | bool | int | float]:
    """Return an event's attributes: its own fields, the node and the attempt."""
    facts: dict[str, str | bool | int | float] = dict(more)
    for name, value in event.items():
        if name in OF_EVERY_EVENT and name not in ("node", "attempt"):
            continue
        key = "host.name" if name == "host" else f"launcher.{name}"
        if isinstance(value, SIMPLE):
            facts[key] = value
        elif value is not None:
            facts[key] = json.dumps(value)
    return facts


def read_time(event: Event) -> int:
    """Return the time of an event, nanoseconds since 1970."""
    moment = datetime.fromisoformat(str(event["time"]).removesuffix("Z")).replace(tzinfo=timezone.utc)
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000


def read_seconds(event: Event) -> int:
    """Return how long it took what an event reports, in nanoseconds."""
    seconds = event.get("seconds")
    return int(seconds * 1e9) if isinstance(seconds, int | float) else 0


def read_events(fd: int) -> Iterator[dict[str, object]]:
    """Yield the events from a socket, until it ends."""
    rest = b""
    while data := os.read(fd, READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        for line in filter(None, lines):
            yield json.loads(line)


def follow(fd: int, environ: Mapping[str, str], own: str, exporter: SpanExporter) -> None:
    """Make spans of the events until the launcher ends, and send them.

    Events wait until the run is known: another node may have to tell it, and the ids follow from it.
    """
    waiting: list[dict[str, object]] = []
    spans: Spans | None = None
    provider: TracerProvider | None = None
    processor = BatchSpanProcessor(exporter)
    for event in with_end(read_events(fd)):
        waiting += [] if event is None else [event]
        if spans is None and waiting and (event is None or event.get("run")):
            run = str(waiting[-1].get("run") or own)
            job = str(waiting[-1].get("job") or run)
            ids = find_ids(environ, job, run, own)
            chosen = OwnIds(ids.trace_id)
            provider = TracerProvider(
                resource=name_service(environ), id_generator=chosen, shutdown_on_exit=False
            )
            provider.add_span_processor(processor)
            spans = Spans(ids, {"launcher.job": job, "launcher.run": run}, provider, chosen)
        while spans is not None and waiting:
            spans.take(waiting.pop(0))
    if spans is not None and provider is not None:
        spans.close()
        provider.force_flush()  # the launcher limits the time
    exporter.shutdown()


def with_end(events: Iterator[dict[str, object]]) -> Iterator[dict[str, object] | None]:
    """Yield events, and None at their end."""
    yield from events
    yield None


def name_service(environ: Mapping[str, str]) -> Resource:
    """Return what the spans are about: the user's OTEL_RESOURCE_ATTRIBUTES, and a name if it has none."""
    resource = Resource.create()
    is_named = environ.get("OTEL_SERVICE_NAME") or "service.name=" in environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    ours = {} if is_named else {"service.name": SERVICE, "service.version": __version__}
    return resource.merge(Resource(ours))


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
