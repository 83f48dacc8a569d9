"""A machine of the job is taken back: the launcher there tells all others, which do the same as it does.

What is announced early travels as a `MachineNotice`, and changes nothing but what processes can read; that
it is time travels as a failure of its own kind, which stops the job as others do.
"""

from __future__ import annotations

from launcher.cluster.coordinator import Coordinator
from launcher.cluster.messages import MachineNotice, NodeNotice
from launcher.core.errors import EXIT_NOT_READY
from launcher.failure.arbiter import PREEMPTED
from launcher.preemption.events import ANNOUNCED, DUE, WITHDRAWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.cluster.node import ClusterNode

WORDS_LENGTH = 400
LEFT_LIMIT_MS = 366 * 86_400_000
"""A year: no cloud announces so early, and every such time is a date."""


def subscribe(node: ClusterNode) -> None:
    """Hear of it from other nodes; on node 0, pass it on to all."""
    channel = node.channel
    if isinstance(channel, Coordinator):
        channel.subscribers[MachineNotice] = lambda rank, notice: channel.broadcast(NodeNotice(rank, notice))
    node.subscribers[NodeNotice] = lambda noticed: hear(node, noticed)


def tell(node: ClusterNode, kind: str, what: str, left_s: float, ends: bool) -> None:
    """Tell the other nodes what our cloud says of this machine; ``ends``: the job ends for it."""
    left_ms = int(left_s * 1000)
    if kind != DUE:
        node.tell(MachineNotice(kind, what[:WORDS_LENGTH], left_ms))
    elif ends:
        node.tell_event(PREEMPTED, EXIT_NOT_READY, what, left_ms=left_ms)


def read_left_s(left_ms: int) -> float:
    """Return how long the machine lasts, as its node says."""
    return min(max(0, left_ms), LEFT_LIMIT_MS) / 1000


def hear(node: ClusterNode, noticed: NodeNotice) -> None:
    """Node 0 has passed on what another node announces, or withdraws."""
    by, notice = noticed.by, noticed.notice
    if by == node.shape.node_rank:
        return  # it is our own
    what = f"{node.shape.member} {by}: {notice.what[:WORDS_LENGTH]}"
    if node.shape.keep_going:
        node.agent.say(f"preemption: {what}: {notice.kind} (--keep-going: this node goes on)")
    elif notice.kind in (ANNOUNCED, WITHDRAWN) and node.has_begun:
        node.agent.observers.respond(notice.kind, what, read_left_s(notice.left_ms), by)
