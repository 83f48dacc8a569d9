"""Control channel of a node other than node 0: finds node 0, joins, stays connected, detects its loss."""

from __future__ import annotations

import random
import time
from collections import deque

from launcher.channel.connection import UNSENT_LIMIT_BYTES, Connection
from launcher.channel.frames import Calling, HandshakeFailed
from launcher.cluster.clocks import Offset, better, measure
from launcher.cluster.connect import (
    MUTE_SHARE,
    NOT_YET,
    SILENT,
    ConnectAttempt,
    ConnectStatus,
    answer_s,
    report,
)
from launcher.cluster.join import LauncherKilled
from launcher.cluster.messages import (
    FROM_COORDINATOR,
    Again,
    Beat,
    Busy,
    NodeNotice,
    Start,
    Waiting,
    Welcome,
)
from launcher.cluster.reach import read_address, resolve
from launcher.cluster.settings import Shape
from launcher.core.budget import Quota
from launcher.core.frozen import replace
from launcher.core.wire import pack, unpack
from launcher.hang.model import Hung, Look
from launcher.job.commands import News
from launcher.job.events import Exited, Failed, Left, Ready, Received
from launcher.job.settings import BEAT_S, QUIET_S, SAY_EVERY_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence
    from typing import Protocol

    from launcher.cluster.join import Join
    from launcher.core.log import Say
    from launcher.process.helper import Take, Work
    from launcher.process.loop import Loop

    class Asked(Protocol):
        """Work that goes on elsewhere."""

        def close(self) -> None:
            """End it, and discard its answer."""

    Ask = Callable[[Work, Take, float], Asked]

Message = dict[str, object]
Endpoint = tuple[int, int]
"""Where node 0 may be: the indexes of one of its addresses and of a port."""

RETRY_FIRST_S, RETRY_S = 0.025, 0.5
"""Seconds between attempts, doubled from the first up to the second: nodes start at about the same moment."""
AGAIN_S = 1.0
"""Seconds for a call to a node 0 that has let us in before: the kernel repeats a call ever more rarely."""
RETRY_LATE_S = 2.0
"""Seconds to wait once the first attempts, in about 5 s, have failed."""
ATTEMPTS_SOON = 14
LOOK_ROUND = 4
"""Every so many attempts the further ports are tried too."""
LATE_S = 1.0
PRINTED = (Hung, Look, News, NodeNotice, Waiting)
"""Messages of node 0 of which each prints a line, or costs a look at our processes."""
UNHEARD_MAX = 64
"""Maximum number of messages that are sent again because node 0 was not heard after them."""
LAST_WORD_S = 0.5
"""Seconds after which a node that gives node 0 up has said so on the connection. A node 0 that was paused
reads it when it goes on; a new connection is not there yet."""
RESOLVE_S = 20.0
"""Seconds to resolve a name: a resolver tries twice, 5 s each, for each of its search domains."""
DELAYS = 15
"""Number of heartbeats whose delays are kept: half a minute, of which a busy moment hides nothing."""
LOOK_S = 3.0


