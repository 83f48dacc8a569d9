"""One attempt of a node to reach node 0: connect, then handshake; reports a connection or an error.

`ConnectStatus` keeps why a node has not reached node 0, and since when, and puts it into words. `report` is
for a process that has no loop, and only one message.
"""

from __future__ import annotations

import os
import socket
import time
from errno import ECONNREFUSED, EINPROGRESS
from os import strerror

from launcher.channel.frames import (
    NONCE_BYTES,
    OTHER_LAUNCHER,
    PROOF_BYTES,
    Calling,
    HandshakeFailed,
    at_port,
)
from launcher.cluster.reach import knock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from launcher.cluster.settings import Shape
    from launcher.process.loop import Loop

CONNECT_S = 3.0
ANSWER_S = 5.0
MUTE_SHARE = 0.1
"""Share of the time for an answer after which the next port is called, beside the mute one."""
NODES_PER_S = 500
"""Nodes that node 0 admits per second on a busy CPU if all call at once; the others wait in its queue."""
NOT_YET = "nothing listens there: its container may still be starting, or its launcher has ended"
SILENT = "no answer"
"""Nothing has answered the call itself, not even with a refusal."""
MUTE = (
    "it accepts the connection but does not answer: "
    "it is stopped or very busy, or another program listens there"
)
HUNG_UP = "it closed the connection at once: another program, or too busy"
REFUSED = f"it closed the connection after our proof: {OTHER_LAUNCHER} listens there"
LISTENS, REFUSES = "listens", "refuses"
"""Results of probing a port of a host."""
WITHOUT = "node 0 may have begun without the others, with --no-peers or a launcher without a roll call"


def answer_s(node_count: int) -> float:
    """Return the seconds that node 0 may take to answer.

    A caller that gives up in node 0's queue starts at its end again, so the time grows with the number of
    nodes.
    """
    return ANSWER_S + node_count / NODES_PER_S


