"""The nodes tell each other their addresses before a job starts, where no platform has listed them.

Each launcher of the job says to the first one, at the master's address and port, which node it is on; the
address is the one that it comes from. When all have come, each is told the addresses of all nodes. The port
is free again before anything is started.
"""

from __future__ import annotations

import contextlib
import errno
import json
import selectors
import signal
import socket
import time

from launcher.environ import Malformed, parse_hosts
from launcher.errors import NotReady, Problem
from launcher.model import Meeting

LINE_BYTES = 1 << 20
"""Addresses of 4,096 nodes fit."""
WORD_BYTES = 1 << 10
"""More than who comes can have to say."""
WORD_S = 5.0
"""How long whoever comes may take to say who it is."""
GUESTS = 256
"""At most so many are listened to who have not said it yet; one more, and the first of them must go."""
RETRY_S = 0.2
STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def meet(meeting: Meeting) -> tuple[str, ...]:
    """Return the address of every node, node 0 first.

    Raises:
        NotReady: Not all have come in time, the port is taken, or we were told to stop.
    """
    deadline = time.monotonic() + meeting.timeout_s
    return _receive(meeting, deadline) if meeting.member == 0 else _ask(meeting, deadline)


def _receive(meeting: Meeting, deadline: float) -> tuple[str, ...]:
    """As the first: wait for all, and tell all."""
    with _listen(meeting) as server, contextlib.closing(Door(server, meeting)) as door:
        while len(door.came) < meeting.member_count - 1:
            missing = [str(member) for member in range(1, meeting.member_count) if member not in door.came]
            _check(meeting, deadline, f"launchers {', '.join(missing[:8])} did not come{door.doubled}")
            door.wait()
        answer = _list_hosts(meeting, door)
        text = json.dumps(answer).encode() + b"\n"
        for member, guest in door.came.items():
            try:
                guest.socket.settimeout(WORD_S)
                guest.socket.sendall(text)
            except OSError as error:
                raise NotReady(_problem(meeting, f"launcher {member} came, and has gone")) from error
    return answer


def _list_hosts(meeting: Meeting, door: Door) -> tuple[str, ...]:
    hosts = {meeting.node: meeting.address}
    for _, guest in sorted(door.came.items()):
        hosts.setdefault(guest.node, guest.address)
    if sorted(hosts) != list(range(meeting.node_count)):
        raise NotReady(_problem(meeting, f"of {meeting.node_count} nodes only {sorted(hosts)} came"))
    answer = tuple(hosts[node] for node in range(meeting.node_count))
    if len(set(answer)) < len(answer):
        raise NotReady(_problem(meeting, f"several nodes come from one address ({', '.join(answer[:8])})"))
    return answer


class Guest:
    """One connection: who it is from, as far as that has been said.

    Attributes:
        until: When its word must be there.
        node: The node it says it is on; -1 before.
        gone: We have parted.
    """

    def __init__(self, connection: socket.socket, address: str) -> None:
        self.socket, self.address = connection, address
        self.text = b""
        self.until = time.monotonic() + WORD_S
        self.node = -1
        self.gone = False


