"""The nodes tell each other their addresses before a job starts, where no platform has listed them.

Each launcher of the job says to the first one, at the master's address and port, which node it is on; the
address is the one that it comes from. When all have come, each is told the addresses of all nodes. The port
is free again before anything is started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time

from launcher.channel.keys import make_key, read_token
from launcher.cluster.exchange_messages import parse_answer, prove, render_answer, render_line, say_problem
from launcher.cluster.exchange_server import RETRY_S, WORD_S, Door
from launcher.core.environ import Malformed
from launcher.core.errors import NotReady

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.model import Meeting

LINE_BYTES = 1 << 20
"""Addresses of 4,096 nodes fit."""
STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def meet(meeting: Meeting) -> tuple[str, ...]:
    """Return the address of every node, node 0 first.

    Raises:
        NotReady: Not all have come in time, the port is taken, or we were told to stop.
        UsageError: The job's token cannot be read.
    """
    deadline = time.monotonic() + meeting.timeout_s
    token = read_token(meeting.token_file, os.environ)
    shape = f"addresses/{meeting.port}/{meeting.node_count}/{meeting.member_count}"
    key = make_key(token, shape) if token else b""
    return _receive(meeting, key, deadline) if meeting.member == 0 else _ask(meeting, key, deadline)


def _receive(meeting: Meeting, key: bytes, deadline: float) -> tuple[str, ...]:
    """As the first: wait for all, and tell all."""
    with _listen(meeting) as server, contextlib.closing(Door(server, meeting, key)) as door:
        while len(door.came) < meeting.member_count - 1:
            missing = [str(member) for member in range(1, meeting.member_count) if member not in door.came]
            _check(meeting, deadline, f"launchers {', '.join(missing[:8])} did not come{door.odd}")
            door.wait()
        answer = _list_hosts(meeting, door)
        for member, guest in door.came.items():
            try:
                guest.socket.settimeout(WORD_S)
                guest.socket.sendall(render_answer(answer, key, guest.asks))
            except OSError as error:
                raise NotReady(say_problem(meeting, f"launcher {member} came, and has gone")) from error
    return answer


def _listen(meeting: Meeting) -> socket.socket:
    # By both protocols: which one leads here is known to the resolvers of those who come
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in meeting.address else socket.AF_INET
    try:
        server = socket.create_server(("", meeting.port), family=family, backlog=1024, dualstack_ipv6=both)
    except OSError as error:
        raise NotReady(say_problem(meeting, f"cannot listen there ({error.strerror})")) from error
    server.setblocking(False)
    return server


def _list_hosts(meeting: Meeting, door: Door) -> tuple[str, ...]:
    hosts = {meeting.node: meeting.address}
    for _, guest in sorted(door.came.items()):
        hosts.setdefault(guest.node, guest.address)
    if sorted(hosts) != list(range(meeting.node_count)):
        raise NotReady(say_problem(meeting, f"of {meeting.node_count} nodes only {sorted(hosts)} came"))
    answer = tuple(hosts[node] for node in range(meeting.node_count))
    if len(set(answer)) < len(answer):
        raise NotReady(say_problem(meeting, f"several nodes come from one address ({', '.join(answer[:8])})"))
    return answer


def _ask(meeting: Meeting, key: bytes, deadline: float) -> tuple[str, ...]:
    """As any other: say who we are until the first one answers."""
    whom = " with the job's token" if key else ""
    while True:
        _check(meeting, deadline, f"nobody has answered there{whom}")
        try:
            with socket.create_connection((meeting.address, meeting.port), WORD_S) as server:
                return _talk(server, meeting, key, deadline)
        except (OSError, ValueError, TypeError, KeyError, RecursionError, Malformed):
            time.sleep(RETRY_S)  # it has not started yet: there is nothing to wait on


def _talk(server: socket.socket, meeting: Meeting, key: bytes, deadline: float) -> tuple[str, ...]:
    """Say who we are, and return what we are told.

    Raises:
        ValueError, TypeError, KeyError: Somebody else has answered.
    """
    word: dict[str, object] = {
        "job": [meeting.node_count, meeting.member_count],
        "member": meeting.member,
        "node": meeting.node,
    }
    own = os.urandom(16).hex()
    if key:
        challenge = str(json.loads(_read_line(server, meeting, deadline, WORD_S))["challenge"])
        proof = prove(key, challenge, [meeting.member, meeting.node, own])
        word.update(challenge=own, proof=proof)
    server.sendall(render_line(word))
    return parse_answer(json.loads(_read_line(server, meeting, deadline)), meeting, key, own)


def _read_line(
    server: socket.socket, meeting: Meeting, deadline: float, within_s: float | None = None
) -> bytes:
    """Return a line, as it comes when all have come, or the first one that is to come in some seconds."""
    began = time.monotonic()
    server.settimeout(RETRY_S)
    text = b""
    while not text.endswith(b"\n") and len(text) < LINE_BYTES:
        if within_s is None:
            _check(meeting, deadline, "not all launchers have come there")
        elif time.monotonic() >= min(deadline, began + within_s):
            raise TimeoutError
        try:
            more = server.recv(1 << 16)
        except TimeoutError:
            continue
        if not more:
            raise ConnectionError
        text += more
    return text


def _check(meeting: Meeting, deadline: float, why: str) -> None:
    """Hold that there is time, and that nobody has told us to stop: process 1 has its signals blocked."""
    if STOPS & signal.sigpending():
        raise NotReady(say_problem(meeting, "the launcher was told to stop"))
    if time.monotonic() >= deadline:
        raise NotReady(say_problem(meeting, f"{why} within {meeting.timeout_s:g} s"))
