"""OpenTelemetry: the process that makes spans of the launcher's events.

The SDK takes 0.1 s to load, and threads. So it runs in a helper (`launcher.process.helper`) that is forked
after the processes of the job have started, and reads the launcher's events from a socket.
`launcher.events.exporter` is what runs in it. Whatever becomes of it, the job goes on.

Source: OpenTelemetry, "Tracing SDK".
"""

from __future__ import annotations

import _socket
import os
import select
import time

from launcher.core.redact import quote
from launcher.events.writer import Sink
from launcher.output.console import Console
from launcher.process.kernel import read_signals
from launcher.process.signals import ENDING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.process.helper import Helpers, Server
    from launcher.process.loop import Loop

PROCESS_NAME = "launcher-trace"
NICE = 19
FLUSH_S, LONGEST_FLUSH_S = 5.0, 60.0
"""Seconds at the end in which the spans can leave, unless the user's limit of the SDK says more."""
LIMIT = "OTEL_EXPORTER_OTLP_TIMEOUT"
FAILED_S = 1.0
"""The same if the destination has failed already: one more try."""
WAITING_MAX_BYTES = 1 << 20
LINE_BYTES = 4096


def read_limit(environ: Mapping[str, str]) -> float:
    """Return how long the end of a job may wait for its traces: the SDK's own limit, if it is set."""
    asked = environ.get(LIMIT, "").strip()
    if asked.isascii() and asked.isdigit() and int(asked[:9]) > 0:
        return min(float(asked[:9]), LONGEST_FLUSH_S)
    return FLUSH_S


class Traces:
    """The process that makes spans of events, and our end of the socket to it."""

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
        self._socket: _socket.socket | None = None
        self._sink: Sink | None = None
        self._server: Server | None = None
        self._text, self._writing = b"", -1
        self._is_over = self._has_complained = self._has_begun = self._is_finishing = False

    def add(self, line: bytes) -> None:
        """Take one event."""
        if self._sink is not None:
            self._sink.add(line)
        elif not self._has_begun and len(self._waiting) < WAITING_MAX_BYTES:
            self._waiting += line

    def open(self, nice: int = NICE) -> None:
        """Start the process, once; ``nice``: its niceness."""
        if self._has_begun:
            return
        self._has_begun = True
        ours, theirs = _socket.socketpair()
        fd = theirs.detach()

        def work() -> None:
            try:
                from launcher.events.exporter import export
            except Exception as error:  # an installation in pieces
                what = quote(f"{type(error).__name__}: {error}", LINE_BYTES // 8)
                os.write(fd, f"no traces: {what}; the job goes on\n".encode())
            else:
                export(fd, self._environ, self._own)

        try:
            self._server = self._helpers.serve(work, ours.fileno(), fd, name=PROCESS_NAME, nice=nice)
        except OSError as error:
            ours.detach()  # closed already
            self._report(f"no traces: {error.strerror}; the job goes on")
            return
        self._socket = ours
        self._loop.add(ours.fileno(), self._hear)
        self._writing = os.dup(ours.fileno())  # the loop has one handler for each descriptor
        console = Console(self._writing, "the process of the traces")
        self._sink = Sink(console, self._loop, self._report)
        self._sink.add(bytes(self._waiting))
        self._waiting.clear()

    def _report(self, text: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            self._complain(text)

    def _hear(self) -> None:
        """Read what the process says: a line if the spans do not leave; its end."""
        assert self._socket is not None  # noqa: S101 - the loop watches it
        try:
            data = os.read(self._socket.fileno(), LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:  # killed before it has read everything
            data = b""
        self._text = (self._text + data)[:LINE_BYTES]
        line, newline, _ = self._text.partition(b"\n")
        if newline:
            self._report(line.decode("utf-8", "replace"))
        if not data:
            self._is_over = True
            self._loop.remove(self._socket.fileno())
            if not self._is_finishing:
                self._report("no more traces: their process was killed; the job goes on")

    def finish(self, signals_fd: int) -> None:
        """Have the process send the rest, for a limited time.

        Args:
            signals_fd: The launcher's signals: one that ends programs ends the wait.
        """
        self.open(nice=0)  # no process of the job is left that needs the CPU more
        if self._socket is None or self._sink is None or self._server is None:
            return
        deadline, self._is_finishing = time.monotonic() + self._limit_s, True
        self._loop.remove(self._socket.fileno())
        self._sink.close(deadline)
        if not self._is_over:
            self._wait(deadline, signals_fd)
        os.close(self._writing)
        self._socket.close()
        self._server.close()

    def _wait(self, deadline: float, signals_fd: int) -> None:
        """Wait for the end of the process: nothing else is left to do, and no loop is needed for it."""
        assert self._socket is not None  # noqa: S101 - `finish` has seen it
        try:
            self._socket.shutdown(_socket.SHUT_WR)
        except OSError:
            return  # it was killed
        gate = select.poll()
        for fd in (self._socket.fileno(), signals_fd):
            gate.register(fd, select.POLLIN)
        while not self._is_over:
            if self._has_complained:
                deadline = min(deadline, time.monotonic() + FAILED_S)
            left_s = deadline - time.monotonic()
            ready = [fd for fd, _ in gate.poll(left_s * 1000)] if left_s > 0 else []
            if not ready:
                self._report(
                    f"the traces are not complete: they could not be sent within {self._limit_s:g} s"
                )
                return
            if any(number in ENDING for number, *_ in read_signals(signals_fd)):
                self._report("the traces are not complete: a signal came before they were sent")
                return
            if self._socket.fileno() in ready:
                self._hear()
