"""Preemption of a node: its launcher tells all others, which react as it does.

An early notice travels as a `MachineNotice`, and only changes the deadline that processes can read. When the
node's time has come, the launcher reports a failure of the kind `PREEMPTED`, which stops the job like any
other failure.
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
    from launcher.cluster.reporter import Reporter

WORDS_LENGTH = 400
LEFT_LIMIT_MS = 366 * 86_400_000
"""One year: no cloud announces earlier, and any such time can be shown as a date."""


def subscribe(node: ClusterNode) -> None:
    """Handle notices of other nodes; on node 0, pass them on to all."""
    channel = node.channel
    if isinstance(channel, Coordinator):
        channel.subscribers[MachineNotice] = lambda rank, notice: channel.broadcast(NodeNotice(rank, notice))
    node.subscribers[NodeNotice] = lambda noticed: hear(node, noticed)


def tell(reporter: Reporter, kind: str, what: str, left_s: float, ends: bool) -> None:
    """Tell the other nodes of a preemption notice for this node; ``ends``: the job ends because of it."""
    left_ms = int(left_s * 1000)
    if kind != DUE:
        reporter.tell(MachineNotice(kind, what[:WORDS_LENGTH], left_ms))
    elif ends:
        reporter.tell_event(PREEMPTED, EXIT_NOT_READY, what, left_ms=left_ms)


def read_left_s(left_ms: int) -> float:
    """Return the seconds until a node is preempted, from its message."""
    return min(max(0, left_ms), LEFT_LIMIT_MS) / 1000


def hear(node: ClusterNode, noticed: NodeNotice) -> None:
    """Handle a notice of another node, or its withdrawal, that node 0 has passed on."""
    by, notice = noticed.by, noticed.notice
    if by == node.view.shape.node_rank:
        return  # it is our own notice
    what = f"{node.view.shape.member} {by}: {notice.what[:WORDS_LENGTH]}"
    if node.view.shape.keep_going:
        node.agent.say(f"preemption: {what}: {notice.kind} (--keep-going: this node goes on)", "elsewhere")
    elif notice.kind in (ANNOUNCED, WITHDRAWN) and node.view.attempt.has_begun:
        node.agent.observers.respond(notice.kind, what, read_left_s(notice.left_ms), by)
