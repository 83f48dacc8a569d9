"""Milestones of a job on one node: events that print no line, beside the launcher's own lines.

An observer: it reads what has happened, and changes nothing. The loop asks it at each turn whether
something has happened, which costs a few comparisons; without ``--events`` and OpenTelemetry it is not
loaded.
"""

from __future__ import annotations

import os
import time

from launcher.core import LOADED_S
from launcher.core.version import __version__
from launcher.events.feed import EventFeed, send_spans, write_file
from launcher.events.writer import NO_EVENTS, name_file, render_event
from launcher.process.loop import Later
from launcher.process.signal_file import name_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.agent.coordination import Coordination
    from launcher.agent.runtime import Runtime
    from launcher.process.spawn import Child
    from launcher.recovery.progress import ProgressGate

TRACE_AFTER_S = 0.2
"""Seconds until the process of the traces starts: until then the processes of the job need the CPU."""
TRACE_NICE = 19
BY = ("output", "connection", "progress")
"""What shows that the work has begun, the best last."""


class Milestones:
    """The events of one node, and where they go."""

    def __init__(
        self,
        runtime: Runtime,
        coordination: Coordination,
        find_connected: Callable[[], float | None],
        progress: ProgressGate | None,
    ) -> None:
        """Open the destinations, and record that the launcher has started.

        Args:
            runtime: Values and tools of the launcher.
            coordination: The rest of the job.
            find_connected: Returns when all processes were seen connected, monotonic seconds.
            progress: Watches for progress; None if it is not watched.
        """
        from launcher.core.environ import find_job_id
        from launcher.machine.host import Host

        self._runtime, self._coordination = runtime, coordination
        self._find_connected, self._progress = find_connected, progress
        self._job = find_job_id(runtime.environ)
        self._runs = False
        self._told: tuple[float | None, ...] = (None,) * len(BY)
        self._has_told_stop = self._is_innocent = False
        self._run = ""
        loop, helpers = runtime.loop, runtime.group.helpers
        self._traces: EventFeed | None = None
        self._feeds: list[EventFeed] = []
        """The destinations; the file, which waits less, is finished last."""
        if runtime.watch.traces and coordination.speaks:
            spans = send_spans(runtime.environ, runtime.run_id)
            self._traces = EventFeed(spans, loop, helpers, self._complain)
            self._feeds.append(self._traces)
        if runtime.watch.events is not None:
            path = name_file(runtime.watch.events, runtime.place.node_rank)
            self._feeds.append(EventFeed(write_file(path), loop, helpers, self._complain))
            self._feeds[-1].open()
        runtime.output.listener = self.take
        self._note_moment(
            "the launcher has started", "start", runtime.began_s, seconds=runtime.began_s - LOADED_S,
            host=Host().hostname(), pid=os.getpid(), version=__version__, world_size=runtime.place.world_size,
        )  # fmt: skip

    # --- events

    def take(self, event: str, text: str, fields: Mapping[str, object]) -> None:
        """Take an event of now: a line of the launcher's own, or one that prints none."""
        output = self._runtime.output
        listener, output.listener = output.listener, None  # a fault is printed, and must not come back here
        if self._guard(lambda: self._write(event, text, fields, time.time())):
            output.listener = listener

    def _note_moment(self, text: str, event: str, moment_s: float, **fields: object) -> None:
        """Take a milestone of a moment, monotonic seconds."""
        seconds = fields.get("seconds")
        if isinstance(seconds, float):
            fields["seconds"] = round(max(0.0, seconds), 6)
        self._write(event, text, fields, time.time() - (time.monotonic() - moment_s))

    def _write(self, event: str, text: str, fields: Mapping[str, object], now_s: float) -> None:
        runtime = self._runtime
        self._run = self._run or self._coordination.name_run(runtime.run_id)
        place = {
            "job": self._job or self._run or None,
            "run": self._run or None,
            "node": runtime.place.node_rank,
            "attempt": runtime.attempt,
        }
        line = render_event(event, text, place, fields, now_s)
        for feed in self._feeds:
            feed.add(line)

    def _complain(self, text: str) -> None:
        """Say that a destination of events fails; the other one, if any, gets this as an event."""
        self._runtime.output.say(text, "no-events" if text.startswith(NO_EVENTS) else "events-lost")

    # --- what happens

    def note_together(self) -> None:
        """Note that the nodes have come together."""
        runtime = self._runtime
        nodes = self._coordination.describe_nodes() or {}
        now = time.monotonic()
        self._note_moment(
            "all nodes are here", "gathered", now, seconds=now - runtime.began_s,
            nodes=nodes.get("count"), world_size=runtime.place.world_size,
        )  # fmt: skip

    def plan(self, child: Child) -> dict[str, str]:
        """Return the variable that nests a process's spans in the attempt's span."""
        if self._traces is None or child.companion:
            return {}
        from launcher.events.ids import TRACEPARENT, find_ids, plan_parent

        runtime = self._runtime
        run = self._coordination.name_run(runtime.run_id) or runtime.run_id
        ids = find_ids(runtime.environ, self._job or run, run, runtime.run_id)
        parent = plan_parent(runtime.environ, ids, runtime.attempt)
        return {} if parent is None else {TRACEPARENT: parent}

    def begin_attempt(self) -> None:
        """Tell that the processes of an attempt have been started, and watch them."""
        runtime = self._runtime
        moments = runtime.timings.attempts[-1]
        children = [one.child for one in runtime.group.processes if not one.child.companion]
        starter = next((child.called for child in children if child.called), "")
        ranks = None if starter else [child.rank for child in children]
        what = f"{starter} has" if starter else f"{len(children)} processes have"
        self._told, self._has_told_stop, self._runs = (None,) * len(BY), False, True
        self._is_innocent = False
        started = moments.started or time.monotonic()
        self._note_moment(
            f"attempt {runtime.attempt}: {what} started", "attempt-started", started,
            seconds=started - moments.began, ranks=ranks, world_size=runtime.place.world_size,
        )  # fmt: skip
        runtime.loop.timers.append(self)
        traces = self._traces
        if traces is not None:
            due = time.monotonic() + TRACE_AFTER_S
            runtime.loop.timers.append(Later(due, lambda: traces.open(TRACE_NICE)))

    @property
    def due(self) -> float | None:
        """When `fire` has events to write."""
        return 0.0 if self._runs and self._has_news() else None

    def _has_news(self) -> bool:
        return self._look() != self._told or (self._runtime.is_ending and not self._has_told_stop)

    def _look(self) -> tuple[float | None, ...]:
        """Return when each sign of work was seen first; one that was seen stays."""
        progressed = None if self._progress is None else self._progress.first_s
        seen = (self._runtime.output.first_s, self._find_connected(), progressed)
        return tuple(told or now for told, now in zip(self._told, seen, strict=True))

    def fire(self, now: float) -> None:
        """Tell what has happened."""
        runtime, before, self._told = self._runtime, self._told, self._look()
        for by, told, moment in zip(BY, before, self._told, strict=True):
            if told is None and moment is not None:
                self._note_moment(f"the work has begun: the first {by}", "training", moment, by=by)
        if runtime.is_ending and not self._has_told_stop:
            self._has_told_stop, self._is_innocent = True, runtime.first is None
            number = runtime.group.stopper.number
            reason = runtime.reason.cause.code if runtime.reason is not None else None
            self._note_moment(
                "the processes are being stopped", "stop", now,
                signal=None if number is None else name_signal(number), cause=reason,
            )  # fmt: skip

    def end_attempt(self) -> None:
        """Tell how the processes of an attempt have ended here; the cause is found after that."""
        runtime = self._runtime
        if not self._runs:
            return
        if self._has_news():
            self.fire(time.monotonic())
        # Of processes that were stopped for a failure elsewhere, none has failed.
        moments, first = runtime.timings.attempts[-1], None if self._is_innocent else runtime.first
        self._runs = False
        ended = moments.ended or time.monotonic()
        how = "the processes were stopped" if self._is_innocent else "all processes have succeeded"
        if first is not None:
            how = f"{first.name} {first.end}"
        code = 0 if first is None else first.code or 0
        self._note_moment(
            f"attempt {runtime.attempt}: {how}", "attempt-ended", ended, seconds=ended - moments.began,
            status=0 if runtime.first is None else runtime.first.status,
            failed_rank=None if first is None or first.child.called else first.child.rank,
            signal=name_signal(-code) if code < 0 else None,
        )  # fmt: skip

    # --- the end

    def close(self, status: int | None, cause: str | None, error: str, figures: Mapping[str, object]) -> None:
        """Record the status of the job here, and close the destinations; wait for them for a limited time.

        Args:
            status: Status of the job; None if it is not known.
            cause: Code of what ended the last attempt that failed; None if unknown.
            error: The error of ours that ended the job; empty for none.
            figures: Where the time has gone, see `Timings.to_record`.
        """
        told = self._runtime.forwarder.told
        if status is None and told is not None:
            status = 128 + told
        now = time.monotonic()
        self._note_moment(
            error or f"the job has ended with exit code {status} here", "end", now, seconds=now - LOADED_S,
            status=status, cause=cause if status else None, attempts=figures.get("attempts"),
            work_s=figures.get("work_s"), lost_s=figures.get("lost_s"), goodput=figures.get("goodput"),
        )  # fmt: skip
        for feed in self._feeds:
            self._guard(lambda feed=feed: feed.finish(self._runtime.signals.fd))  # type: ignore[misc]

    def _guard(self, action: Callable[[], None]) -> bool:
        return self._runtime.loop.guard(action)
