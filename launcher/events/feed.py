"""A process that takes the launcher's events, and the launcher's end of the socket to it.

A write to a disk or a network drive that hangs does not end, nor does a request to a collector. The loop that
watches the processes of a job must not wait for either, so a helper makes them (`launcher.process.helper`).
What it does not take yet waits in a queue of limited size. There are two destinations: a file, and spans of
OpenTelemetry, whose SDK takes 0.1 s to load, and threads.
"""

from __future__ import annotations

import _socket
import os
import select
import time

from launcher.core.frozen import frozen
from launcher.core.redact import quote
from launcher.events.writer import NO_EVENTS, append_events
from launcher.process.kernel import read_signals
from launcher.process.signal_file import ENDING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.process.helper import Helpers
    from launcher.process.loop import Loop

LINE_BYTES = 4096
QUEUE_BYTES = 1 << 20
"""With more than this queued, events are dropped and counted."""
WRITE_BYTES = 1 << 16
FILE_S = 1.0
"""Seconds at the end in which the file can take the last events."""
FLUSH_S, LONGEST_FLUSH_S = 5.0, 60.0
"""Seconds at the end in which the spans can leave, unless the user's limit of the SDK says more."""
LIMIT = "OTEL_EXPORTER_OTLP_TIMEOUT"
FAILED_S = 1.0
"""The same if the collector has failed already: one more try."""


@frozen
class Destination:
    """Where events go.

    Attributes:
        work: Runs in the process, with its end of the socket: events to read until the end of the file, and
            lines to write to the launcher.
        name: The name of the process that ps shows.
        label: The name of the destination in messages.
        limit_s: Seconds that the end of a job may wait for it.
        failed: Message if there is no process, up to the reason.
        gone: Message if the process ends too early, and has not said why.
        late: Message if it has not taken everything in time.
        interrupted: Message if a signal that ends programs came before; empty if signals do not end the wait.
        hurry_s: Seconds that the end waits after a complaint; 0 for no such limit.
    """

    work: Callable[[int], None]
    name: str
    label: str
    limit_s: float
    failed: str
    gone: str
    late: str
    interrupted: str = ""
    hurry_s: float = 0.0


def write_file(path: str) -> Destination:
    """Return the destination that appends events to a file."""
    late = f"{path}: the last events were lost, because it does not accept them fast enough"
    return Destination(
        lambda fd: append_events(fd, path), "launcher-events", path, FILE_S, f"{NO_EVENTS} in {path}",
        f"{path}: no more events, because their writer was killed; the job goes on", late,
    )  # fmt: skip


