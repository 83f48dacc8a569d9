"""Connections between programs that exchange messages, and sockets that listen for them; never waits."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from errno import EAGAIN, ECONNABORTED, EINTR, EMFILE, ENFILE

from launcher.channel.lines import encode
from launcher.core.errors import make_error
from launcher.core.redact import LimitedSearch
from launcher.core.wire import Garbled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Protocol

    from launcher.core.log import Say
    from launcher.process.loop import Loop

    class Framing(Protocol):
        """Converts messages to bytes: `launcher.channel.frames.Sealed`, `launcher.channel.lines.Lines`."""

        def frame(self, encoded: bytes) -> bytes:
            """Return an encoded message as bytes to send."""

        def feed(self, data: bytes) -> Iterable[dict[str, object]]:
            """Return the messages that are now complete."""


READ_BYTES = 1 << 16
UNSENT_LIMIT_BYTES = 1 << 22
"""Four frames of maximum size: a peer that leaves more unread is gone or malicious."""
AT_ONCE = struct.pack("ii", 1, 0)
"""For SO_LINGER: close(2) drops what was not sent, and resets the connection; see socket(7)."""
CLOSED, NO_MESSAGE = "closed by the other side", "sent an invalid message"
KEEP_ALIVE = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # Heartbeats, if there are any, detect a peer that is gone. The kernel should give it up too, and
    # free its memory, even if there is nothing to send.
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
)

BACKLOG = 4096
ACCEPTED_AT_ONCE = 64
PAUSE_S = 0.1
"""Seconds without accepting if there is no room or no descriptor left."""


class Connection:
    """An open connection, after its handshake if any.

    Attributes:
        is_open: Whether messages can still be sent.
        resets: Whether the end on our side resets the connection. Without that it looks to the peer like the
            end of this process, whose sockets the kernel closes.
        limit_bytes: Maximum of unsent data; with more, the connection ends.
        took_at: When the peer last took data, or nothing was left to take; monotonic seconds.
    """

    __slots__ = (
        "_fd", "_finishes", "_framing", "_hear", "_is_closed", "_loop", "_lose", "_unsent", "_waits", "_why",
        "is_open", "limit_bytes", "resets", "took_at",
    )  # fmt: skip

    def __init__(
        self,
        connected: socket.socket,
        framing: Framing,
        loop: Loop,
        hear: Callable[[dict[str, object]], None],
        lose: Callable[[str], None],
        limit_bytes: int = UNSENT_LIMIT_BYTES,
    ) -> None:
        """Take over a socket that the loop does not watch.

        Args:
            connected: A non-blocking socket.
            framing: Converts messages to bytes.
            loop: Waits for it.
            hear: Called with each message; if it raises `Garbled`, the connection ends.
            lose: Called once, with the reason, if the connection ends other than by `close`.
            limit_bytes: Maximum of unsent data; with more, the connection ends.
        """
        if connected.family != socket.AF_UNIX:
            for option in KEEP_ALIVE:
                with contextlib.suppress(OSError):
                    connected.setsockopt(*option)
        self._fd = connected.detach()
        self._framing, self._loop, self.limit_bytes = framing, loop, limit_bytes
        self._hear, self._lose = hear, lose
        self._unsent = bytearray()
        self._waits = self._finishes = self._is_closed = False
        self._why = ""
        self.is_open, self.resets = True, False
        self.took_at = 0.0
        loop.add(self._fd, self._on_ready)

    def redirect(
        self,
        hear: Callable[[dict[str, object]], None],
        lose: Callable[[str], None],
    ) -> None:
        """Replace both callbacks."""
        self._hear, self._lose = hear, lose

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message, now or as soon as the peer can take it."""
        self.send_encoded(encode(message))

    def send_encoded(self, encoded: bytes) -> None:
        """Send a message that was encoded once for several peers; see `launcher.channel.lines.encode`."""
        if not self.is_open or self._finishes:
            return
        data = self._framing.frame(encoded)
        if self._unsent:
            self._unsent += data
            if len(self._unsent) > self.limit_bytes:
                self._end("does not read its messages")
            return
        self.took_at = time.monotonic()
        self._unsent += data
        self._flush()

    def take(self, data: bytes) -> None:
        """Handle data that has arrived."""
        try:
            for message in self._framing.feed(data):
                with LimitedSearch():
                    self._hear(message)
                if self._is_closed:
                    return
        except Garbled as garbled:
            self._end(f"{NO_MESSAGE}: {garbled}")

    def read(self) -> None:
        """Handle the data that is available now, without waiting."""
        if self._is_closed:
            return
        try:
            data = os.read(self._fd, READ_BYTES)
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
        """End the connection as soon as the peer has taken all data."""
        self._finishes = True
        if not self._unsent:
            self._end("finished")

    def close(self) -> None:
        """Close the connection on our side; data that was not sent yet is lost."""
        if not self._is_closed:
            self.is_open, self._is_closed = False, True
            self._loop.remove(self._fd)
            if self.resets:
                with contextlib.suppress(OSError), socket.socket(fileno=self._fd) as connected:
                    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            else:
                os.close(self._fd)

    @property
    def has_unsent(self) -> bool:
        """Whether data is left to send."""
        return self.is_open and bool(self._unsent)

    def _on_ready(self) -> None:
        if self._unsent:
            self._flush()
        self.read()

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._fd, self._unsent[:READ_BYTES])]
                self.took_at = time.monotonic()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            # Data that the peer sent before is still unread; after it comes the end of the connection.
            self.is_open, self._why = False, error.strerror or "broken"
            self._unsent.clear()
        if bool(self._unsent) != self._waits:
            self._waits = bool(self._unsent)
            self._loop.want_writable(self._fd, wanted=self._waits)
        if self._finishes and not self._unsent:
            self._end("finished")

    def _end(self, why: str) -> None:
        if not self._is_closed:
            self.close()
            self._lose(why)