class CoordinatorClient:
    """The control channel on a node other than node 0.

    Attributes:
        due: When to call `fire`.
        offset: Offset from our monotonic clock to node 0's; None before the first welcome.
        connect_status: Why we are not connected, or what node 0 waits for.
        has_met: Whether node 0 has admitted us at least once.
        is_connected: Whether node 0 has admitted us and the connection is open.
        has_started: Whether the start signal has arrived.
        starts_at: None: only node 0 knows when the next attempt starts.
    """

    starts_at: float | None = None

    def __init__(
        self,
        key: bytes,
        shape: Shape,
        join: Join,
        loop: Loop,
        ask: Ask,
        say: Say,
        deliver: Callable[[object], None],
        on_connected: Callable[[], None] = lambda: None,
        on_answered: Callable[[float], None] = lambda sent: None,
        on_lost: Callable[[], None] = lambda: None,
        streams: tuple[type, ...] = (),
        limit_bytes: int = UNSENT_LIMIT_BYTES,
        secret: str = "",
    ) -> None:
        """Prepare to call; nothing is sent before the first `fire`.

        Args:
            key: Key of the job.
            shape: The job.
            join: Facts with which this node joins.
            loop: Waits for the sockets.
            ask: Runs what may block, for at most some seconds, and passes on its lines in a later turn of the
                loop; may raise `OSError`.
            say: Prints a message in this node's log.
            deliver: Takes the messages of node 0.
            on_connected: Called when node 0 has let us in, again or for the first time.
            on_answered: Called when node 0 has answered a heartbeat, or our first message on a connection,
                with the time at which that was sent.
            on_lost: Called when the connection on which node 0 has let us in has ended.
            streams: Types of messages of which none may be lost, or come twice: they end with their
                connection, so that no other one may replace it while it is open.
            limit_bytes: Maximum of data that node 0 does not take.
            secret: What the name of this launcher was made from.
        """
        now = time.monotonic()
        self.due: float | None = now
        self.offset: Offset | None = None
        self._delays: deque[float] = deque(maxlen=DELAYS)
        self.connect_status = ConnectStatus(shape)
        self.has_met = self.is_connected = self.has_started = False
        self._attempt_last = -1
        self._key, self._shape, self._join, self._loop = key, shape, join, loop
        self._quota = Quota(say, shape.node_count)
        self._say, self._deliver = say, deliver
        self._on_connected, self._on_answered, self._on_lost = on_connected, on_answered, on_lost
        self._streams, self._limit, self._secret = streams, limit_bytes, secret
        self._ask = ask
        self._resolving: Asked | None = None
        self._looking: Asked | None = None
        self._answer_s = answer_s(shape.node_count)
        self._addresses: tuple[str, ...] = ()
        self._port = 0  # index in shape.ports
        self._address = 0
        self._attempts = 0
        self._attempt: ConnectAttempt | None = None
        self._mute: list[ConnectAttempt] = []
        """Attempts at earlier ports that were accepted, and may still be answered."""
        self._connection: Connection | None = None
        self._until = self._called_at = 0.0
        self._retry_at: float | None = now
        self._beat_at = now
        self._say_at = now + SAY_EVERY_S
        self._heard = now
        self._unheard: deque[object] = deque(maxlen=UNHEARD_MAX)
        self._is_closed = False

    # --- calling

    def _call(self) -> None:
        """Begin a connection to the next place where the coordinator may be."""
        self._retry_at, self._called_at = None, time.monotonic()
        self._addresses = self._addresses or read_address(self._shape.address)
        if self._addresses:
            self._begin()
            return
        try:
            name = self._shape.address
            self._resolving = self._ask(lambda: resolve(name), self._on_resolved, RESOLVE_S)
        except OSError as problem:
            self._fail(problem.strerror or "no process", next_port=False)

    def _on_resolved(self, addresses: Sequence[str]) -> None:
        """Handle the addresses that a helper has found for node 0's name."""
        self._resolving, self._addresses = None, tuple(addresses)
        if addresses:
            self._begin()
        else:
            self._fail(f"{self._shape.address} cannot be resolved")

    def _begin(self) -> None:
        place = (self._address % len(self._addresses), self._port)
        address, port = self._addresses[place[0]], self._shape.ports[self._port % len(self._shape.ports)]
        attempt = ConnectAttempt(
            self._key,
            self._answer_s,
            self._loop,
            lambda connected, calling: self._open(connected, calling, place),
            lambda why, next_port: self._fail_attempt(attempt, place, why, next_port),
        )
        self._attempt = attempt
        if self.has_met:
            attempt.until = time.monotonic() + AGAIN_S
        attempt.begin(address, port)

    def _fail_attempt(self, attempt: ConnectAttempt, place: Endpoint, why: str, next_port: bool) -> None:
        if attempt not in self._mute:
            # The coordinator takes the first free port. So it is at a later one than a free port only if
            # another job had that port and has ended since: try the later ones now and then.
            looks_further = self._port > 0 or self._attempts % LOOK_ROUND == LOOK_ROUND - 1
            self._fail(why, looks_further if why == NOT_YET else next_port)
            return
        self._mute.remove(attempt)
        if not self._mute and self._attempt is None and self._retry_at is None:
            self._address, self._port = place
            self._fail(why, next_port=False)  # the further places have failed before

    def _call_past(self, now: float) -> None:
        """Call the next place beside one that accepts and does not answer: another program may have it.

        That is the next port. After the last one, or of a node 0 that has let us in at this port, it is the
        next address.
        """
        attempt, at_last_port = self._attempt, self.has_met or self._port + 1 >= len(self._shape.ports)
        place_count = len(self._addresses) * (1 if self.has_met else len(self._shape.ports))
        has_more = len(self._mute) + 1 < place_count and (len(self._addresses) > 1 or not at_last_port)
        if attempt is not None and has_more and attempt.is_mute(now):
            self._mute.append(attempt)
            if at_last_port:
                self._address += 1
                self._port = self._port if self.has_met else 0
            else:
                self._port += 1
            self._begin()

    @property
    def _calls(self) -> list[ConnectAttempt]:
        """All attempts that are in progress."""
        return [*self._mute, *filter(None, (self._attempt,))]

    def _drop_attempts(self) -> None:
        """Close all attempts that are in progress."""
        for attempt in self._calls:
            attempt.close()
        self._mute, self._attempt = [], None

    def _open(self, connected: socket.socket, calling: Calling, place: Endpoint) -> None:
        """Join on the new connection, after both sides have proved themselves; it replaces a silent one."""
        assert calling.sealed is not None  # noqa: S101 - see `ConnectAttempt`
        self._address, self._port = place  # of several calls this one was answered
        self._drop_attempts()
        if self._connection is not None:
            self._connection.close()
        self.is_connected = False
        self._connection = connection = Connection(
            connected, calling.sealed, self._loop, self._on_message, self._on_closed, self._limit
        )
        connection.resets = True  # what runs here may run on: only the end of this launcher is its end
        self._until = time.monotonic() + self._answer_s
        times = {"wall_ns": time.time_ns(), "mono_ns": time.monotonic_ns()}  # for compare_clocks
        join = replace(self._join, begun=self.has_started, attempt=self._attempt_last, **times)
        connection.send(pack(join))
        if connection.is_open:
            connection.take(calling.rest)

    def _fail(self, why: str, next_port: bool = True) -> None:
        """Plan another attempt at the same or the next place, because there is no connection."""
        self._attempt = None
        self.connect_status.note(self._shape.ports[self._port % len(self._shape.ports)], why, self._called_at)
        self._attempts += 1
        now = time.monotonic()
        if next_port and not self.has_met and (self._port + 1) % len(self._shape.ports):
            self._port += 1
            self._retry_at = now
        elif self._mute:
            self._retry_at = None  # one of them may be node 0, and busy: it has one call of ours
        else:
            self._address += 1  # also of one that has let us in: another program may have passed it on
            if not self.has_met:
                self._port = 0
            wait_s = RETRY_S if self.has_met or self._attempts < ATTEMPTS_SOON else RETRY_LATE_S
            if self.has_met and why == SILENT:
                wait_s = RETRY_FIRST_S
            elif not self.has_met:
                wait_s = min(wait_s, RETRY_FIRST_S * 2 ** min(self._attempts, ATTEMPTS_SOON))
            self._retry_at = now + wait_s * random.uniform(0.75, 1.25)  # noqa: S311 - so that not all call at once
            if not self._address % max(1, len(self._addresses)) and not self.has_met:
                self._addresses = ()  # a name may resolve to something else while containers start
        if self._retry_at is not None:
            self.due = self._retry_at if self.due is None else min(self.due, self._retry_at)

    def _on_closed(self, why: str) -> None:
        was_connected, self._connection, self.is_connected = self.is_connected, None, False
        if was_connected:
            self._on_lost()
        if not self._is_closed:
            self._fail(why, next_port=False)

    # --- messages

    def send(self, message: object) -> None:
        """Send a message to node 0; it is sent again after a reconnection if node 0 was not heard after it.

        What is about the end of the job `launcher.job.node` repeats after each reconnection.
        """
        if not isinstance(message, (Failed, Received, Exited, Ready, Left, *self._streams)):
            self._unheard.append(message)
        if self.is_connected and self._connection is not None:
            self._connection.send(pack(message))

    @property
    def is_calling(self) -> bool:
        """Whether an attempt is in progress and node 0 has not admitted us yet."""
        return not self.is_connected and (self._attempt is not None or self._connection is not None)

    @property
    def has_told_all(self) -> bool:
        """Whether we are connected and node 0 has taken everything that we sent."""
        return self.is_connected and self._connection is not None and not self._connection.has_unsent

    @property
    def delay_s(self) -> float | None:
        """Seconds to node 0 and back: the least of the last heartbeats; None if unknown."""
        return min(self._delays, default=None)

    def _on_message(self, packed: Message) -> None:
        """Handle a message of node 0.

        Raises:
            Garbled: It is not a valid message.
        """
        message, now = unpack(packed, (*FROM_COORDINATOR, *self._streams)), time.monotonic()
        if not isinstance(message, Busy):  # of a node 0 that goes on without us
            self._heard = now
            if not isinstance(message, Welcome):
                self._unheard.clear()
        if isinstance(message, PRINTED) and not self._quota.allows():
            return
        match message:
            case Beat():
                self._delays.append(max(0.0, now - message.sent))
                self._on_answered(min(message.sent, now))
            case Welcome():
                back_ns = time.monotonic_ns()
                found = measure(message.asked_ns, message.heard_ns, message.answered_ns, back_ns)
                self.offset = better(self.offset, found)
                self.has_met = self.is_connected = True
                self._attempts = 0
                self.connect_status.reason = f"it waits for other {self._shape.member}s"
                for kept in self._unheard:  # the last connection may have lost it; twice does no harm
                    if self._connection is not None:
                        self._connection.send(pack(kept))
                self._on_answered(min(message.asked_ns / 1e9, now))
                self._on_connected()
            case Waiting():
                self.connect_status.reason = f"it waits for other {self._shape.member}s: {message.what}"
                self._say(f"{self._shape.member} 0 is {message.what}", "waiting")
            case Busy():  # it has our key, but is of another job or started without us: try the next port
                if self._connection is not None:
                    self._connection.close()
                self._connection, self.is_connected, self.has_met = None, False, False
                self._fail(message.why)
            case _:
                if isinstance(message, (Start, Again)):
                    self.has_started = True
                if isinstance(message, Start):
                    self._attempt_last = message.attempt
                self._deliver(message)

    # --- time

    def fire(self, now: float) -> None:
        """Call again, send a heartbeat, and notice if node 0 is silent."""
        late_s = now - (self.due or now)
        if late_s > LATE_S:  # we were paused, not node 0: its messages are still unread
            self._heard += late_s
            self._until += late_s
            for attempt in self._calls:
                attempt.until += late_s
        if self.is_connected and not self._streams:
            self._call_beside(now)
        for when, act in list(self._waits()):
            if now >= when:
                act()
        self._call_past(now)
        if not (self.has_started or self.is_connected) and self._looking is None and now >= self._say_at:
            self._say_at = now + SAY_EVERY_S
            self._look(lambda: self._say(f"waiting for {self._shape.member} 0: {self.explain()}", "waiting"))
        mute_s = self._answer_s * MUTE_SHARE if self._attempt is not None else BEAT_S / 2
        self.due = max(now, min((now + min(mute_s, BEAT_S / 2), *(when for when, _ in self._waits()))))

    def _waits(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """Yield what is to be done, and when."""
        if self._retry_at is not None:
            yield self._retry_at, self._call
        for attempt in self._calls:
            yield attempt.until, attempt.give_up
        if self.is_connected:
            yield self._beat_at, self._beat
            yield self._silent_at + 0.001, lambda: self._hang_up("it stopped responding")
        elif self._connection is not None and self._attempt is None:
            yield self._until, lambda: self._hang_up("no welcome")

    def _beat(self) -> None:
        now = time.monotonic()
        self._beat_at = now + BEAT_S
        if self._connection is not None:
            self._connection.send(pack(Beat(now)))

    def _hang_up(self, why: str) -> None:
        if self._connection is not None:
            self._connection.close()
            self._on_closed(why)

    @property
    def _silent_at(self) -> float:
        """When a connection on which nothing is heard ends: what this node still has to say goes first."""
        return self._heard + self._shape.given_up_s + (0.0 if self._streams else LAST_WORD_S)

    def _call_beside(self, now: float) -> None:
        """Call again beside a silent connection: a link that was down works long before TCP tries it.

        Go on until a call succeeds, even if node 0 is heard: what we sent may still wait. The next address
        comes first: at this one another program may pass calls on, and keep what follows.
        """
        is_calling = self._attempt is not None or self._retry_at is not None or self._resolving is not None
        if not is_calling and now - self._heard > QUIET_S:
            self._address += 1
            self._retry_at = now

    @property
    def reason(self) -> str:
        """Why we are not connected, or what node 0 waits for."""
        return self.connect_status.reason

    def _look(self, then: Callable[[], None]) -> None:
        """Probe node 0's host first, if that may explain more, then call ``then``."""

        def take(lines: Sequence[str]) -> None:
            self._looking = None
            self.connect_status.note_look(lines)
            then()

        if not self.is_connected and self.connect_status.needs_look:
            try:
                self._looking = self._ask(self.connect_status.look, take, LOOK_S)
                return
            except OSError:
                pass  # no more processes for the probe
        then()

    def find_reason(self) -> str:
        """Return why node 0 has not started the job; probe its host first, if that may explain more."""
        found: list[str] = []
        self._look(lambda: found.append(self.explain()))
        self._loop.turn_until(lambda: bool(found), LOOK_S)
        return found[0] if found else self.explain()

    def explain(self) -> str:
        """Return the reason, with the result of probing node 0's host."""
        return self.reason if self.is_connected else self.connect_status.explain(time.monotonic())

    def count_nodes(self) -> dict[str, object]:
        """Return the number of nodes of the job, of those present, and of those lost, as far as we know."""
        is_lost = self.has_started and time.monotonic() - self._heard > self._shape.given_up_s
        return {"count": self._shape.node_count, "heard": 1 + self.is_connected, "lost": int(is_lost)}

    def report_killed(self) -> None:
        """Tell node 0 that this launcher was killed; its watchdog calls this, once nothing of it runs.

        It tries for as long as node 0 may wait for us. Later node 0 has other proof.
        """
        until, killed = time.monotonic() + self._shape.given_up_s, pack(LauncherKilled(self._secret))
        port, places = self._shape.ports[self._port % len(self._shape.ports)], [*self._addresses]
        while places and time.monotonic() < until:
            for address in tuple(places):
                try:
                    report(self._key, address, port, killed)
                    return
                except (ConnectionRefusedError, HandshakeFailed):
                    places.remove(address)  # node 0 has ended
                except OSError:
                    pass  # its link may be down
            time.sleep(RETRY_S)

    def close(self) -> None:
        """Leave the channel."""
        self._is_closed = True
        self._quota.say_dropped()
        for helper in (self._resolving, self._looking):
            if helper is not None:
                helper.close()
        self._resolving = self._looking = None
        self._drop_attempts()
        if self._connection is not None:
            self._connection.resets = False
            self._connection.close()
        self._connection = None
        self.is_connected = False
        self.due = None
