"""Runs a plan with an agent that starts and ends together with the other nodes' agents."""

from __future__ import annotations

import os
import time

from launcher.agent.agent import Agent, find_programs, widen_cpus
from launcher.agent.runtime import NodePlace
from launcher.channel.acceptor import PENDING_MAX
from launcher.channel.connection import open_listener
from launcher.channel.frames import make_key, name_job, read_token
from launcher.cluster.agreed import adopt, choose, read_seats, remember_last
from launcher.cluster.client import CoordinatorClient
from launcher.cluster.coordinator import Coordinator
from launcher.cluster.facts import read_facts
from launcher.cluster.join import Join, name_session
from launcher.cluster.messages import Refuse, Start
from launcher.cluster.node import ClusterNode
from launcher.cluster.outcome import read_refusal
from launcher.cluster.reach import find_address
from launcher.cluster.roll import look_for
from launcher.cluster.settings import Shape
from launcher.core.environ import is_loopback
from launcher.core.errors import LauncherError, NotReady
from launcher.core.model import NODE, RANK
from launcher.core.redact import printable
from launcher.core.wire import parse
from launcher.job.commands import Refusal
from launcher.job.events import Refused
from launcher.job.node import Answered, Connected
from launcher.machine.host import Host
from launcher.machine.own_names import address_of
from launcher.process.limits import raise_limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.agent.agent import Serve
    from launcher.agent.observers import Checks
    from launcher.core.log import Say
    from launcher.core.model import Peers, Plan
    from launcher.process.spawn import Child

    Feed = Callable[[object], None]
    MakeChildren = Callable[[Plan], Sequence[Child]]
    Replan = Callable[[int, Mapping[int, int], tuple[str, ...]], Plan]

PORTS_S, PORTS_EVERY_S = 5.0, 0.1
"""How long, and how often, a restart looks whether the ports of the last attempt are free."""


def run_together(
    plan: Plan,
    peers: Peers,
    command: Sequence[str],
    make_children: MakeChildren,
    replan: Replan,
    environ: Mapping[str, str],
    checks: Checks | None = None,
    serve: Serve | None = None,
) -> int:
    """Run this node's part of a job of several nodes; return the job's status.

    Args:
        plan: The plan of this node.
        peers: The control channel between the launchers.
        command: The user's command, before it became that of each process.
        make_children: Makes the processes to start from a plan.
        replan: Makes a plan with another port of the rendezvous, and with the nodes of an attempt.
        environ: The environment that the launcher was started with.
        checks: Checks to run beside the processes; see `launcher.agent.agent.Agent`.
        serve: Makes the server that answers questions about the job.

    Raises:
        LauncherError: The nodes do not come together, or our processes cannot be started.
    """
    replan = remember_last(replan)
    key, has_token = find_key(plan, peers, environ)
    shape = plan_shape(
        plan, peers, shares_log=environ.get("LAUNCHER_REHEARSED", "0") != "0", has_token=has_token
    )
    secret = os.urandom(16).hex()
    join = make_join(plan, shape, command, environ, name_session(secret))
    # Resolve names here: once there is an agent, its loop must not block.
    address = find_address(shape.address, shape.hosts, Host()) if shape.index == 0 else None
    has_twin = address is not None and not is_own(shape.address)

    def make_client(say: Say, deliver: Callable[[object], None], feed: Feed) -> CoordinatorClient:
        loop, ask = agent.runtime.loop, agent.runtime.group.helpers.ask
        return CoordinatorClient(
            key, shape, join, loop, ask, say, deliver, lambda: feed(Connected()),
            lambda sent: feed(Answered(sent)), secret=secret,
        )  # fmt: skip

    def make_channel(node: ClusterNode) -> Coordinator | CoordinatorClient:
        if address is None:
            return make_client(node.say, node.deliver, node.feed)
        return make_coordinator(plan, shape, address, join, key, node, replan)

    def make(agreed: Start) -> Sequence[Child]:
        """Return our processes; after a failure the kernel may need a moment to free their ports."""
        loop, forwarder = agent.runtime.loop, agent.runtime.forwarder
        until = time.monotonic() + (PORTS_S if agreed.attempt else 0.0)
        while True:
            try:
                return make_children(adopt(plan, agreed, read_seats(agreed, shape), replan))
            except NotReady:
                if time.monotonic() > until or forwarder.told is not None:
                    raise
            loop.turn_until(lambda: forwarder.told is not None, PORTS_EVERY_S)

    if plan.widen_cpus:
        widen_cpus()

    def make_twin(node: ClusterNode) -> CoordinatorClient | None:
        channel = node.channel
        if not isinstance(channel, Coordinator) or not (has_twin or channel.port != shape.ports[0]):
            return None

        def on_twin(message: object) -> None:
            """Refuse the job as another launcher that is node 0 too has; it may also have ended, or run."""
            if isinstance(message, Refuse) and message.code == "two-nodes-one-rank":
                problem = read_refusal(message).problems[0]
                channel.feed(Refused(Refusal(message.status, problem, message.lines)))

        return make_client(lambda text, event: None, on_twin, lambda event: None)

    place = NodePlace(shape.index if peers.member == NODE else plan.topology.node_rank, shape.world_size)
    node = ClusterNode(shape, make_channel, make, make_twin)
    agent = Agent(
        plan.supervision, place, environ, node.coordinate(), checks=checks, serve=serve, command=command
    )
    node.parts, node.runtime = agent.parts, agent.runtime
    if plan.supervision.preload is not None:
        import contextlib

        children = make_children(plan)  # as far as they are known: modules are imported meanwhile
        with contextlib.suppress(LauncherError):  # a missing program is an error once the nodes are together
            agent.preload(children, find_programs(children))
    return agent.run()


