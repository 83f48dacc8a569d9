"""One connection between two programs that know each other: messages in, messages out, never waiting."""

from __future__ import annotations

import contextlib
import os
import socket
import time

from launcher.core.messages import Garbled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Protocol

    from launcher.process.loop import Loop

    class Framing(Protocol):
        """How messages become bytes: `launcher.channel.frames.Sealed`, `launcher.channel.lines.Lines`."""

        def pack(self, message: Mapping[str, object]) -> bytes:
            """Return a message as it is sent."""

        def feed(self, data: bytes) -> Iterable[dict[str, object]]:
            """Return the messages that are complete now."""


READ_BYTES = 1 << 16
UNSENT_LIMIT_BYTES = 1 << 18
"""Four frames of the largest kind: what takes less than that is gone, or means ill."""
CLOSED, NO_MESSAGE = "closed by the other side", "sends what is no message"
KEEP_ALIVE = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # Heartbeats tell what is gone, where there are some; the kernel is to give up as well, and to free what
    # it holds, also where nothing is to be sent.
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
)


class Connection:
    """An open connection, after its handshake if it has one: a socket, or a pipe for each direction.

    Attributes:
        is_open: Whether anything can still be sent.
        took_at: When the other side has last taken something, or nothing was left to take; monotonic seconds.
    """

    __slots__ = (
        "_finishes", "_framing", "_hear", "_is_closed", "_limit", "_loop", "_lose", "_reading", "_unsent",
        "_waits", "_why", "_writing", "is_open", "took_at",
    )  # fmt: skip

    def __init__(
        self,
        ends: tuple[int, int],
        framing: Framing,
        loop: Loop,
        hear: Callable[[dict[str, object]], None],
        lose: Callable[[str], None],
        limit_bytes: int = UNSENT_LIMIT_BYTES,
    ) -> None:
        """Take over descriptors that the loop does not watch.

        Args:
            ends: Where to read and where to write, both non-blocking; one socket may be both.
            framing: How messages become bytes.
            loop: Waits for them.
            hear: Called with each message; a `Garbled` from it ends the connection.
            lose: Called once, with the reason, when the connection ends and not by `close`.
            limit_bytes: What the other side need not have taken yet; with more the connection ends.
        """
        self._reading, self._writing = ends
        self._framing, self._loop, self._limit = framing, loop, limit_bytes
        self._hear, self._lose = hear, lose
        self._unsent = bytearray()
        self._waits = self._finishes = self._is_closed = False
        self._why = ""
        self.is_open = True
        self.took_at = 0.0
        loop.add(self._reading, self._on_ready)

    @classmethod
    def of_socket(
        cls,
        connected: socket.socket,
        framing: Framing,
        loop: Loop,
        hear: Callable[[dict[str, object]], None],
        lose: Callable[[str], None],
        limit_bytes: int = UNSENT_LIMIT_BYTES,
    ) -> Connection:
        """Take over a socket, non-blocking, that the loop does not watch."""
        if connected.family != socket.AF_UNIX:
            for option in KEEP_ALIVE:
                with contextlib.suppress(OSError):
                    connected.setsockopt(*option)
        number = connected.detach()
        return cls((number, number), framing, loop, hear, lose, limit_bytes)

    def redirect(self, hear: Callable[[dict[str, object]], None], lose: Callable[[str], None]) -> None:
        """Give what comes to something else from now on."""
        self._hear, self._lose = hear, lose

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message, now or when the other side takes it."""
        if not self.is_open or self._finishes:
            return
        data = self._framing.pack(message)
        if self._unsent:
            self._unsent += data
            if len(self._unsent) > self._limit:
                self._end("does not take what it is sent")
            return
        self.took_at = time.monotonic()
        self._unsent += data
        self._flush()

    def take(self, data: bytes) -> None:
        """Handle what has arrived."""
        try:
            for message in self._framing.feed(data):
                self._hear(message)
                if self._is_closed:
                    return
        except Garbled as garbled:
            self._end(f"{NO_MESSAGE}: {garbled}")

    def read(self) -> None:
        """Handle what is there now, without waiting for it."""
        if self._is_closed:
            return
        try:
            data = os.read(self._reading, READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error.strerror or "broken")
            return
        if data:
            self.take(data)
        else:
            self._end(self._why or CLOSED)

    def finish(self) -> None:
        """End it as soon as the other side has taken all."""
        self._finishes = True
        if not self._unsent:
            self._end("all was said")

    def close(self) -> None:
        """End it from our side; what the other side has not yet taken is lost."""
        if not self._is_closed:
            self.is_open, self._is_closed = False, True
            for number in {self._reading, self._writing}:
                self._loop.remove(number)
                os.close(number)

    @property
    def has_unsent(self) -> bool:
        """Whether the other side has not yet taken all."""
        return self.is_open and bool(self._unsent)

    def _on_ready(self) -> None:
        if self._unsent:
            self._flush()
        self.read()

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._writing, self._unsent[:READ_BYTES])]
                self.took_at = time.monotonic()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            # What it has said before it went is still to be read, and after that its end
            self.is_open, self._why = False, error.strerror or "broken"
            self._unsent.clear()
        if bool(self._unsent) != self._waits:
            self._waits = bool(self._unsent)
            self._watch_writing()
        if self._finishes and not self._unsent:
            self._end("all was said")

    def _watch_writing(self) -> None:
        if self._reading == self._writing:
            self._loop.want_writable(self._writing, wanted=self._waits)
        elif self._waits:
            self._loop.add(self._writing, self._flush, writable=True)
        else:
            self._loop.remove(self._writing)

    def _end(self, why: str) -> None:
        if not self._is_closed:
            self.close()
            self._lose(why)
