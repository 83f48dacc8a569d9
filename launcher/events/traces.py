"""OpenTelemetry: the process that makes spans of the launcher's events.

The SDK takes 0.1 s to load, and threads. So it runs in a helper (`launcher.process.helper`) that is forked
after the processes of the job have started, and reads the launcher's events from a socket.
`launcher.events.exporter` is what runs in it. Whatever becomes of it, the job goes on.

Source: OpenTelemetry, "Tracing SDK".
"""

from __future__ import annotations

import os
import time

from launcher.core.redact import quote
from launcher.events.feed import LINE_BYTES, EventFeed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.process.helper import Helpers
    from launcher.process.loop import Loop

PROCESS_NAME = "launcher-trace"
NICE = 19
FLUSH_S, LONGEST_FLUSH_S = 5.0, 60.0
"""Seconds at the end in which the spans can leave, unless the user's limit of the SDK says more."""
LIMIT = "OTEL_EXPORTER_OTLP_TIMEOUT"
FAILED_S = 1.0
"""The same if the destination has failed already: one more try."""
WAITING_MAX_BYTES = 1 << 20


def read_limit(environ: Mapping[str, str]) -> float:
    """Return how long the end of a job may wait for its traces: the SDK's own limit, if it is set."""
    asked = environ.get(LIMIT, "").strip()
    if asked.isascii() and asked.isdigit() and int(asked[:9]) > 0:
        return min(float(asked[:9]), LONGEST_FLUSH_S)
    return FLUSH_S


class Traces:
    """The process that makes spans of events, from its start to its end."""

    def __init__(
        self,
        environ: Mapping[str, str],
        own: str,
        loop: Loop,
        helpers: Helpers,
        complain: Callable[[str], None],
    ) -> None:
        """Keep events until `open` starts the process.

        Args:
            environ: The launcher's environment.
            own: This launcher's own run.
            loop: The loop that watches the socket.
            helpers: Starts the process.
            complain: Reports once that there will be no traces, or only a part.
        """
        self._environ, self._own, self._loop, self._helpers = environ, own, loop, helpers
        self._complain, self._limit_s = complain, read_limit(environ)
        self._waiting = bytearray()
        self._feed: EventFeed | None = None
        self._has_complained = self._has_begun = False

    def add(self, line: bytes) -> None:
        """Take one event."""
        if self._feed is not None:
            self._feed.add(line)
        elif not self._has_begun and len(self._waiting) < WAITING_MAX_BYTES:
            self._waiting += line

    def open(self, nice: int = NICE) -> None:
        """Start the process, once; ``nice``: its niceness."""
        if self._has_begun:
            return
        self._has_begun = True

        def work(fd: int) -> None:
            try:
                from launcher.events.exporter import export
            except Exception as error:  # an installation in pieces
                what = quote(f"{type(error).__name__}: {error}", LINE_BYTES // 8)
                os.write(fd, f"no traces: {what}; the job goes on\n".encode())
            else:
                export(fd, self._environ, self._own)

        label, gone = "the process of the traces", "no more traces: their process was killed; the job goes on"
        try:
            self._feed = EventFeed(
                work, label, self._loop, self._helpers, self._report, gone, name=PROCESS_NAME, nice=nice
            )
        except OSError as error:
            self._report(f"no traces: {error.strerror}; the job goes on")
            return
        self._feed.add(bytes(self._waiting))
        self._waiting.clear()

    def _report(self, text: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            self._complain(text)

    def finish(self, signals_fd: int) -> None:
        """Have the process send the rest, for a limited time.

        Args:
            signals_fd: The launcher's signals: one that ends programs ends the wait.
        """
        self.open(nice=0)  # no process of the job is left that needs the CPU more
        if self._feed is None:
            return
        limit = time.monotonic() + self._limit_s
        why = self._feed.finish(limit, signals_fd=signals_fd, hurry_s=FAILED_S)
        if why == "time":
            self._report(f"the traces are not complete: they could not be sent within {self._limit_s:g} s")
        elif why:
            self._report("the traces are not complete: a signal came before they were sent")