class Listener:
    """A listening socket in the loop.

    Attributes:
        has_heard: Whether any client has connected.
        due: When to call `fire` (monotonic seconds); None unless it pauses.
    """

    def __init__(
        self,
        listening: socket.socket,
        loop: Loop,
        take: Callable[[socket.socket, str], None],
        has_room: Callable[[], bool] = lambda: True,
        say: Say = lambda what, event: None,
    ) -> None:
        """Start to accept connections.

        Args:
            listening: The listening socket.
            loop: Waits for it.
            take: Takes a connection, non-blocking, and its address (empty for a socket with a path).
            has_room: Whether one more can be taken; it may make room.
            say: Prints a message in the log.
        """
        self.has_heard = False
        self._listening, self._loop, self._take, self._has_room, self._say = (
            listening, loop, take, has_room, say,
        )  # fmt: skip
        self.due: float | None = None
        self._is_closed = self._has_said = False
        listening.setblocking(False)
        loop.add(listening.fileno(), self._on_call)

    def _on_call(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if not self._has_room():
                self._pause()
                return
            try:
                connected, where = self._listening.accept()
            except OSError as error:
                if error.errno == ECONNABORTED:
                    continue
                if error.errno not in (EAGAIN, EINTR):
                    self._pause()  # a descriptor may be free by then; without a pause the loop would spin
                    self._say_why(error)
                return
            self.has_heard = True
            connected.setblocking(False)
            self._take(connected, str(where[0]) if isinstance(where, tuple) else "")

    def _say_why(self, error: OSError) -> None:
        if not self._has_said:
            self._has_said = True
            is_full = error.errno in (EMFILE, ENFILE)
            which, where = ("more connections", "ulimit -n") if is_full else ("connections", "accept4")
            self._say(f"cannot accept {which}: {error.strerror} ({where}); trying again", "accept-paused")

    def _pause(self) -> None:
        self.due = time.monotonic() + PAUSE_S
        self._loop.remove(self._listening.fileno())

    def fire(self, now: float) -> None:
        """Accept connections again after a pause."""
        if self.due is not None and now >= self.due:
            self.resume()

    def resume(self) -> None:
        """Accept connections again, because there may be room."""
        if self.due is not None and not self._is_closed:
            self.due = None
            self._loop.add(self._listening.fileno(), self._on_call)

    def close(self) -> None:
        """Stop listening."""
        if not self._is_closed:
            self._is_closed, self.due = True, None
            self._loop.remove(self._listening.fileno())
            self._listening.close()


def listen(address: str, ports: tuple[int, ...]) -> tuple[socket.socket, int]:
    """Return a socket listening on one of our addresses, and its port: the first free one.

    Raises:
        OSError: No port is free.
    """
    problem = OSError("no port")
    for port in ports:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((address, port))
            listening.listen(BACKLOG)
        except OSError as error:
            problem = error
            with contextlib.suppress(OSError):
                listening.close()
            continue
        return listening, port
    raise problem


def open_listener(address: str, ports: tuple[int, ...]) -> tuple[socket.socket, int]:
    """Return a socket that listens at node 0's address, and its port.

    Raises:
        NotReady: No port is free at this address.
    """
    try:
        return listen(address, ports)
    except OSError as error:
        named = f"{ports[0]}" if len(ports) == 1 else f"{ports[0]} to {ports[-1]}"
        raise make_error("no-control-port", address=address, named=named, reason=error.strerror) from error


def read_peer(connection: socket.socket) -> tuple[int, int]:
    """Return (PID, UID) of the process at the other end of a socket with a path, from the kernel."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid
