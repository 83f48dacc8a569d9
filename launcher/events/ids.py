"""Ids of OpenTelemetry's spans, which all nodes of a job find without asking each other. Pure.

Source: W3C Trace Context (traceparent).
"""

from __future__ import annotations

from hashlib import sha256

from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SAMPLER = "OTEL_TRACES_SAMPLER"
ALWAYS = ("", "always_on", "parentbased_always_on")
"""Samplers with which a trace that the launcher begins is sampled."""
TRACEPARENT = "TRACEPARENT"


@frozen
class Parent:
    """A span that others nest in, as ``TRACEPARENT`` has it.

    Attributes:
        trace_id: 32 hex digits.
        span_id: 16 hex digits.
        flags: 2 hex digits; the lowest bit: whether the trace is recorded.
    """

    trace_id: str
    span_id: str
    flags: str = "01"

    def render(self) -> str:
        """Return it as ``TRACEPARENT``."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def parse_parent(text: str) -> Parent | None:
    """Return the span of a ``TRACEPARENT``; None if it is missing or malformed, as W3C asks for."""
    parts = text.strip().split("-")
    if len(parts) < 4 or [len(part) for part in parts[:4]] != [2, 32, 16, 2]:
        return None
    version, trace_id, span_id, flags = parts[:4]
    if version == "ff" or (version == "00" and len(parts) > 4):
        return None
    if not all(set(part) <= set("0123456789abcdef") for part in parts[:4]):
        return None
    return Parent(trace_id, span_id, flags) if int(trace_id, 16) and int(span_id, 16) else None


def make_id(digits: int, *words: str) -> str:
    """Return an id that follows from words: the same on every node."""
    return sha256("\0".join(("launcher", *words)).encode("utf-8", "replace")).hexdigest()[:digits]


@frozen
class Ids:
    """Ids of the spans of one launcher.

    Attributes:
        trace_id: 32 hex digits.
        root_id: Span of the whole job, which the launcher of the first node makes.
        own_id: Span of this launcher; the same as ``root_id`` there.
        above: The span in which the root nests; None for none.
        own: Id of this launcher's own run.
    """

    trace_id: str
    root_id: str
    own_id: str
    above: Parent | None
    own: str

    @property
    def is_root(self) -> bool:
        """Whether this launcher makes the span of the job."""
        return self.own_id == self.root_id

    def name_attempt(self, attempt: int) -> str:
        """Return the id of the span of an attempt."""
        return make_id(16, self.own, "attempt", str(attempt))


def find_ids(environ: Mapping[str, str], job: str, run: str, own: str) -> Ids:
    """Return the ids of the spans of this launcher.

    Args:
        environ: The launcher's environment, for ``TRACEPARENT``.
        job: The job, the same on all nodes.
        run: The run of the job, the same on all nodes.
        own: This launcher's own run; that of the first node is the job's.
    """
    above = parse_parent(environ.get(TRACEPARENT, ""))
    trace_id = make_id(32, "trace", job) if above is None else above.trace_id
    root = make_id(16, run, "job")
    return Ids(trace_id, root, root if own == run else make_id(16, own, "node"), above, own)


def plan_parent(environ: Mapping[str, str], ids: Ids, attempt: int) -> str | None:
    """Return ``TRACEPARENT`` for an attempt's processes; None if a sampler decides its flags."""
    if ids.above is None and environ.get(SAMPLER, "").strip().lower() not in ALWAYS:
        return None
    flags = "01" if ids.above is None else ids.above.flags
    return Parent(ids.trace_id, ids.name_attempt(attempt), flags).render()
