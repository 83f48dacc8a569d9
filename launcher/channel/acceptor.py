"""Accepts clients that have the key and send a first message; turns away, counts and names all others.

A connection that has not passed the handshake costs a socket and 64 bytes, for a few seconds at most. There
are never more than `PENDING_MAX` of them, nor more than the job can spare of its descriptors. If more come, a
place is taken from the network that holds most of them, and in it from the busiest address: however often one
calls, the others get in. If many addresses call, each connection gets 30 ms: a client with the key needs one,
and a round trip.
"""

from __future__ import annotations

import os
import time
from collections import Counter

from launcher.channel.connection import Connection, Listener
from launcher.channel.frames import Answering, HandshakeFailed
from launcher.core.budget import Bucket, find_busiest, network_of
from launcher.core.redact import quote
from launcher.process.limits import count_spare

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from launcher.core.log import Say
    from launcher.process.loop import Loop

Message = dict[str, object]

PENDING_MAX = 256
"""Maximum number of connections without a first message. More wait in the kernel, or replace a slow one."""
SLOW_S = 1.0
"""A connection without a first message after this time yields to others if there are too many ..."""
CROWD = 32
"""... and if one address holds more places than a node has launchers, or more than `YIELDS` connections had
to yield at once, or `YIELDS_PER_S` a second, the oldest connection yields sooner: even in a flood of 8,000
connections a second each gets a place, and the whole queue of the kernel is through within a second."""
CROWDED_S = 0.03
YIELDS, YIELDS_PER_S = 32, 25.0
FIRST_S = 5.0
READ_BYTES = 4096

NAMED_MAX = 20
"""Maximum number of pairs of address and reason that are kept; others are only counted."""
OF_NETWORK_MAX = NAMED_MAX // 2
"""Maximum number of these pairs for one caller, see `network_of`: others are named as well."""


class Arrival:
    """A connection without a first message yet."""

    __slots__ = ("address", "answering", "connection", "network", "number", "since", "socket")

    def __init__(self, connected: socket.socket, address: str, key: bytes, since: float) -> None:
        self.socket, self.address, self.since = connected, address, since
        self.network, self.number = network_of(address), connected.fileno()
        self.answering = Answering(key)
        self.connection: Connection | None = None


