"""A process that takes the launcher's events, and the launcher's end of the socket to it.

A write to a disk or a network drive that hangs does not end, nor does a request to a collector. The loop that
watches the processes of a job must not wait for either, so a helper makes them (`launcher.process.helper`).
What it does not take yet waits in a queue of limited size (`launcher.events.writer.Sink`).
"""

from __future__ import annotations

import _socket
import os
import select
import time

from launcher.events.writer import Sink
from launcher.output.console import Console
from launcher.process.kernel import read_signals
from launcher.process.signals import ENDING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.process.helper import Helpers
    from launcher.process.loop import Loop

LINE_BYTES = 4096


class EventFeed:
    """The process, and our end of the socket to it.

    Attributes:
        is_over: Whether the process has ended, or closed its end.
        complaints: Number of lines that were passed on.
    """

    def __init__(
        self,
        work: Callable[[int], None],
        label: str,
        loop: Loop,
        helpers: Helpers,
        complain: Callable[[str], None],
        gone: str,
        *,
        name: str,
        nice: int = 0,
    ) -> None:
        """Start the process.

        Args:
            work: Runs in the process, with its end of the socket: events to read until the end of the file,
                and lines to write to the launcher.
            label: The name of the destination in messages.
            loop: The loop that watches the socket.
            helpers: Starts the process.
            complain: Called with each line of the process, and with the faults of the connection.
            gone: What is said if the process ends too early, and has not said why.
            name: The name that ps shows.
            nice: Niceness of the process.

        Raises:
            OSError: There is no such process.
        """
        self.is_over, self.complaints = False, 0
        self._loop, self._complain, self._gone, self._text = loop, complain, gone, b""
        ours, theirs = _socket.socketpair()
        fd = theirs.detach()
        try:
            self._server = helpers.serve(lambda: work(fd), ours.fileno(), fd, name=name, nice=nice)
        except OSError:
            ours.detach()  # closed already
            raise
        self._socket = ours
        loop.add(ours.fileno(), self._hear)
        self._writing = os.dup(ours.fileno())  # the loop has one handler for each descriptor
        self._sink = Sink(Console(self._writing, label), loop, self._note_fault)

    def add(self, line: bytes) -> None:
        """Pass one event on, or queue it."""
        if not self.is_over:
            self._sink.add(line)

    def finish(self, deadline_s: float, *, signals_fd: int | None = None, hurry_s: float = 0.0) -> str:
        """Have the process take the rest and end; return why it has not, ``"time"`` or ``"signal"``, if so.

        Args:
            deadline_s: Until when, monotonic seconds.
            signals_fd: The launcher's signals: one that ends programs ends the wait.
            hurry_s: Seconds that are left after a complaint; 0 for no such limit.
        """
        self._gone = ""
        self._loop.remove(self._socket.fileno())
        self._sink.close(deadline_s)
        why = "" if self.is_over else self._wait(deadline_s, signals_fd, hurry_s)
        os.close(self._writing)
        self._socket.close()
        self._server.close()
        return why

    def _wait(self, deadline_s: float, signals_fd: int | None, hurry_s: float) -> str:
        """Wait for the end of the process: nothing else is left to do, and no loop is needed for it."""
        try:
            self._socket.shutdown(_socket.SHUT_WR)
        except OSError:
            return ""  # it was killed
        gate = select.poll()
        for fd in (self._socket.fileno(), signals_fd):
            if fd is not None:
                gate.register(fd, select.POLLIN)
        while not self.is_over:
            if self.complaints and hurry_s:
                deadline_s = min(deadline_s, time.monotonic() + hurry_s)
            left_s = deadline_s - time.monotonic()
            ready = [fd for fd, _ in gate.poll(left_s * 1000)] if left_s > 0 else []
            if not ready:
                return "time"
            if signals_fd in ready and any(number in ENDING for number, *_ in read_signals(signals_fd)):
                return "signal"
            if self._socket.fileno() in ready:
                self._hear()
        return ""

    def _hear(self) -> None:
        """Read the lines of the process, or its end."""
        while not self.is_over:
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
                self._loop.remove(self._socket.fileno())
                if self._gone and not self.complaints:
                    self._pass_on(self._gone)

    def _note_fault(self, text: str) -> None:
        """Pass a fault of the connection on, unless the process has ended, which explains it."""
        self._hear()
        if not self.is_over:
            self._pass_on(text)

    def _pass_on(self, text: str) -> None:
        self.complaints += 1
        self._complain(text)
