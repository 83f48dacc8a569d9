"""A node on its way to node 0, where the kernel gives it no socket."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EAFNOSUPPORT
from typing import Any

import pytest

from launcher.channel.connection import Connection
from launcher.cluster import client as calling
from launcher.cluster import connect as connecting
from launcher.cluster import reach
from launcher.cluster.client import CoordinatorClient
from launcher.cluster.join import Join
from launcher.cluster.settings import Shape
from launcher.core.supervision import Restarts
from launcher.core.wire import parse
from launcher.process.helper import Helpers
from launcher.process.loop import Loop
from tests.process.hubs import ADDRESS, FAULT, KEY, WAIT_S, Caller, LiveHub, live_hub, make_join
from tests.process.looking import wait_for
from tests.saying import keep


@pytest.fixture
def no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without IPv6, which a test cannot have: there `socket` raises."""
    make = socket.socket

    def refuse(family: int = socket.AF_INET, *more: Any, **named: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(EAFNOSUPPORT, os.strerror(EAFNOSUPPORT))
        return make(family, *more, **named)

    monkeypatch.setattr(socket, "socket", refuse)


def has_two(addresses: tuple[str, ...]) -> Callable[..., tuple[str, ...]]:
    """Return a resolver that knows both addresses of a name."""
    return lambda name, *flags: addresses


@pytest.mark.usefixtures("no_ipv6")
def test_an_address_that_this_kernel_cannot_call_does_not_end_the_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name of node 0 has an address of IPv6 as well: it is the other one's turn then."""
    monkeypatch.setattr(calling, "resolve", has_two(("::1", ADDRESS)))
    said: list[str] = []
    loop = Loop(keep(said))
    with live_hub(2) as hub:
        shape = Shape(1, 2, 2, "node0", (hub.port,))
        link = CoordinatorClient(
            KEY,
            shape,
            parse(Join, make_join(1, 2)),
            loop,
            Helpers(loop).ask,
            keep(said),
            lambda message: None,
        )
        loop.timers.append(link)
        loop.turn_until(lambda: link.has_started, WAIT_S)
        assert link.is_connected
        link.close()
    loop.close()
    assert [line for line in said if FAULT in line] == []


@pytest.mark.usefixtures("no_ipv6")
def test_a_node_that_cannot_be_knocked_at_is_one_of_those_that_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What node 0 says of those that are missing must not depend on a look that this kernel cannot have."""
    monkeypatch.setattr(reach, "resolve", has_two(("::1",)))
    found = reach.read_reasons(list(reach.find_reasons({3: "node3"}, 1)))
    assert found == {3: "its name resolves, but: Address family not supported by protocol"}


def test_a_node_that_has_called_for_long_has_its_lease_before_the_start_arrives() -> None:
    """Node 0 came a minute later: the start must not find a lease that counts from our own beginning."""
    loop, order = Loop(keep([])), list[tuple[str, float]]()
    with live_hub(2) as hub:
        began = time.monotonic()
        link = CoordinatorClient(
            KEY,
            Shape(1, 2, 2, ADDRESS, (hub.port,)),
            parse(Join, make_join(1, 2)),
            loop,
            Helpers(loop).ask,
            keep([]),
            lambda message: order.append((type(message).__name__, time.monotonic())),
            on_answered=lambda sent: order.append(("answered", sent)),
        )
        loop.timers.append(link)
        loop.turn_until(lambda: link.has_started, WAIT_S)
        link.close()
    loop.close()
    assert [name for name, _ in order[:2]] == ["answered", "Start"]
    assert began <= order[0][1] <= order[1][1]


def test_what_has_arrived_on_a_connection_that_has_ended_is_read_and_the_new_one_stays() -> None:
    """A node calls again; node 0 reads the end of the old connection while it lets the new one in."""
    with live_hub(2, Restarts(most=1)) as hub:
        first = Caller(hub.port)
        first.say(make_join(1, 2))
        first.hear("start")
        second = Caller(hub.port)

        def end_and_join() -> None:
            first.say({"is": "quiet", "what": "nothing", "attempt": 0})
            first.socket.close()
            second.say(make_join(1, 2))

        hub.do(end_and_join)  # node 0 finds both at once
        assert second.hear("welcome") and second.hear("start")
        second.say({"is": "beat", "sent": 2.5})
        assert second.hear("beat")["sent"] == 2.5
        assert not hub.is_away(1) and hub.faults == []
        second.socket.close()


def start_link(loop: Loop, ports: tuple[int, ...]) -> CoordinatorClient:
    """Return a node that node 0, at one of these ports, has let in."""
    shape, join = Shape(1, 2, 2, ADDRESS, ports), parse(Join, make_join(1, 2))
    link = CoordinatorClient(KEY, shape, join, loop, Helpers(loop).ask, keep([]), lambda message: None)
    loop.timers.append(link)
    loop.turn_until(lambda: link.has_started, WAIT_S)
    return link


@pytest.mark.parametrize("how", ["another call is answered", "node 0 is silent", "it leaves"])
def test_a_launcher_that_goes_on_does_not_end_a_connection_like_one_that_has_ended(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node 0 takes that for the end of its processes, and they may run on: what it sends next may be lost."""
    loop = Loop(keep([]))
    with live_hub(2, Restarts(most=1)) as hub:
        link = start_link(loop, (hub.port,))
        first = link._connection
        monkeypatch.setattr(Connection, "send", lambda *_: None)
        if how == "it leaves":
            link.close()
        else:
            silence_s = 4.0 if how == "another call is answered" else 1000.0
            link._heard -= silence_s
            link.fire(time.monotonic())
            loop.turn_until(lambda: link._connection is not first, WAIT_S)
        wait_for(lambda: hub.is_away(1), "node 0 has noticed")
        node = hub.node(1)
        assert node is not None and node.has_exited is (how == "it leaves"), node
        link.close()
    loop.close()


def test_a_connection_outlives_the_moment_at_which_node_0_is_given_up() -> None:
    """A node says on it that it gives node 0 up, at the same time by another clock; node 0 reads it later."""
    loop = Loop(keep([]))
    with live_hub(2, Restarts(most=1)) as hub:
        link = start_link(loop, (hub.port,))
        first, given_up_s = link._connection, link._shape.given_up_s
        link._heard = (now := time.monotonic()) - given_up_s - 0.1
        link.fire(now)
        assert link._connection is first and link.is_connected
        link.fire(now + calling.LAST_WORD_S)
        assert link._connection is not first
        link.close()
    loop.close()


@pytest.mark.parametrize("says", [b"", b"x"])
def test_a_mute_program_at_the_first_port_keeps_no_node(says: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 0 has the next port; whatever has the first one accepts, and may say a byte."""
    monkeypatch.setattr(calling, "answer_s", lambda count: 30.0 * WAIT_S)
    monkeypatch.setattr(connecting, "MUTE_SHARE", 1e-4)
    monkeypatch.setattr(calling, "MUTE_SHARE", 1e-4)
    loop = Loop(keep([]))
    with live_hub(2) as hub, socket.create_server((ADDRESS, 0)) as other:
        port = other.getsockname()[1]
        taken: list[socket.socket] = []

        def accept() -> None:
            taken.append(other.accept()[0])
            taken[-1].sendall(says)

        loop.add(other.fileno(), accept)
        link = start_link(loop, (port, hub.port))
        assert link.is_connected and len(taken) == 1
        loop.remove(other.fileno())
        link.close()
        for one in taken:
            one.close()
    loop.close()


def test_a_node_0_that_was_slow_is_called_at_its_own_port_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next port was called meanwhile; the connection ends later."""
    monkeypatch.setattr(connecting, "MUTE_SHARE", 1e-4)
    monkeypatch.setattr(calling, "MUTE_SHARE", 1e-4)
    loop = Loop(keep([]))
    with live_hub(2, Restarts(most=1)) as hub, socket.create_server((ADDRESS, 0)) as free:
        other = free.getsockname()[1]
        free.close()
        hub.do(lambda: time.sleep(0.3))  # it stands still
        link = start_link(loop, (hub.port, other))
        connection = hub.hub.members.by_index[1].connection
        assert connection is not None
        hub.do(connection.finish)
        loop.turn_until(lambda: not link.is_connected, WAIT_S)
        loop.turn_until(lambda: link.is_connected, WAIT_S)
        assert link.is_connected
        link.close()
    loop.close()


OTHER_ADDRESS = "127.0.0.2"
MOMENT_S = 0.5


class Relay:
    """Another user's program: it has node 0's port at the other address of its name, and passes calls on.

    Attributes:
        calls: When it was called.
    """

    def __init__(self, port: int, how: str) -> None:
        self.calls: list[float] = []
        self._how, self._port = how, port
        self._server = socket.create_server((OTHER_ADDRESS, port))
        self._other: dict[socket.socket, socket.socket] = {}
        self._until: dict[socket.socket, float] = {}
        self._is_open = True
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while self._is_open:
            for one in select.select([self._server, *self._until], [], [], 0.05)[0]:
                if one is self._server:
                    self._take()
                elif one in self._until:
                    self._other[one].sendall(one.recv(1 << 16))
            for one in [one for one, until in self._until.items() if time.monotonic() > until]:
                del self._until[one]
                if self._how == "ends":
                    one.close()

    def _take(self) -> None:
        """Pass a call on for a moment: the first one, or each."""
        here = self._server.accept()[0]
        there = socket.create_connection((ADDRESS, self._port))
        self._other |= {here: there, there: here}
        if not self.calls or self._how == "passes each":
            self._until |= dict.fromkeys((here, there), time.monotonic() + MOMENT_S)
        elif self._how == "ends":
            here.close()
        self.calls.append(time.monotonic())

    def close(self) -> None:
        """End it."""
        self._is_open = False
        self._thread.join(WAIT_S)
        for one in (self._server, *self._other):
            one.close()


@contextmanager
def relayed_hub(how: str) -> Iterator[tuple[LiveHub, Relay]]:
    """Yield node 0's end, and a relay at its other address: at a port that is free at both."""
    for _ in range(9):
        with live_hub(2, Restarts(most=1)) as hub:
            try:
                relay = Relay(hub.port, how)
            except OSError:  # another test has this port there
                continue
            yield hub, relay
            return
    pytest.fail("no port is free at both addresses")


@pytest.mark.parametrize("how", ["keeps", "ends", "passes each"])
def test_a_stranger_at_the_other_address_of_node_0_cannot_keep_a_node(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passes a call on until node 0 has let the node in, and then keeps, or ends, what follows."""
    monkeypatch.setattr(calling, "resolve", has_two((OTHER_ADDRESS, ADDRESS)))
    loop, answered = Loop(keep([])), list[float]()
    with relayed_hub(how) as (hub, relay):
        link = CoordinatorClient(
            KEY,
            Shape(1, 2, 2, "node0", (hub.port,)),
            parse(Join, make_join(1, 2)),
            loop,
            Helpers(loop).ask,
            keep([]),
            lambda message: None,
            on_answered=answered.append,
        )
        loop.timers.append(link)
        try:
            loop.turn_until(lambda: link.has_started, WAIT_S)
            heard_until = relay.calls[0] + 8.0
            loop.turn_until(lambda: answered[-1] > heard_until, WAIT_S)
            assert answered[-1] > heard_until
            assert len(relay.calls) == 1
            assert not hub.is_away(1)
        finally:
            link.close()
            relay.close()
    loop.close()
