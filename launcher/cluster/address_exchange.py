"""Address exchange: the nodes of a job learn each other's addresses if no platform has listed them.

Before the job starts, each launcher connects to the first one at the master's address and port, and tells it
its node. Its address is the one that the connection comes from. When all have connected, the first launcher
sends the addresses of all nodes to each. The port is free again before any process starts. The handshake is
that of the control channel, with the job's key: a client that fails it is turned away, and a launcher that
has connected already is rejected.

A job that may restart has no such exchange. There the start signal of each attempt has the addresses, because
a lost node may come back with another one (`Meeting.at_start`).
"""

from __future__ import annotations

import os
import random
import signal
import time
from errno import ECONNREFUSED
from os import strerror

from launcher.channel.acceptor import PENDING_MAX, Acceptor
from launcher.channel.connection import Connection
from launcher.channel.keys import make_key, name_job, read_token
from launcher.channel.listener import listen
from launcher.cluster.connect import NOT_YET, ConnectAttempt, ConnectOutcome, answer_s
from launcher.cluster.reach import find_address, resolve
from launcher.core.environ import Malformed, each_once
from launcher.core.errors import NotReady, Problem
from launcher.core.log import say
from launcher.core.messages import Garbled, message, pack, unpack
from launcher.core.model import HOSTS_AT_ONCE
from launcher.machine.host import Host
from launcher.process.limits import raise_limit
from launcher.process.loop import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from launcher.channel.frames import Calling
    from launcher.core.messages import Line, NodeRank
    from launcher.core.model import Meeting

STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
TICK_S = 0.2
"""Seconds between two checks of the time, and about that between two calls to the first launcher."""
TAKE_S = 5.0
"""Seconds that a launcher may take to receive the addresses."""
NAMED_MAX = 8


@message
class Here:
    """A launcher identifies itself.

    Attributes:
        session: Random name that tells this launcher from another one with the same numbers.
        member: Index of the launcher in the job.
        member_count: Number of launchers that it expects.
        node: Index of its node.
        node_count: Number of nodes that it expects.
    """

    session: Line
    member: NodeRank
    member_count: int
    node: NodeRank
    node_count: int


@message
class Rejected:
    """The first launcher does not accept this one as a part of the job."""

    why: Line


@message
class Addresses:
    """Addresses of nodes in node order; a large job needs several such messages."""

    hosts: tuple[Line, ...]


def read_hosts(meeting: Meeting, hosts: object) -> tuple[str, ...]:
    """Return the address of every node, node 0 first, as a start signal has them.

    Raises:
        NotReady: They are not one for each node.
    """
    try:
        found = each_once(map(str, hosts if isinstance(hosts, list | tuple) else ()))
    except Malformed as error:
        raise NotReady(_problem(meeting, f"no addresses: {error}")) from error
    if len(found) != meeting.node_count:
        raise NotReady(_problem(meeting, f"{len(found)} addresses for {meeting.node_count} nodes"))
    return found


