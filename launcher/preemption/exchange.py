"""One request to the metadata service and its answer, in the supervisor's loop; it never blocks."""

from __future__ import annotations

import socket
import time
from errno import EINPROGRESS
from os import strerror

from launcher.preemption.answers import ServiceAnswer, Unclear, parse_answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.process.loop import Loop

ADDRESS, PORT = "169.254.169.254", 80
"""The same on Azure, AWS and GCP. There is no name to resolve and no proxy, and no router forwards it (RFC
3927)."""
ANSWER_S = 4.0
READ_BYTES = 1 << 14


class Exchange:
    """One request.

    Attributes:
        until: Its deadline in monotonic seconds.
    """

    def __init__(self, request: bytes, loop: Loop, done: Callable[[ServiceAnswer | str], None]) -> None:
        """Prepare the request; ``done`` is called once, with the answer or with why there is none."""
        self.until = time.monotonic() + ANSWER_S
        self._request, self._loop, self._done = request, loop, done
        self._socket: socket.socket | None = None
        self._data = b""

    def begin(self) -> None:
        """Open the connection, over which the request is sent."""
        try:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            error = self._socket.connect_ex((ADDRESS, PORT))
            if error not in (0, EINPROGRESS):
                raise OSError(error, strerror(error))
            self._loop.add(self._socket.fileno(), self._on_connected, writable=True)
        except OSError as error:
            self._end(error.strerror or "no connection")

    def give_up(self) -> None:
        """Report that the answer has taken too long."""
        self._end(f"no answer within {ANSWER_S:g} s")

    def close(self) -> None:
        """Close the connection without a call of ``done``."""
        if self._socket is not None:
            self._loop.remove(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _on_connected(self) -> None:
        assert self._socket is not None  # noqa: S101 - it has just become writable
        error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._end(strerror(error))
            return
        self._loop.remove(self._socket.fileno())
        try:
            self._socket.send(self._request)  # a few hundred bytes: they fit into the kernel's buffer
            self._loop.add(self._socket.fileno(), self._on_answer)
        except OSError as problem:
            self._end(problem.strerror or "broken")

    def _on_answer(self) -> None:
        assert self._socket is not None  # noqa: S101 - it has just become readable
        try:
            data = self._socket.recv(READ_BYTES)
            self._data += data
            answer = parse_answer(self._data, has_ended=not data)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error.strerror or "broken")
            return
        except Unclear as unclear:
            self._end(str(unclear))
            return
        if answer is not None:
            self._end(answer)

    def _end(self, outcome: ServiceAnswer | str) -> None:
        self.close()
        self._done(outcome)
