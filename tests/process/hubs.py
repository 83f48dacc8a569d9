"""A live node 0 of the control channel in this process, and callers at its door."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from launcher.channel.connection import listen
from launcher.channel.frames import Calling, Sealed, at_port, make_key
from launcher.cluster.coordinator import Coordinator
from launcher.cluster.join import Join
from launcher.cluster.outcome import NUMBERS
from launcher.cluster.settings import Shape
from launcher.core.frozen import replace
from launcher.core.supervision import Restarts
from launcher.core.version import __version__
from launcher.core.wire import Garbled, pack, parse
from launcher.failure.arbiter import Event
from launcher.failure.model import Verdict
from launcher.job.events import Exited, Failed, Ready, Tick
from launcher.job.state import Link, Node, Phase
from launcher.job.turn import Turn
from launcher.process.loop import Loop
from launcher.recovery.history import History
from tests.saying import keep

ADDRESS = "127.0.0.1"
KEY = make_key(b"a token of sixteen", "1")
FAULT = "internal launcher error"
WAIT_S = 20.0


def make_join(rank: int, count: int, **more: object) -> dict[str, object]:
    """Return what a node says first."""
    session = f"{rank:016x}"
    known = {"mono_ns": 1, "node_count": count, "launcher": __version__}
    return {"is": "join", "rank": rank, "session": session, **known, **more}


def failed(
    kind: str, at_ns: int, status: int, *, attempt: int = 0, left_ms: int | None = None, **more: Any
) -> Failed:
    """Return the report of a failure; ``more``: numbers of the process, and fields of the event."""
    facts: dict[str, int] = {name: more.pop(name) for name in NUMBERS if name in more}
    return Failed(0, Event(0, kind, at_ns, status, facts=facts or None, **more), attempt, left_ms)


def exited(status: int, record: Verdict | None = None, attempt: int = 0) -> Exited:
    """Return the report that all processes of a node have ended."""
    return Exited(0, status, attempt, record)


def ready(attempt: int, unhealthy: str = "", *, is_held: bool = False) -> Ready:
    """Return the report that a node is ready for an attempt."""
    return Ready(0, attempt, unhealthy, is_held)


class LiveHub:
    """Node 0, turned by a thread of its own.

    Attributes:
        said: What it has said in its log.
        told: What it has told its own node.
        recovery: What decides about restarts, if there are any.
        needs_health: Whether nodes have a health command.
    """

    def __init__(self, count: int, rule: Restarts | None = None, **more: Any) -> None:
        self.said: list[str] = []
        self.told: list[dict[str, object]] = []
        self.needs_health = rule is not None and bool(rule.health_argv)
        listener, self.port = listen(ADDRESS, (0,))
        self.port = listener.getsockname()[1]
        self.loop = Loop(keep(self.said))
        timing = {"lost_after_s": 3600.0, "grace_s": 1.0, **more}
        shape = Shape(0, count, count, ADDRESS, (self.port,), **timing)
        self.history = History("", keep(self.said))
        self.agree: Callable[[int], dict[str, object]] = lambda attempt: {
            "master_port": 6200 if attempt else 6105
        }

        self.hub = Coordinator(
            listener,
            KEY,
            shape,
            parse(Join, make_join(0, count, host="node0")),
            self.loop,
            keep(self.said),
            lambda message: self.told.append(pack(message)),
            lambda attempt: self.agree(attempt),
            lambda ranks, take: take({}),
            lambda: self.history,
            rule,
        )
        self.loop.timers.append(self.hub)
        self._is_open = True
        self._asked: deque[Callable[[], object]] = deque()
        self._wake, self._wakes = socket.socketpair()
        self.loop.add(self._wakes.fileno(), self._wake_up)
        self._thread = threading.Thread(target=self._turn)
        self._thread.start()

    def _wake_up(self) -> None:
        self._wakes.recv(1)
        if self._asked:
            self._asked.popleft()()

    def hear_own(self, message: object) -> None:
        """Let node 0 hear its own node, in the thread that turns it: what two seal is mixed up."""
        self.do(lambda: self.hub.hear(0, message))

    def do(self, action: Callable[[], object]) -> None:
        """Act in the thread that turns it."""
        self._asked.append(action)
        self._wake.send(b".")

    def _turn(self) -> None:
        while self._is_open:
            self.loop.turn()

    def node(self, index: int) -> Node | None:
        """Return a node as the controller knows it."""
        return self.hub.state.nodes[index]

    def is_away(self, index: int) -> bool:
        """Whether the connection of a node has ended."""
        node = self.node(index)
        return node is not None and node.link is Link.CLOSED

    def is_lost(self, index: int) -> bool:
        """Whether a node was lost in this attempt."""
        node = self.node(index)
        return node is not None and node.is_lost

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.hub.state.phase is Phase.OVER

    def lose(self, index: int) -> None:
        """Let it find that a node has been silent for too long."""

        def lose() -> None:
            turn = Turn(self.hub.state, time.monotonic())
            link = Link.CLOSED if self.is_away(index) else Link.SILENT
            turn.change_node(index, link=link, since=turn.now - 1e5)
            self.hub._job.state = turn.state
            self.hub.feed(Tick())

        self.do(lose)

    def delay(self, seconds: float) -> None:
        """Let the next attempt wait."""

        def change() -> None:
            state = self.hub.state
            assert state.pause is not None
            pause = replace(state.pause, not_before=time.monotonic() + seconds)
            self.hub._job.state = replace(state, pause=pause)

        self.do(change)

    @property
    def faults(self) -> list[str]:
        """What it has said of faults of its own."""
        return [line for line in self.said if FAULT in line]

    def close(self) -> None:
        """End it."""
        self._is_open = False
        self._wake.send(b".")
        self._thread.join(WAIT_S)
        self.hub.close()
        self.loop.close()
        self._wake.close()
        self._wakes.close()


class Caller:
    """A connection with the key."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((ADDRESS, port), WAIT_S)
        calling = Calling(at_port(KEY, port))
        self.socket.sendall(calling.call)
        while calling.sealed is None:
            data = self.socket.recv(4096)
            if not data:
                raise ConnectionError
            self.socket.sendall(calling.feed(data))
        self.sealed: Sealed = calling.sealed
        self.waiting: list[dict[str, object]] = []

    def say(self, message: Mapping[str, object]) -> None:
        """Send a message; one that the hub has hung up on goes nowhere."""
        with contextlib.suppress(OSError):
            self.socket.sendall(self.sealed.pack(message))

    def hear(self, kind: str) -> dict[str, object]:
        """Return the next message of a kind.

        Raises:
            ConnectionError: The hub has hung up.
            TimeoutError: It has said nothing of that kind.
        """
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            while self.waiting:
                message = self.waiting.pop(0)
                if message["is"] == kind:
                    return message
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError
            self.waiting += self.sealed.feed(data)
        raise TimeoutError(kind)

    def drain(self) -> None:
        """Read until the hub hangs up."""
        with contextlib.suppress(OSError, Garbled):
            self.socket.shutdown(socket.SHUT_WR)
            while self.socket.recv(1 << 16):
                pass
        self.socket.close()


@contextlib.contextmanager
def live_hub(count: int, rule: Restarts | None = None, **more: Any) -> Iterator[LiveHub]:
    """Return a node 0 that is ended in the end; ``more``: fields of its `Shape`."""
    hub = LiveHub(count, rule, **more)
    try:
        yield hub
    finally:
        hub.close()
