"""A listening socket in the loop: accepts limited numbers of connections, and only if there is room."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from errno import EAGAIN, ECONNABORTED, EINTR, EMFILE, ENFILE

from launcher.core.errors import make_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.core.log import Say
    from launcher.process.loop import Loop

BACKLOG = 4096
ACCEPTED_AT_ONCE = 64
PAUSE_S = 0.1
"""Seconds without accepting if there is no room or no descriptor left."""


class Listener:
    """A listening socket in the loop.

    Attributes:
        has_heard: Whether any client has connected.
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
        self._resume_at: float | None = None
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
        self._resume_at = time.monotonic() + PAUSE_S
        self._loop.remove(self._listening.fileno())

    @property
    def due(self) -> float | None:
        """When to call `fire` (monotonic seconds)."""
        return self._resume_at

    def fire(self, now: float) -> None:
        """Accept connections again after a pause."""
        if self._resume_at is not None and now >= self._resume_at:
            self.resume()

    def resume(self) -> None:
        """Accept connections again, because there may be room."""
        if self._resume_at is not None and not self._is_closed:
            self._resume_at = None
            self._loop.add(self._listening.fileno(), self._on_call)

    def close(self) -> None:
        """Stop listening."""
        if not self._is_closed:
            self._is_closed, self._resume_at = True, None
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
