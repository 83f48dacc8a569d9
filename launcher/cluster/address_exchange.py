"""Address exchange: the launchers of a job without a control channel learn the addresses of all nodes.

It is the control channel for as long as the roll call takes: the first launcher listens at the master's
address and port, and its start signal has the address from which each node has connected. The port is free
again before any process starts. In a job with a control channel the start signal of each attempt has the
addresses, and nothing is exchanged before (`Meeting.at_start`).
"""

from __future__ import annotations

import os
import signal
import time

from launcher.channel.acceptor import PENDING_MAX
from launcher.channel.connection import listen
from launcher.channel.frames import make_key, name_job, read_token
from launcher.cluster.agreed import read_hosts
from launcher.cluster.client import CoordinatorClient
from launcher.cluster.join import Join
from launcher.cluster.messages import Over, Refuse, Start
from launcher.cluster.reach import find_address
from launcher.cluster.settings import Shape
from launcher.core.errors import LauncherError, make_error
from launcher.core.log import say
from launcher.core.model import NODE, RANK
from launcher.core.version import __version__
from launcher.machine.host import Host
from launcher.process.limits import raise_limit
from launcher.process.loop import Every, Later, Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.cluster.coordinator import Coordinator
    from launcher.core.model import Meeting
    from launcher.process.helper import Take, Work

STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
TICK_S = 0.2
"""Seconds between two looks at the time and at signals."""
TAKE_S = 5.0
"""Seconds that the other launchers may take to receive the addresses, or why there are none."""


def meet(meeting: Meeting, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the address of every node, node 0 first.

    Args:
        meeting: Place of the address exchange, and this launcher's index.
        environ: The environment of the launcher.

    Raises:
        LauncherError: Not all launchers connected in time or they do not fit together, the port is taken, we
            were told to stop, or the job's token cannot be read.
    """
    deadline, loop = time.monotonic() + meeting.timeout_s, Loop(say)
    key = make_key(read_token(meeting.token_file, environ), name_job(environ, meeting.port))
    heard: list[Start | Refuse | Over] = []

    def take(message: object) -> None:
        if isinstance(message, (Start, Refuse, Over)):
            heard.append(message)

    channel = _call(meeting, key, loop, take) if meeting.member else _listen(meeting, key, loop, take)
    loop.timers += [channel, Every(TICK_S, lambda: None)]
    try:
        while not heard:
            if STOPS & signal.sigpending():  # process 1 has its signals blocked
                raise _make_missing(meeting, "the launcher received a signal to stop")
            if isinstance(channel, CoordinatorClient) and time.monotonic() >= deadline:
                what = f"{_name_kind(meeting)} 0 has sent no addresses within {meeting.timeout_s:g} s"
                raise _make_missing(meeting, f"{what}: {channel.explain()}")
            loop.turn()
        if not isinstance(channel, CoordinatorClient):
            members = channel.members
            loop.turn_until(lambda: not members.are_connected, TAKE_S)
    finally:
        channel.close()
        loop.close()
    return _read(heard[0], meeting)


def _listen(meeting: Meeting, key: bytes, loop: Loop, take: Callable[[object], None]) -> Coordinator:
    """Return the end of the first launcher.

    Raises:
        NotReady: The port is taken, or this node has no address at which others find it.
    """
    from launcher.cluster.coordinator import Coordinator  # the other launchers start without it
    from launcher.recovery.history import History

    raise_limit(PENDING_MAX + meeting.member_count)
    address = find_address(meeting.address, (), Host())
    try:
        listener, _ = listen(address, (meeting.port,))
    except OSError as error:
        raise _make_missing(meeting, f"cannot listen at {address} ({error.strerror})") from error
    return Coordinator(
        listener,
        key,
        _make_shape(meeting, meeting.address),
        _make_join(meeting),
        loop,
        say,
        take,
        lambda attempt: {},
        lambda ranks, tell: tell({}),
        lambda: History("", say),
    )


def _call(meeting: Meeting, key: bytes, loop: Loop, take: Callable[[object], None]) -> CoordinatorClient:
    """Return the outcome of any other launcher, which logs nothing before it fails.

    Raises:
        NotReady: This is node 0, and it has no address.
    """

    def ask(work: Work, tell: Take, limit_s: float) -> Later:
        """Do it ourselves, in the next turn: a script that calls us may have threads, so there is no fork."""

        def act() -> None:
            loop.timers.remove(later)
            tell(list(work()))

        loop.timers.append(later := Later(0.0, act))
        return later

    # On node 0 the name may mean the loopback.
    address = meeting.address if meeting.node else find_address(meeting.address, (), Host())
    shape = _make_shape(meeting, address)
    return CoordinatorClient(key, shape, _make_join(meeting), loop, ask, lambda text, event: None, take)


def _make_shape(meeting: Meeting, address: str) -> Shape:
    return Shape(
        meeting.member,
        meeting.member_count,
        None,
        address,
        (meeting.port,),
        timeout_s=meeting.timeout_s,
        member=_name_kind(meeting),
        index=meeting.member,
        tells_hosts=True,
    )


def _make_join(meeting: Meeting) -> Join:
    return Join(
        meeting.member,
        os.urandom(8).hex(),
        node=meeting.node,
        host=Host().hostname(),
        launcher=__version__,
        node_count=meeting.member_count,
    )


def _name_kind(meeting: Meeting) -> str:
    """Return what has a launcher of its own; of several launchers on a node, each has one process."""
    return NODE if meeting.member_count == meeting.node_count else RANK


def _read(message: Start | Refuse | Over, meeting: Meeting) -> tuple[str, ...]:
    """Return the address of every node.

    Raises:
        LauncherError: There are none.
    """
    if isinstance(message, Start):
        return read_hosts(message, meeting.node_count)
    if isinstance(message, Over):
        raise _make_missing(meeting, message.why)
    from launcher.cluster.outcome import read_refusal

    for line in message.lines:
        say(line, "nodes-differ")
    if message.code == "nodes-missing":  # its fixes are for the control channel
        raise _make_missing(meeting, message.what)
    raise read_refusal(message)


def _make_missing(meeting: Meeting, why: str) -> LauncherError:
    """Return the error that the nodes do not come together, as this launcher sees it."""
    return make_error(
        "peers-missing",
        address=meeting.address, port=meeting.port, why=why,
        member=meeting.member, count=meeting.member_count, node=meeting.node,
    )  # fmt: skip
