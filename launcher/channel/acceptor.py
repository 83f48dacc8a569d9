"""Lets in what comes with the key and a first message; all else is turned away, counted and named.

A connection that has not passed the handshake costs a socket and 64 bytes for a few seconds at most. There
are never more than `PENDING_MAX` of them. Where more come than that, a place is taken from the address that
holds most of them: however often one calls, the others get in.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import Counter
from errno import ECONNABORTED, EMFILE, ENFILE

from launcher.channel.connection import Connection
from launcher.channel.frames import Answering, Intruder
from launcher.channel.turned_away import TurnedAway

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.process.loop import Loop

Message = dict[str, object]

PENDING_MAX = 256
"""Connections that have not said hello yet. More wait in the kernel, or take the place of who is slow."""
SLOW_S = 1.0
"""What takes longer than this to say hello yields to others when there are too many ..."""
CROWD = 32
"""... and where one address holds more places than a node has launchers, its oldest yields sooner: a flood of
2,500 connections a second from there finds a place for each, and none for ever."""
CROWDED_S = 0.1
HELLO_S = 5.0
BACKLOG = 4096
ACCEPTED_AT_ONCE = 64
READ_BYTES = 4096


class Door:
    """A connection that has not said hello."""

    __slots__ = ("address", "answering", "connection", "number", "since", "socket")

    def __init__(self, connected: socket.socket, address: str, key: bytes, since: float) -> None:
        self.socket, self.address, self.since = connected, address, since
        self.number = connected.fileno()
        self.answering = Answering(key)
        self.connection: Connection | None = None


class Acceptor:
    """The listening socket, and those who have come and not said who they are.

    Attributes:
        strangers: Who was turned away.
        has_heard: Whether anybody has called, whoever it was.
    """

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        loop: Loop,
        say: Callable[[str], None],
        admit: Callable[[Connection, str, Message], None],
    ) -> None:
        """Begin to listen.

        Args:
            listener: A socket that listens.
            key: Of the job.
            loop: Who waits for the sockets.
            say: Says something in the log.
            admit: Takes a connection, the address it came from, and the first message that it has sent; a
                `Garbled` from it turns the connection away.
        """
        self.strangers = TurnedAway(say)
        self.has_heard = False
        self._listener, self._key, self._loop, self._admit = listener, key, loop, admit
        self._doors: dict[int, Door] = {}
        self._is_listening = True
        self._resume_at = 0.0
        self._has_said_full = False
        self._say = say
        listener.setblocking(False)
        loop.add(listener.fileno(), self._on_accept)

    def __len__(self) -> int:
        return len(self._doors)

    def _on_accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if len(self._doors) >= PENDING_MAX and not self._make_room():
                self._pause()
                return
            try:
                connected, where = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (EMFILE, ENFILE):
                    self._pause()  # one may have left by the next look
                    self._say_full(error)
                if error.errno != ECONNABORTED:
                    return
                continue
            self.has_heard = True
            connected.setblocking(False)
            door = Door(connected, str(where[0]), self._key, time.monotonic())
            self._doors[door.number] = door
            self._loop.add(door.number, lambda door=door: self._on_ready(door))  # type: ignore[misc]

    def _say_full(self, error: OSError) -> None:
        if not self._has_said_full:
            self._has_said_full = True
            self._say(f"no more connections can be taken: {error.strerror} (ulimit -n); trying again")

    def _make_room(self) -> bool:
        """Turn away one that has taken too long; return whether there was one."""
        slow = self._find_slow()
        if slow is None:
            return False
        if slow.connection is None:
            self._on_ready(slow)  # it may have said by now what we have had no time to hear
            if slow.connection is not None:
                return len(self._doors) < PENDING_MAX  # it has the key
        if slow.number in self._doors:
            self._turn_away(slow, "said no hello, and others were waiting")
        return True

    def _find_slow(self) -> Door | None:
        """Return the oldest of the address that holds most places, if it has had its time."""
        held = Counter(door.address for door in self._doors.values())
        most = max(held.values(), default=0)
        oldest = next((door for door in self._doors.values() if held[door.address] == most), None)
        patience_s = CROWDED_S if most > CROWD else SLOW_S
        return None if oldest is None or time.monotonic() - oldest.since < patience_s else oldest

    def _pause(self) -> None:
        if self._is_listening:
            self._is_listening = False
            self._resume_at = time.monotonic() + CROWDED_S
            self._loop.remove(self._listener.fileno())

    def _resume(self) -> None:
        if not self._is_listening and (len(self._doors) < PENDING_MAX or self._find_slow() is not None):
            self._is_listening = True
            self._loop.add(self._listener.fileno(), self._on_accept)

    @property
    def due(self) -> float | None:
        """When `look` can let in one that waits (monotonic seconds); None where none has to wait."""
        return None if self._is_listening else self._resume_at

    def _on_ready(self, door: Door) -> None:
        """Somebody who is not known yet says something."""
        try:
            data = door.socket.recv(READ_BYTES)
            if not data:
                self._turn_away(door, "hung up before it said who it is")
                return
            reply = door.answering.feed(data)
            if reply:
                door.socket.send(reply)  # 64 bytes into an empty buffer: they fit
        except (BlockingIOError, InterruptedError):
            return
        except Intruder as intruder:
            self._turn_away(door, str(intruder))
            return
        except OSError as error:
            self._turn_away(door, error.strerror or "broken")
            return
        sealed = door.answering.sealed
        if sealed is None:
            return
        self._loop.remove(door.number)
        door.connection = connection = Connection(
            door.socket,
            sealed,
            self._loop,
            lambda message: self._on_hello(door, connection, message),
            lambda why: self._turn_away(door, why),
        )
        connection.take(door.answering.rest)

    def _on_hello(self, door: Door, connection: Connection, message: Message) -> None:
        self._admit(connection, door.address, message)
        self._doors.pop(door.number, None)
        self._resume()

    def _turn_away(self, door: Door, why: str) -> None:
        """Close a connection that is nobody's."""
        self.strangers.note(door.address, why)
        self._close(door)
        self._resume()

    def _close(self, door: Door) -> None:
        self._doors.pop(door.number, None)
        if door.connection is not None:
            door.connection.close()
        else:
            self._loop.remove(door.number)
            door.socket.close()

    def look(self, now: float) -> None:
        """Turn away what has taken too long."""
        self._resume_at = now + CROWDED_S
        for door in list(self._doors.values()):
            if now - door.since <= HELLO_S:
                break  # the others came later
            self._turn_away(door, f"said no hello within {HELLO_S:g} s")
        self._resume()

    def close(self) -> None:
        """Let nothing in any more, and say how many were turned away."""
        self.strangers.say_summary()
        self._pause()
        self._listener.close()
        for door in list(self._doors.values()):
            self._close(door)


def listen(address: str, ports: tuple[int, ...]) -> tuple[socket.socket, int]:
    """Return a socket that listens at an address of ours, and its port: the first of some that is free.

    Raises:
        OSError: None is.
    """
    problem = OSError("no port")
    for port in ports:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(BACKLOG)
        except OSError as error:
            problem = error
            with contextlib.suppress(OSError):
                listener.close()
            continue
        return listener, port
    raise problem
