"""The nodes tell each other their addresses before a job starts, where no platform has listed them.

Each launcher of the job says to the first one, at the master's address and port, which node it is on; the
address is the one that it comes from. When all have come, each is told the addresses of all nodes. The port
is free again before anything is started.
"""

from __future__ import annotations

import json
import signal
import socket
import time

from launcher.environ import Malformed, parse_hosts
from launcher.errors import NotReady, Problem
from launcher.model import Meeting

LINE_BYTES = 1 << 20
"""Addresses of 4,096 nodes fit."""
WORD_S = 5.0
"""How long whoever comes may take to say who it is."""
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
    hosts = {meeting.node: meeting.address}
    came: dict[int, socket.socket] = {}
    with _listen(meeting) as server:
        while len(came) < meeting.member_count - 1:
            missing = [str(member) for member in range(1, meeting.member_count) if member not in came]
            _check(meeting, deadline, f"launchers {', '.join(missing[:8])} did not come")
            try:
                guest, (address, *_) = server.accept()
            except TimeoutError:
                continue
            word = _read_word(guest, meeting)
            if word is None:
                guest.close()
                continue
            member, node = word
            hosts.setdefault(node, address.removeprefix("::ffff:"))
            came[member] = guest
    if sorted(hosts) != list(range(meeting.node_count)):
        raise NotReady(_problem(meeting, f"of {meeting.node_count} nodes only {sorted(hosts)} came"))
    answer = tuple(hosts[node] for node in range(meeting.node_count))
    if len(set(answer)) < len(answer):
        raise NotReady(_problem(meeting, f"several nodes come from one address ({', '.join(answer[:8])})"))
    for guest in came.values():
        with guest:
            guest.sendall(json.dumps(answer).encode() + b"\n")
    return answer


def _listen(meeting: Meeting) -> socket.socket:
    family = socket.AF_INET6 if ":" in meeting.address else socket.AF_INET
    try:
        server = socket.create_server(("", meeting.port), family=family, backlog=1024)
    except OSError as error:
        raise NotReady(_problem(meeting, f"cannot listen there ({error.strerror})")) from error
    server.settimeout(RETRY_S)
    return server


def _read_word(guest: socket.socket, meeting: Meeting) -> tuple[int, int] | None:
    """Return which launcher came, and its node; None for a stranger."""
    guest.settimeout(WORD_S)
    try:
        word = json.loads(guest.makefile("rb").readline(LINE_BYTES))
        job, member, node = word["job"], word["member"], word["node"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
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
        except (OSError, ValueError, TypeError, Malformed):
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