class Door:
    """Where the launchers come in: all are listened to at once, so that a slow stranger holds up nobody.

    Attributes:
        came: Those who have said who they are, and are still there.
        doubled: Which of them came from two places, in words.
    """

    def __init__(self, server: socket.socket, meeting: Meeting) -> None:
        self.server, self.meeting = server, meeting
        self.came: dict[int, Guest] = {}
        self.doubled = ""
        self.strangers: list[Guest] = []
        self.selector = selectors.DefaultSelector()
        self.selector.register(server, selectors.EVENT_READ)

    def wait(self) -> None:
        """Wait a moment, and hear who comes, speaks or goes meanwhile."""
        for key, _ in self.selector.select(RETRY_S):
            if key.data is None:
                self._admit()
            elif not key.data.gone:
                self._hear(key.data)
        now = time.monotonic()
        for guest in [guest for guest in self.strangers if guest.until <= now]:
            self._dismiss(guest)

    def close(self) -> None:
        """Part from all."""
        self.selector.close()
        for guest in (*self.strangers, *self.came.values()):
            guest.socket.close()

    def _admit(self) -> None:
        try:
            connection, (address, *_) = self.server.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                what = f"{len(self.came)} launchers came, and no more can be heard ({error.strerror})"
                raise NotReady(_problem(self.meeting, what)) from error
            return  # it has gone before we looked
        if len(self.strangers) >= GUESTS:
            self._dismiss(self.strangers[0])
        connection.setblocking(False)
        guest = Guest(connection, address.removeprefix("::ffff:"))
        self.strangers.append(guest)
        self.selector.register(connection, selectors.EVENT_READ, guest)

    def _hear(self, guest: Guest) -> None:
        try:
            more = guest.socket.recv(WORD_BYTES)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        guest.text += more
        complete = guest.text.endswith(b"\n")
        word = _parse_word(guest.text, self.meeting) if complete and guest.node < 0 else None
        if word is not None:
            self._welcome(guest, *word)
        elif not more or complete or len(guest.text) > WORD_BYTES:
            self._dismiss(guest)

    def _welcome(self, guest: Guest, member: int, node: int) -> None:
        before = self.came.get(member)
        if before is not None:
            if before.address != guest.address:
                self.doubled = f"; launcher {member} came from {before.address} and from {guest.address}"
            self._dismiss(before)
        guest.node = node
        self.strangers.remove(guest)
        self.came[member] = guest

    def _dismiss(self, guest: Guest) -> None:
        guest.gone = True
        self.selector.unregister(guest.socket)
        guest.socket.close()
        self.strangers = [other for other in self.strangers if other is not guest]
        self.came = {member: other for member, other in self.came.items() if other is not guest}


def _listen(meeting: Meeting) -> socket.socket:
    family = socket.AF_INET6 if ":" in meeting.address else socket.AF_INET
    try:
        server = socket.create_server(("", meeting.port), family=family, backlog=1024)
    except OSError as error:
        raise NotReady(_problem(meeting, f"cannot listen there ({error.strerror})")) from error
    server.setblocking(False)
    return server


def _parse_word(text: bytes, meeting: Meeting) -> tuple[int, int] | None:
    """Return which launcher came, and its node; None for a stranger."""
    try:
        word = json.loads(text)
        job, member, node = word["job"], word["member"], word["node"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    known = job == [meeting.node_count, meeting.member_count]
    fits = type(member) is int and type(node) is int
    if known and fits and 0 < member < meeting.member_count and 0 <= node < meeting.node_count:
        return member, node
    return None


def _ask(meeting: Meeting, deadline: float) -> tuple[str, ...]:
    """As any other: say who we are until the first one answers."""
    job = [meeting.node_count, meeting.member_count]
    word = json.dumps({"job": job, "member": meeting.member, "node": meeting.node}).encode() + b"\n"
    while True:
        _check(meeting, deadline, "nobody has answered there")
        try:
            with socket.create_connection((meeting.address, meeting.port), WORD_S) as server:
                server.sendall(word)
                return _read_answer(server, meeting, deadline)
        except (OSError, ValueError, TypeError, RecursionError, Malformed):
            time.sleep(RETRY_S)  # it has not started yet: there is nothing to wait on


def _read_answer(server: socket.socket, meeting: Meeting, deadline: float) -> tuple[str, ...]:
    server.settimeout(RETRY_S)
    text = b""
    while not text.endswith(b"\n") and len(text) < LINE_BYTES:
        _check(meeting, deadline, "not all launchers have come there")
        try:
            more = server.recv(1 << 16)
        except TimeoutError:
            continue
        if not more:
            raise ConnectionError
        text += more
    hosts = parse_hosts(",".join(json.loads(text)))
    if len(hosts) != meeting.node_count:
        raise Malformed
    return hosts


def _check(meeting: Meeting, deadline: float, why: str) -> None:
    """Hold that there is time, and that nobody has told us to stop: process 1 has its signals blocked."""
    if STOPS & signal.sigpending():
        raise NotReady(_problem(meeting, "the launcher was told to stop"))
    if time.monotonic() >= deadline:
        raise NotReady(_problem(meeting, f"{why} within {meeting.timeout_s:g} s"))


def _problem(meeting: Meeting, what: str) -> Problem:
    return Problem(
        "peers-missing",
        f"the nodes tell each other their addresses at {meeting.address}, port {meeting.port}: {what}",
        f"launcher {meeting.member} of {meeting.member_count}, node {meeting.node}",
        "see whether all were started; a longer --roll-call-timeout; or --hosts HOST,... with all nodes",
    )