def meet(meeting: Meeting, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the address of every node, node 0 first.

    Args:
        meeting: Place of the address exchange, and this launcher's index.
        environ: The environment of the launcher.

    Raises:
        NotReady: Not all launchers connected in time, the port is taken, or we were told to stop.
        UsageError: The job's token cannot be read.
    """
    deadline = time.monotonic() + meeting.timeout_s
    key = make_key(read_token(meeting.token_file, environ), name_job(environ, meeting.port))
    loop = Loop(_say)
    side = FirstLauncher(meeting, key, loop) if meeting.member == 0 else OtherLauncher(meeting, key, loop)
    loop.timers.append(side)
    try:
        while not side.is_done:
            _check(meeting, deadline, side)
            loop.turn()
    finally:
        side.close()
        loop.close()
    return side.hosts


def _check(meeting: Meeting, deadline: float, side: FirstLauncher | OtherLauncher) -> None:
    """Check that time is left and that no signal has told us to stop: process 1 has its signals blocked.

    Raises:
        NotReady: The exchange has failed, its time is up, or we were told to stop.
    """
    if STOPS & signal.sigpending():
        raise NotReady(_problem(meeting, "the launcher was told to stop"))
    if side.failure:
        raise NotReady(_problem(meeting, side.failure))
    if time.monotonic() >= deadline:
        raise NotReady(_problem(meeting, f"{side.explain()} within {meeting.timeout_s:g} s"))


class Guest:
    """A launcher that has connected to the first one."""

    def __init__(self, said: Here, address: str, connection: Connection) -> None:
        self.said, self.address, self.connection = said, address, connection


class FirstLauncher:
    """The first launcher: waits for all others, and sends all addresses to each.

    Attributes:
        hosts: Addresses of all nodes, once all launchers have connected.
        failure: Why the nodes cannot come together, once known.
        is_done: Whether all launchers have received the addresses.
        due: When to check the time again.
    """

    def __init__(self, meeting: Meeting, key: bytes, loop: Loop) -> None:
        """Start to listen.

        Raises:
            NotReady: The port is taken, or this node has no address at which others find it.
        """
        self.hosts: tuple[str, ...] = ()
        self.failure = ""
        self.due: float | None = time.monotonic() + TICK_S
        self._meeting = meeting
        self._came: dict[int, Guest] = {}
        self._told_at = 0.0
        raise_limit(PENDING_MAX + meeting.member_count)
        address = find_address(meeting.address, (), Host())
        try:
            listener, _ = listen(address, (meeting.port,))
        except OSError as error:
            raise NotReady(_problem(meeting, f"cannot listen at {address} ({error.strerror})")) from error
        self._acceptor = Acceptor(listener, key, loop, _say, self._admit)

    @property
    def is_done(self) -> bool:
        """Whether all launchers have connected and received the addresses."""
        return bool(self.hosts) and not any(one.connection.has_unsent for one in self._came.values())

    def explain(self) -> str:
        """Return what is missing."""
        if self.hosts:
            return "not all launchers have received the addresses"
        missing = [str(one) for one in range(1, self._meeting.member_count) if one not in self._came]
        others = self._acceptor.turned_away.describe()
        away = f"; turned away: {others};" if others else ""
        return f"launchers {', '.join(missing[:NAMED_MAX])} did not connect{away}"

    def _admit(self, connection: Connection, address: str, packed: dict[str, object]) -> None:
        """Accept or reject a launcher that has the key, by its first message.

        Raises:
            Garbled: The message is not `Here`.
        """
        said = unpack(packed, (Here,))
        assert isinstance(said, Here)  # noqa: S101 - there is no other kind
        why = self._find_misfit(said)
        if why:
            connection.send(pack(Rejected(why)))
            connection.close()
            self._acceptor.turned_away.note(address, why)
            return
        self._part(said.member)
        guest = self._came[said.member] = Guest(said, address, connection)
        connection.redirect(self._on_message, lambda _: self._on_closed(guest))
        if len(self._came) == self._meeting.member_count - 1:
            self._tell_all()

    def _find_misfit(self, said: Here) -> str:
        """Return why a launcher does not belong to this job; empty if it does."""
        ours = self._meeting
        if (said.node_count, said.member_count) != (ours.node_count, ours.member_count):
            return (
                f"it belongs to a job of {said.member_count} launchers on {said.node_count} nodes, but "
                f"this job has {ours.member_count} on {ours.node_count}"
            )
        if not 0 < said.member < ours.member_count or not said.node < ours.node_count:
            return f"it claims to be launcher {said.member} on node {said.node}, which does not exist"
        known = self._came.get(said.member)
        if known is not None and known.said.session != said.session:
            return f"launcher {said.member} has already connected from {known.address}"
        return ""

    def _on_message(self, packed: dict[str, object]) -> None:
        raise Garbled("a message after the first")

    def _on_closed(self, guest: Guest) -> None:
        """Forget a launcher that has left before the addresses were sent."""
        if not self.hosts and self._came.get(guest.said.member) is guest:
            del self._came[guest.said.member]

    def _part(self, member: int) -> None:
        known = self._came.pop(member, None)
        if known is not None:
            known.connection.close()

    def _tell_all(self) -> None:
        found = {self._meeting.node: self._meeting.address}
        for _, guest in sorted(self._came.items()):
            found.setdefault(guest.said.node, guest.address)
        if sorted(found) != list(range(self._meeting.node_count)):
            self.failure = f"of {self._meeting.node_count} nodes only {sorted(found)} connected"
            return
        hosts = tuple(found[node] for node in range(self._meeting.node_count))
        if len(set(hosts)) < len(hosts):
            self.failure = f"several nodes connect from one address ({', '.join(hosts[:NAMED_MAX])})"
            return
        self.hosts, self._told_at = hosts, time.monotonic()
        for guest in self._came.values():
            for start in range(0, len(hosts), HOSTS_AT_ONCE):
                guest.connection.send(pack(Addresses(hosts[start : start + HOSTS_AT_ONCE])))

    def fire(self, now: float) -> None:
        """Check the time."""
        self._acceptor.look(now)
        if self.hosts and now > self._told_at + TAKE_S:
            self.failure = "a launcher connected but does not read the addresses"
        self.due = min(now + TICK_S, self._acceptor.due or now + TICK_S)

    def close(self) -> None:
        """Close all connections. What was sent still arrives."""
        self._acceptor.close()
        for member in list(self._came):
            self._part(member)


class OtherLauncher:
    """Any other launcher: identifies itself until the first one answers.

    Attributes:
        hosts: The addresses received so far.
        failure: Always empty: only the first launcher knows why the nodes cannot come together.
        due: When to check the time again.
    """

    def __init__(self, meeting: Meeting, key: bytes, loop: Loop) -> None:
        self.hosts: tuple[str, ...] = ()
        self.failure = ""
        self.due: float | None = time.monotonic()
        self._meeting, self._key, self._loop = meeting, key, loop
        self._here = Here(
            os.urandom(8).hex(), meeting.member, meeting.member_count, meeting.node, meeting.node_count
        )
        self._why = "no answer yet"
        self._calls = 0
        self._retry_at: float | None = self.due
        self._attempt: ConnectAttempt | None = None
        self._connection: Connection | None = None
        self._outcome = ConnectOutcome(self._open, self._on_refused, lambda why, _: self._fail(why))

    @property
    def is_done(self) -> bool:
        """Whether we know all addresses."""
        return len(self.hosts) == self._meeting.node_count

    def explain(self) -> str:
        """Return what is missing."""
        if self._connection:
            return "not all launchers have connected there"
        return f"it was not reached: {self._why}"

    def fire(self, now: float) -> None:
        """Call again, or give up a call."""
        if self._attempt is not None and now >= self._attempt.until:
            self._attempt.give_up()
        elif self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            self._call()
        self.due = now + TICK_S

    def _call(self) -> None:
        try:
            places = self._find_places()
        except NotReady as error:
            self._fail(error.problems[0].what)
            return
        if not places:
            self._fail(f"{self._meeting.address} cannot be resolved")
            return
        within_s = answer_s(self._meeting.member_count)
        self._attempt = ConnectAttempt(self._key, within_s, self._loop, self._outcome)
        self._calls += 1
        self._attempt.begin(places[self._calls % len(places)], self._meeting.port)

    def _find_places(self) -> tuple[str, ...]:
        """Return the addresses at which the first launcher may listen."""
        if self._meeting.node == 0:  # it is on our node, where the name may mean the loopback
            return (find_address(self._meeting.address, (), Host()),)
        return resolve(self._meeting.address)

    def _open(self, connected: socket.socket, calling: Calling) -> None:
        """Identify ourselves on the new connection, after both sides have proved themselves."""
        assert calling.sealed is not None  # noqa: S101 - see `ConnectAttempt`
        self._attempt = None
        self._connection = Connection.of_socket(
            connected, calling.sealed, self._loop, self._on_message, self._fail
        )
        self._connection.send(pack(self._here))
        if self._connection is not None:
            self._connection.take(calling.rest)

    def _on_refused(self, error: int) -> None:
        self._fail(NOT_YET if error == ECONNREFUSED else strerror(error))

    def _fail(self, why: str) -> None:
        """Plan another call, because there is no connection."""
        self._attempt = self._connection = None
        self.hosts, self._why = (), why
        self._retry_at = time.monotonic() + TICK_S * random.uniform(0.75, 1.5)  # noqa: S311 - so that not all call at once

    def _on_message(self, packed: dict[str, object]) -> None:
        """Handle a message of the first launcher.

        Raises:
            Garbled: It is not a valid message.
        """
        match said := unpack(packed, (Rejected, Addresses)):
            case Rejected():
                self.close()
                self._fail(said.why)
            case Addresses():
                try:
                    self.hosts += each_once(said.hosts)
                except Malformed as error:
                    raise Garbled(f"no addresses: {error}") from error
                if len(self.hosts) > self._meeting.node_count:
                    raise Garbled("more addresses than nodes")

    def close(self) -> None:
        """Close the call and the connection."""
        for one in (self._attempt, self._connection):
            if one is not None:
                one.close()


def _say(text: str, event: str) -> None:
    say(f"address exchange: {text}", event)


def _problem(meeting: Meeting, what: str) -> Problem:
    """Return why the nodes do not come together, as this launcher sees it."""
    return Problem(
        "peers-missing",
        f"address exchange at {meeting.address} port {meeting.port}: {what}",
        f"launcher {meeting.member} of {meeting.member_count}, node {meeting.node}",
        "check that all were started, with the same token or none; or pass a longer --roll-call-timeout, "
        "or --hosts HOST,... with all nodes",
    )