class ConnectAttempt:
    """One call to node 0; at its end it calls exactly one of its callbacks.

    Attributes:
        until: When it has taken too long, monotonic seconds.
    """

    def __init__(
        self,
        key: bytes,
        answer_s: float,
        loop: Loop,
        opened: Callable[[socket.socket, Calling], None],
        failed: Callable[[str, bool], None],
    ) -> None:
        """Prepare the attempt.

        Args:
            key: Key of the job.
            answer_s: Seconds that node 0 may take to answer once connected.
            loop: The loop that waits for the socket.
            opened: Takes the socket, which the loop does not watch, and the handshake in which both sides
                have proved themselves.
            failed: Takes why there is no connection, and whether the next port may be worth a try.
        """
        self.until = time.monotonic() + CONNECT_S
        self._key, self._answer_s, self._loop = key, answer_s, loop
        self._opened, self._failed = opened, failed
        self._socket: socket.socket | None = None
        self._calling: Calling | None = None
        self._connected_at = 0.0

    def is_mute(self, now: float) -> bool:
        """Whether something has accepted the connection a while ago, and does not answer."""
        return self._calling is not None and now - self._connected_at > self._answer_s * MUTE_SHARE

    def begin(self, address: str, port: int) -> None:
        """Start to connect to an address."""
        self._key = at_port(self._key, port)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as problem:  # no IPv6 in this kernel, or no descriptor left
            self._fail(problem.strerror or "no socket", next_port=False)
            return
        error = self._socket.connect_ex((address, port))
        if error in (0, EINPROGRESS):
            self._loop.add(self._socket.fileno(), self._on_connected, writable=True)
        else:
            self._refuse(error)

    def give_up(self) -> None:
        """End the attempt, because it has taken too long."""
        has_connected = self._calling is not None
        self._fail(MUTE if has_connected else SILENT, next_port=has_connected)

    def close(self) -> None:
        """Close the connection without sending anything."""
        if self._socket is not None:
            self._loop.remove(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _refuse(self, error: int) -> None:
        self._fail(NOT_YET if error == ECONNREFUSED else strerror(error), next_port=False)

    def _fail(self, why: str, *, next_port: bool = True) -> None:
        self.close()
        self._failed(why, next_port)

    def _on_connected(self) -> None:
        assert self._socket is not None  # noqa: S101 - it has just become writable
        self._loop.remove(self._socket.fileno())
        try:
            error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        except OSError:  # getsockopt is refused: writing shows the error
            error = 0
        if error:
            self._refuse(error)
            return
        self._calling, self._connected_at = Calling(self._key), time.monotonic()
        self.until = self._connected_at + self._answer_s
        try:
            os.write(self._socket.fileno(), self._calling.call)
        except OSError as problem:
            self._fail(problem.strerror or "broken")
            return
        self._loop.add(self._socket.fileno(), self._on_answer)

    def _on_answer(self) -> None:
        connected, calling = self._socket, self._calling
        assert connected is not None and calling is not None  # noqa: S101 - this is their handler
        try:
            data = os.read(connected.fileno(), NONCE_BYTES + PROOF_BYTES)
            if not data:
                self._fail(REFUSED if calling.has_proved else HUNG_UP)
                return
            reply = calling.feed(data)
            if reply:
                os.write(connected.fileno(), reply)
        except (BlockingIOError, InterruptedError):
            return
        except HandshakeFailed as failed:
            self._fail(f"{failed} listens there")
            return
        except OSError as error:
            self._fail(error.strerror or "broken")
            return
        if calling.sealed is not None:
            self._loop.remove(connected.fileno())
            self._socket = None
            self._opened(connected, calling)


def report(key: bytes, address: str, port: int, data: Mapping[str, object]) -> None:
    """Send node 0 one message, and wait until it has taken it.

    Raises:
        OSError: Node 0 does not answer.
        HandshakeFailed: What answers does not have the key.
    """
    calling = Calling(at_port(key, port))
    with socket.create_connection((address, port), CONNECT_S) as connected:
        connected.settimeout(ANSWER_S)
        connected.sendall(calling.call)
        while calling.sealed is None:
            answer = connected.recv(NONCE_BYTES + PROOF_BYTES)
            if not answer:
                raise ConnectionResetError(HUNG_UP)
            connected.sendall(calling.feed(answer))
        connected.sendall(calling.sealed.pack(data))
        connected.recv(1)


class ConnectStatus:
    """What keeps us from connecting to node 0, and since when.

    Attributes:
        reason: Why the last attempt failed, or what node 0 waits for.
    """

    def __init__(self, shape: Shape) -> None:
        self.reason = "no answer yet"
        self._shape = shape
        self._silent_since: float | None = None
        self._seen = ""

    def note(self, port: int, why: str, since: float) -> None:
        """Record why an attempt failed.

        Args:
            port: The port that it called.
            why: One of the texts above, or another one.
            since: When it began (monotonic seconds).
        """
        if why == NOT_YET and port != self._shape.ports[0]:
            return  # it is normal that nothing listens at a further port
        if why != SILENT:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = since
        self.reason = f"{self._shape.address} port {port}: {why}"

    @property
    def needs_look(self) -> bool:
        """Whether probing another port of node 0's host may explain more."""
        has_other = bool(self._shape.master_port)
        return has_other and (self._silent_since is not None or NOT_YET in self.reason)

    def look(self) -> Iterator[str]:
        """Probe that port, in a helper process; yield the line for `note_look`."""
        answers = knock(self._shape.address, self._shape.master_port)
        yield "" if answers is None else LISTENS if answers else REFUSES

    def note_look(self, lines: Sequence[str]) -> None:
        """Record the result of the probe; nothing if it took too long."""
        self._seen = lines[0] if lines else ""

    def explain(self, now: float) -> str:
        """Return why we are not connected, with the result of the last probe."""
        port = self._shape.master_port
        if self._silent_since is not None:
            silence = f"{self.reason} to calls for {now - self._silent_since:.0f} s"
            return f"{silence}{explain_silence(port if self._seen else None)}"
        if NOT_YET in self.reason and self._seen == LISTENS:
            return f"{self.reason}; but a process listens at MASTER_PORT {port}: {WITHOUT}"
        return self.reason


def explain_silence(answers_at: int | None) -> str:
    """Return why calls get no answer.

    Args:
        answers_at: A port at which the same host has answered; None if no answer was seen.
    """
    if answers_at is None:
        return ": its host is down, or a firewall or a security group drops packets to it"
    return (
        f", while its host answers at port {answers_at}: a firewall or a security group drops packets to "
        "the control port (--control-port N names another one)"
    )
