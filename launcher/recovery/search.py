"""Searches output for a pattern in a fork of the launcher, whose loop a pattern must never block.

The time of a search can grow exponentially with the line, as that of ``(a+)+$`` does, and Python cannot
interrupt it. So the kernel ends the fork once a search has used `LIMIT_S` of CPU time. The rest of the
attempt is not searched then.
"""

from __future__ import annotations

import os
import re
import socket
import time

from launcher.core.signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.log import Say
    from launcher.process.helper import Helpers, Served
    from launcher.process.loop import Loop

LIMIT_S = 1.0
"""Seconds of CPU time for one part of the output; a usual pattern needs microseconds."""
SETTLE_S = 5.0
"""Seconds that the end of an attempt waits for the search of its last output."""
PART_BYTES = 1 << 16
"""A part is searched at once, and fits in a socket's buffer."""
WAITING_BYTES = 8 << 20
"""Bytes of output that wait for the search; it is given up if there are more."""
FOUND, NOT_FOUND = b"!", b"."


class Search:
    """The search of the output of one attempt.

    Attributes:
        has_found: Whether the pattern was found.
        found_s: When it was found, monotonic seconds; None before.
        is_given_up: Whether not all of the output was searched.
    """

    def __init__(self, pattern: str, helpers: Helpers, loop: Loop, say: Say) -> None:
        self._pattern = re.compile(os.fsencode(pattern), re.MULTILINE)
        self._helpers, self._loop, self._say = helpers, loop, say
        self._socket: socket.socket | None = None
        self._server: Served | None = None
        self.begin()

    def begin(self) -> None:
        """Begin an attempt."""
        self._end()
        self.has_found = self.is_given_up = self._is_busy = False
        self.found_s: float | None = None
        self._waiting = bytearray()

    @property
    def is_over(self) -> bool:
        """Whether the search is over."""
        return self.has_found or self.is_given_up

    def put(self, lines: bytes | bytearray) -> None:
        """Search a part of the output, later; it is at most `PART_BYTES` long."""
        if self.is_over or not lines:
            return
        self._waiting += lines if lines.endswith(b"\n") else lines + b"\n"
        if len(self._waiting) > WAITING_BYTES:
            self._give_up("is slower than the output")
        elif not self._is_busy:
            self._send()

    def finish(self) -> None:
        """Wait for the search of all that was put, or for `SETTLE_S`; the loop goes on."""
        self._loop.turn_until(lambda: self.is_over or not self._is_busy, SETTLE_S)
        if self._is_busy and not self.is_over:
            self._give_up("is slower than the output")
        self._end()

    def _send(self) -> None:
        """Give the fork the next lines; it answers each part, so that its socket never fills up."""
        end = len(self._waiting)
        if end > PART_BYTES:
            end = self._waiting.rfind(b"\n", 0, PART_BYTES) + 1 or PART_BYTES
        part = bytes(self._waiting[:end])
        del self._waiting[:end]
        try:
            if self._socket is None:
                self._start()
            assert self._socket is not None  # noqa: S101 - it has been started
            self._socket.send(part)
            self._is_busy = True
        except OSError as error:
            self._give_up(f"cannot be searched: {error.strerror}")

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd, pattern = theirs.detach(), self._pattern
        ours_fd = ours.detach()
        self._server = self._helpers.serve(lambda: _search(pattern, fd), ours_fd, fd, name="launcher-search")
        self._socket = socket.socket(fileno=ours_fd)
        self._loop.add(ours_fd, self._hear)

    def _hear(self) -> None:
        assert self._socket is not None  # noqa: S101 - the loop watches it
        try:
            answer = self._socket.recv(1)
        except BlockingIOError:
            return
        except OSError:
            answer = b""
        self._is_busy = False
        if answer == FOUND:
            self.has_found, self.found_s = True, time.monotonic()
            self._end()
        elif answer != NOT_FOUND:
            self._give_up(f"needs more than {LIMIT_S:g} s for a part of the output")
        elif self._waiting:
            self._send()

    def _give_up(self, why: str) -> None:
        self.is_given_up = True
        self._say(
            f"--progress-pattern {why}; the rest of this attempt is not searched for progress",
            "progress-unsearched",
        )
        self._end()

    def _end(self) -> None:
        """End the fork."""
        self._is_busy, self._waiting = False, bytearray()
        if self._socket is not None:
            self._loop.remove(self._socket.fileno())
            self._socket.close()
            self._socket = None
        if self._server is not None:
            self._server.close()
            self._server = None


def _search(pattern: re.Pattern[bytes], fd: int) -> None:
    """Answer each part of the output, in the fork; SIGVTALRM ends it if a search needs too long."""
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGVTALRM,))
    connection = socket.socket(fileno=fd)
    while part := connection.recv(2 * PART_BYTES):
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
        found = pattern.search(part)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        connection.send(FOUND if found else NOT_FOUND)