class Acceptor:
    """The listening socket, and the clients that have not identified themselves yet.

    Attributes:
        places: Maximum number of connections without a first message.
        turned_away: The connections that were turned away, counted by address.
    """

    def __init__(
        self,
        listening: socket.socket,
        key: bytes,
        loop: Loop,
        say: Say,
        admit: Callable[[Connection, str, Message], None],
        member_count: int = 0,
    ) -> None:
        """Start to listen.

        Args:
            listening: A listening socket.
            key: Key of the job.
            loop: The loop that waits for the sockets.
            say: Prints a message in the log.
            admit: Takes a connection, its address, and its first message; raises `Garbled` to turn the
                connection away.
            member_count: Number of connections that the job itself needs.
        """
        self.places = min(PENDING_MAX, count_spare(member_count))
        self.turned_away = TurnedAway(say)
        self._key, self._loop, self._admit = key, loop, admit
        self._arrivals: dict[int, Arrival] = {}
        self._calm = Bucket(YIELDS, YIELDS_PER_S)
        self._listener = Listener(listening, loop, self._take, self._has_room, say)

    def __len__(self) -> int:
        return len(self._arrivals)

    @property
    def has_heard(self) -> bool:
        """Whether any client has connected, of the job or not."""
        return self._listener.has_heard

    @property
    def due(self) -> float | None:
        """When `look` may accept waiting connections again (monotonic seconds); None if it accepts them."""
        return self._listener.due

    def _take(self, connected: socket.socket, address: str) -> None:
        arrival = Arrival(connected, address, self._key, time.monotonic())
        self._arrivals[arrival.number] = arrival
        self._loop.add(arrival.number, lambda: self._on_ready(arrival))
        self._on_ready(arrival)  # one that has waited in the kernel has sent its call

    def _has_room(self) -> bool:
        """Return whether there is a place; first take one from a connection that has had its time."""
        if len(self._arrivals) >= self.places:
            slow = self._find_slow()
            if slow is not None and slow.connection is None:
                self._on_ready(slow)  # its first message may have arrived, but we have not read it yet
                if slow.connection is not None:
                    slow = None  # it has the key
            if slow is not None and slow.number in self._arrivals:
                self._calm.take()
                self._turn_away(slow, "sent no message, and others were waiting")
        return len(self._arrivals) < self.places

    def _find_slow(self) -> Arrival | None:
        """Return the oldest connection of the busiest address, if it has had its time.

        A connection that has proved the key keeps its place as long as there is one that has not.
        """
        arrivals, now = self._arrivals.values(), time.monotonic()
        if now - next(iter(arrivals)).since < CROWDED_S:
            return None  # all have come later
        unproven = [arrival for arrival in arrivals if arrival.connection is None] or list(arrivals)
        _, busiest = find_busiest([(arrival.network, arrival.address) for arrival in unproven])
        held = [arrival for arrival in unproven if arrival.address == busiest]
        oldest = held[0]
        patience_s = CROWDED_S if len(held) > CROWD or self._calm.is_empty else SLOW_S
        return None if now - oldest.since < patience_s else oldest

    def _on_ready(self, arrival: Arrival) -> None:
        """Continue the handshake with a client."""
        try:
            data = os.read(arrival.number, READ_BYTES)
            if not data:
                self._turn_away(arrival, "closed the connection before its first message")
                return
            reply = arrival.answering.feed(data)
            if reply:
                os.write(arrival.number, reply)  # 32 bytes into an empty buffer: they fit
        except (BlockingIOError, InterruptedError):
            return
        except HandshakeFailed as failed:
            self._turn_away(arrival, str(failed))
            return
        except OSError as error:
            self._turn_away(arrival, error.strerror or "broken")
            return
        sealed = arrival.answering.sealed
        if sealed is None:
            return
        self._loop.remove(arrival.number)
        arrival.connection = connection = Connection(
            arrival.socket,
            sealed,
            self._loop,
            lambda message: self._on_first(arrival, connection, message),
            lambda why: self._turn_away(arrival, why),
        )
        connection.take(arrival.answering.rest)

    def _on_first(self, arrival: Arrival, connection: Connection, message: Message) -> None:
        self._admit(connection, arrival.address, message)
        self._arrivals.pop(arrival.number, None)
        self._listener.resume()

    def _turn_away(self, arrival: Arrival, why: str) -> None:
        """Close a connection that does not belong to the job."""
        self.turned_away.note(arrival.address, why)
        self._close(arrival)
        self._listener.resume()

    def _close(self, arrival: Arrival) -> None:
        self._arrivals.pop(arrival.number, None)
        if arrival.connection is not None:
            arrival.connection.close()
        else:
            self._loop.remove(arrival.number)
            arrival.socket.close()

    def look(self, now: float) -> None:
        """Turn away connections that have taken too long."""
        for arrival in list(self._arrivals.values()):
            if now - arrival.since <= FIRST_S:
                break  # the others came later
            self._turn_away(arrival, f"sent no message within {FIRST_S:g} s")
        self._listener.fire(now)

    def close(self) -> None:
        """Stop accepting, and report how many connections were turned away."""
        self.turned_away.say_summary()
        self._listener.close()
        for arrival in list(self._arrivals.values()):
            self._close(arrival)


class TurnedAway:
    """The clients that were turned away, and why."""

    def __init__(self, say: Say) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.total = 0
        self._networks: Counter[str] = Counter()
        self._say = say

    def note(self, address: str, why: str) -> None:
        """Record a client that was turned away; report each kept pair of address and reason once.

        Args:
            address: Address of the client.
            why: The kind of reason; after a colon, details that do not make another kind.
        """
        self.total += 1
        kind, colon, detail = why.partition(": ")
        pair = (quote(address, 64), quote(kind, 160))
        if pair not in self.counts:
            network = network_of(address)
            if len(self.counts) >= NAMED_MAX or self._networks[network] >= OF_NETWORK_MAX:
                return
            self._networks[network] += 1
            shown = quote(colon + detail, 160)
            self._say(f"turned away {pair[0]}: {pair[1]}{shown}", "turned-away")
        self.counts[pair] += 1

    def say_summary(self) -> None:
        """Print how many connections were turned away, unless each of them was reported already."""
        if self.total > len(self.counts):
            most = self.counts.most_common(5)
            pairs = ", ".join(f"{address} {count} x ({why})" for (address, why), count in most)
            self._say(f"turned away {self.total} connections: {pairs}", "turned-away")

    def reasons(self) -> dict[str, str]:
        """Return the reason by address; of several reasons, the last new one."""
        return dict(self.counts.keys())