def find_key(plan: Plan, peers: Peers, environ: Mapping[str, str]) -> tuple[bytes, bool]:
    """Return the key of the job, and whether it is made from a token.

    Raises:
        UsageError: The token cannot be read, or is too short.
    """
    words = plan.agent.argv if plan.agent is not None else ()
    rendezvous = next((word.partition("=")[2] for word in words if word.startswith("--rdzv_id=")), "")
    token = read_token(peers.token_file, environ)
    return make_key(token, name_job(environ, plan.allocation.master_port, rendezvous)), token is not None


def make_join(
    plan: Plan, shape: Shape, command: Sequence[str], environ: Mapping[str, str], session: str
) -> Join:
    """Return this node's first message: its facts, its rank, and the session of its launcher."""
    facts = read_facts(plan, command, Host(), environ)
    node = plan.topology.node_rank if shape.member == RANK else None
    return parse(Join, {**facts, "rank": shape.index, "session": session, "node": node})


def make_coordinator(
    plan: Plan,
    shape: Shape,
    address: str,
    join: Join,
    key: bytes,
    node: ClusterNode,
    replan: Replan,
) -> Coordinator:
    """Return node 0's end of the channel, and print where it listens.

    Args:
        plan: The plan of node 0.
        shape: The job.
        address: Address to listen at.
        join: Facts of node 0.
        key: Key of the job.
        node: The node that owns the channel.

    Raises:
        NotReady: No port is free at this address.
    """
    raise_limit(PENDING_MAX + shape.node_count)
    listener, port = open_listener(address, shape.ports)
    is_safe = shape.has_token or is_loopback(address) or "LAUNCHER_REHEARSED" in node.runtime.environ
    node.runtime.say(describe_place(shape, address, port, is_safe=is_safe), "control-channel")
    rule = plan.supervision.restarts
    return Coordinator(
        listener,
        key,
        shape,
        join,
        node.runtime.loop,
        node.runtime.say,
        node.deliver,
        lambda attempt: choose(plan, node.runtime.run_id, node.agreed, replan, node.runtime.say),
        lambda ranks, take: look_for(ranks, take, shape, port, node.runtime.group.helpers),
        lambda: node.parts.outcomes.history,
        rule if rule.most else None,
        node.runtime.run_id,
    )


def is_own(name: str) -> bool:
    """Whether the job's name for node 0 resolves to one of our addresses."""
    host = Host()
    return is_loopback(name) or address_of(host, name) in host.own_addresses()


def describe_place(shape: Shape, address: str, port: int, *, is_safe: bool) -> str:
    """Return where node 0 listens, with a remark about loopback, or on authentication unless ``is_safe``."""
    place = f"control channel: {address} port {port}"
    if is_loopback(address):
        why = f"{printable(shape.address)} resolves to it here, and there is no other address"
        if is_loopback(shape.address):
            why = f"{printable(shape.address)} is this machine, so all of this job runs here"
        place += f", reachable only from this machine: {why}"
    if not is_safe:
        place += "; not authenticated: set LAUNCHER_TOKEN, or --token-file, on all nodes"
    return place


def plan_shape(plan: Plan, peers: Peers, *, shares_log: bool = False, has_token: bool = False) -> Shape:
    """Return the job as its channel sees it; ``shares_log``: another node prints job-wide messages."""
    allocation = plan.allocation
    if peers.member == RANK:
        rank, count = allocation.rank, plan.topology.world_size
        speaks = not (rank if allocation.local_rank is None else allocation.local_rank)
    else:
        rank, count, speaks = allocation.node_rank, allocation.node_count, True
    assert rank is not None and count is not None  # noqa: S101 - see plan_channel
    return Shape(
        node_rank=rank,
        node_count=count,
        world_size=plan.topology.world_size,
        address=allocation.master_addr,
        ports=peers.ports,
        hosts=allocation.hosts if peers.member == NODE else (),
        timeout_s=peers.timeout_s,
        lost_after_s=peers.lost_after_s,
        grace_s=plan.supervision.grace_s,
        keep_going=peers.keep_going,
        master_port=plan.topology.master_port,
        member=peers.member,
        speaks=speaks and not shares_log,
        spare_count=peers.spare_count,
        index=peers.index,
        is_spare=allocation.spare is not None,
        tells_hosts=plan.meeting is not None,
        has_token=has_token,
    )
