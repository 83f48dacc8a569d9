"""One connection between two launchers that know each other: messages in, messages out, never waiting."""

from __future__ import annotations

import contextlib
import socket

from launcher.channel.frames import Garbled, Sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.process.loop import Loop

READ_BYTES = 1 << 14
UNSENT_LIMIT_BYTES = 1 << 18
"""Four frames of the largest kind: who takes less than that is gone, or means ill."""
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
    """An open connection after its handshake.

    Attributes:
        is_open: Whether anything can still be sent.
    """

    __slots__ = ("_hear", "_loop", "_lose", "_sealed", "_socket", "_unsent", "_wants", "is_open")

    def __init__(
        self,
        connected: socket.socket,
        sealed: Sealed,
        loop: Loop,
        hear: Callable[[dict[str, object]], None],
        lose: Callable[[str], None],
    ) -> None:
        """Take over a socket that the loop does not watch.

        Args:
            connected: It, non-blocking.
            sealed: What the handshake gave.
            loop: Who waits for it.
            hear: Called with each message; a `Garbled` from it ends the connection.
            lose: Called once, with the reason, when the connection ends and not by `close`.
        """
        self._socket, self._sealed, self._loop = connected, sealed, loop
        self._hear, self._lose = hear, lose
        self._unsent = b""
        self._wants = False
        self.is_open = True
        for option in KEEP_ALIVE:
            with contextlib.suppress(OSError):
                connected.setsockopt(*option)
        loop.add(connected.fileno(), self._on_ready)

    def redirect(self, hear: Callable[[dict[str, object]], None], lose: Callable[[str], None]) -> None:
        """Give what comes to somebody else from now on."""
        self._hear, self._lose = hear, lose

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message, now or when the other side takes it."""
        if not self.is_open:
            return
        data = self._sealed.seal(message)
        if self._unsent:
            self._unsent += data
            if len(self._unsent) > UNSENT_LIMIT_BYTES:
                self._end("does not take what it is sent")
            return
        self._unsent = data
        self._flush()

    def take(self, data: bytes) -> None:
        """Handle what has arrived."""
        try:
            for message in self._sealed.feed(data):
                self._hear(message)
                if not self.is_open:
                    return
        except Garbled as garbled:
            self._end(f"sends what is no message: {garbled}")

    def close(self) -> None:
        """End it from our side; what the other side has not yet taken is lost."""
        if self.is_open:
            self.is_open = False
            self._loop.remove(self._socket.fileno())
            self._socket.close()

    @property
    def has_unsent(self) -> bool:
        """Whether the other side has not yet taken all."""
        return self.is_open and bool(self._unsent)

    def _on_ready(self) -> None:
        if self._unsent:
            self._flush()
        if not self.is_open:
            return
        try:
            data = self._socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error.strerror or "broken")
            return
        if data:
            self.take(data)
        else:
            self._end("closed by the other side")

    def _flush(self) -> None:
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._end(error.strerror or "broken")
            return
        if bool(self._unsent) != self._wants:
            self._wants = bool(self._unsent)
            self._loop.want_writable(self._socket.fileno(), wanted=self._wants)

    def _end(self, why: str) -> None:
        if self.is_open:
            self.close()
            self._lose(why)
