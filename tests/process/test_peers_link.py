"""A node on its way to node 0, where the kernel gives it no socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from errno import EAFNOSUPPORT
from typing import Any

import pytest

from launcher.channel.acceptor import Acceptor
from launcher.channel.connection import Connection
from launcher.channel.listener import listen
from launcher.cluster import client as calling
from launcher.cluster import reach
from launcher.cluster.client import CoordinatorClient
from launcher.cluster.join import Join
from launcher.cluster.messages import Ended, Failed, Start, Welcome
from launcher.cluster.settings import Shape
from launcher.core.messages import pack, parse
from launcher.failure.arbiter import EVENTS_OF_NODE, GAVE_UP, RANK
from launcher.process.helper import Helpers
from launcher.process.loop import Loop
from tests.process.hubs import ADDRESS, FAULT, KEY, WAIT_S, live_hub, make_join
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
            Helpers(loop),
            keep(said),
            lambda message: None,
            lambda: None,
        )
        loop.timers.append(link)
        loop.turn_until(lambda: link.has_started, WAIT_S)
        assert link.is_connected
        link.close()
    loop.close()
    assert [line for line in said if FAULT in line] == []


def test_the_end_is_told_again_however_many_ranks_have_failed() -> None:
    """The connection is gone while forty ranks fail; node 0 hears the first of them, and the end."""
    loop = Loop(keep([]))
    with live_hub(2, keep_going=True) as hub:
        shape = Shape(1, 2, 41, ADDRESS, (hub.port,), keep_going=True)
        join = parse(Join, make_join(1, 2))
        link = CoordinatorClient(
            KEY, shape, join, loop, Helpers(loop), keep([]), lambda message: None, lambda: None
        )
        loop.timers.append(link)
        loop.turn_until(lambda: link.has_started, WAIT_S)
        connection = hub.hub.members.by_index[1].connection
        assert connection is not None
        hub.do(connection.finish)
        loop.turn_until(lambda: not link.is_connected, WAIT_S)
        for rank in range(1, 41):
            link.send(Failed(RANK, rank, 1, what=f"rank {rank} failed", rank=rank))
        link.send(Failed(GAVE_UP, 41, 75))
        link.send(Ended(1))
        loop.turn_until(lambda: (node := hub.node(1)) is not None and node.ended == 1, WAIT_S)
        attempt = hub.hub.state.attempt
        assert attempt is not None and attempt.open == 1
        heard = [event.facts and event.facts["rank"] for event in attempt.events]
        assert heard == [*range(1, EVENTS_OF_NODE + 1), None]
        link.close()
        loop.guard(hub.hub.members.by_index[1].hang_up)
    loop.close()


@pytest.mark.usefixtures("no_ipv6")
def test_a_node_that_cannot_be_knocked_at_is_one_of_those_that_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What node 0 says of those that are missing must not depend on a look that this kernel cannot have."""
    monkeypatch.setattr(reach, "resolve", has_two(("::1",)))
    found = reach.read_reasons(list(reach.find_reasons({3: "node3"}, 1)))
    assert found == {3: "its name resolves, but: Address family not supported by protocol"}


class ScriptedNode0:
    """Node 0 that admits each client and starts the same attempt; counts the ends it hears of."""

    def __init__(self, loop: Loop, said: list[str]) -> None:
        listener, _ = listen(ADDRESS, (0,))
        self.port = listener.getsockname()[1]
        self.connections: list[Connection] = []
        self.ends_heard = 0
        self.acceptor = Acceptor(listener, KEY, loop, keep(said), self._admit)

    def _admit(self, connection: Connection, address: str, message: dict[str, object]) -> None:
        self.connections.append(connection)
        connection.redirect(self._hear, lambda why: None)
        connection.send(pack(Welcome(1, 1, 1)))
        connection.send(pack(Start({}, 0)))

    def _hear(self, message: dict[str, object]) -> None:
        self.ends_heard += message["is"] == "ended"

    def close(self) -> None:
        self.acceptor.close()
        for connection in self.connections:
            connection.close()


def test_the_end_of_an_attempt_is_sent_until_the_next_one_starts() -> None:
    """Each connection may end before it has delivered it, and node 0 tells of the running attempt on each."""
    said: list[str] = []
    loop = Loop(keep(said))
    node_0 = ScriptedNode0(loop, said)
    shape = Shape(1, 2, 2, ADDRESS, (node_0.port,))
    join, helpers = parse(Join, make_join(1, 2)), Helpers(loop)
    link = CoordinatorClient(
        KEY, shape, join, loop, helpers, keep(said), lambda message: None, lambda: None
    )  # fmt: skip
    loop.timers.append(link)
    loop.turn_until(lambda: link.has_started, WAIT_S)
    node_0.connections[0].close()
    link.send(Ended(0))
    loop.turn_until(lambda: node_0.ends_heard == 1, WAIT_S)
    node_0.connections[1].close()
    loop.turn_until(lambda: node_0.ends_heard == 2, WAIT_S)
    assert node_0.ends_heard == 2, said
    link.close()
    node_0.close()
    loop.close()
    assert [line for line in said if FAULT in line] == []