def send_spans(environ: Mapping[str, str], own: str) -> Destination:
    """Return the destination that makes spans of events; ``own``: this launcher's own run."""

    def work(fd: int) -> None:
        try:
            from launcher.events.exporter import export
        except Exception as error:  # an installation in pieces
            what = quote(f"{type(error).__name__}: {error}", LINE_BYTES // 8)
            os.write(fd, f"no traces: {what}; the job goes on\n".encode())
        else:
            export(fd, environ, own)

    asked, limit_s = environ.get(LIMIT, "").strip(), FLUSH_S
    if asked.isascii() and asked.isdigit() and int(asked[:9]) > 0:
        limit_s = min(float(asked[:9]), LONGEST_FLUSH_S)
    why = "the traces are not complete"
    return Destination(
        work, "launcher-trace", "the process of the traces", limit_s, "no traces",
        "no more traces: their process was killed; the job goes on",
        f"{why}: they could not be sent within {limit_s:g} s", f"{why}: a signal came before they were sent",
        FAILED_S,
    )  # fmt: skip


class EventFeed:
    """The process of a destination, and our end of the socket to it.

    Attributes:
        is_over: Whether the process has ended, or closed its end.
        complaints: Number of lines that were passed on.
    """

    def __init__(
        self, to: Destination, loop: Loop, helpers: Helpers, complain: Callable[[str], None]
    ) -> None:
        """Queue events until `open` starts the process.

        Args:
            to: The destination.
            loop: The loop that watches the socket.
            helpers: Starts the process.
            complain: Called with each line of the process, and with what else is wrong.
        """
        self.is_over, self.complaints = False, 0
        self._to, self._loop, self._helpers, self._complain = to, loop, helpers, complain
        self._socket: _socket.socket | None = None
        self._queue, self._text = bytearray(), b""
        self._lost, self._waits = 0, False

    def open(self, nice: int = 0) -> None:
        """Start the process, once; ``nice``: its niceness."""
        if self._socket is not None or self.is_over:
            return
        ours, theirs = _socket.socketpair()
        fd = theirs.detach()
        try:
            self._helpers.serve(lambda: self._to.work(fd), ours.fileno(), fd, name=self._to.name, nice=nice)
        except OSError as error:
            ours.detach()  # closed already
            self.is_over = True
            self._pass_on(f"{self._to.failed}: {error.strerror}; the job goes on")
            return
        self._socket = ours
        self._loop.add(ours.fileno(), self._on_ready)
        self._write()

    def add(self, line: bytes) -> None:
        """Pass one event on, or queue it; events that do not fit are dropped and counted."""
        if len(self._queue) > QUEUE_BYTES:
            self._lost += 1
        elif not self.is_over:
            self._queue += line
        self._write()

    def finish(self, signals_fd: int) -> None:
        """Have the process take the rest and end, for a limited time, and say if it has not.

        Args:
            signals_fd: The launcher's signals: one that ends programs may end the wait.
        """
        self.open()  # no process of the job is left that needs the CPU more
        if self._socket is None:
            return
        to, ours = self._to, self._socket
        self._loop.remove(ours.fileno())
        why = self._wait(ours, signals_fd if to.interrupted else None)
        if (self._lost or why) and not self.complaints:
            slow = f"{to.label}: {self._lost} events were lost, because it does not accept them fast enough"
            self._pass_on(slow if self._lost else why)
        ours.close()

    def _wait(self, ours: _socket.socket, signals_fd: int | None) -> str:
        """Wait for the end of the process: nothing else is left to do, and no loop is needed for it."""
        to, gate, is_shut = self._to, select.poll(), False
        deadline_s = time.monotonic() + to.limit_s
        if signals_fd is not None:
            gate.register(signals_fd, select.POLLIN)
        while not self.is_over:
            if not self._queue and not is_shut:
                is_shut = True
                try:
                    ours.shutdown(_socket.SHUT_WR)
                except OSError:
                    return ""  # it was killed
            gate.register(ours.fileno(), select.POLLIN | (select.POLLOUT if self._queue else 0))
            if self.complaints and to.hurry_s:
                deadline_s = min(deadline_s, time.monotonic() + to.hurry_s)
            left_s = deadline_s - time.monotonic()
            ready = [fd for fd, _ in gate.poll(left_s * 1000)] if left_s > 0 else []
            if not ready:
                return to.late
            if signals_fd in ready and any(number in ENDING for number, *_ in read_signals(signals_fd)):
                return to.interrupted
            self._on_ready()
        return ""

    def _on_ready(self) -> None:
        self._hear()
        self._write()

    def _write(self) -> None:
        """Write as much of the queue as the process takes now, and wait for the rest."""
        if self._socket is None or self.is_over:
            return
        fd = self._socket.fileno()
        try:
            while self._queue:
                del self._queue[: os.write(fd, self._queue[:WRITE_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            self._queue.clear()  # the process has ended, and so has its end of the socket
        if self._waits != bool(self._queue) and self._loop.watches(fd):
            self._waits = bool(self._queue)
            self._loop.want_writable(fd, wanted=self._waits)

    def _hear(self) -> None:
        """Read the lines of the process, or its end."""
        while self._socket is not None and not self.is_over:
            try:
                data = os.read(self._socket.fileno(), LINE_BYTES)
            except BlockingIOError:
                return
            except OSError:  # killed before it has read everything
                data = b""
            *lines, rest = (self._text + data).split(b"\n")
            self._text = rest[:LINE_BYTES]
            for line in lines:
                self._pass_on(line.decode("utf-8", "replace"))
            if not data:
                self.is_over = True
                is_early = self._loop.watches(self._socket.fileno())
                self._loop.remove(self._socket.fileno())
                if is_early and not self.complaints:
                    self._pass_on(self._to.gone)

    def _pass_on(self, text: str) -> None:
        self.complaints += 1
        self._complain(text)
