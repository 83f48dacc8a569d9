"""A machine of the job is taken back: the launcher there tells all others, which do the same as it does.

What is announced early travels as a note, and changes nothing but what the processes can read; that it is
time travels as a failure of its own kind, which stops the job as others do.
"""

from __future__ import annotations

from launcher.channel.frames import Garbled, number, text, words
from launcher.cluster.coordinator import Coordinator
from launcher.core.errors import EXIT_NOT_READY
from launcher.failure.arbiter import PREEMPTED
from launcher.preemption.events import ANNOUNCED, DUE, WITHDRAWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.cluster.node import ClusterNode

KIND = "preemption"
KIND_LENGTH, WORDS_LENGTH = 32, 400
LEFT_LIMIT_MS = 366 * 86_400_000
"""A year: no cloud announces so early, and every such time is a date."""


def subscribe(node: ClusterNode) -> None:
    """Hear of it from other nodes; on node 0, pass it on to all."""
    channel = node.channel
    if isinstance(channel, Coordinator):
        channel.subscribers[KIND] = lambda rank, body: pass_on(channel, rank, body)
    node.subscribers[KIND] = lambda body: hear_note(node, body)


def pass_on(hub: Coordinator, rank: int, body: object) -> None:
    """Tell all nodes what one announces, or withdraws: known names, short values."""
    event = body if isinstance(body, dict) else {}
    try:
        left_ms = number(event, "left_ms")
    except Garbled:
        return
    known = {"kind": words(event, "kind", KIND_LENGTH), "what": words(event, "what", WORDS_LENGTH)}
    hub.broadcast(KIND, {"by": rank, "event": {**known, "left_ms": left_ms}})


def tell(node: ClusterNode, kind: str, what: str, left_s: float, ends: bool) -> None:
    """Tell the other nodes what our cloud says of this machine; ``ends``: the job ends for it."""
    left_ms = int(left_s * 1000)
    if kind != DUE:
        node.publish_note(KIND, {"kind": kind, "what": what[:WORDS_LENGTH], "left_ms": left_ms})
    elif ends:
        node.tell_event(PREEMPTED, EXIT_NOT_READY, what, left_ms=left_ms)


def read_left_s(left_ms: int) -> float:
    """Return how long the machine lasts, as its node says."""
    return min(max(0, left_ms), LEFT_LIMIT_MS) / 1000


def hear_note(node: ClusterNode, body: object) -> None:
    """Node 0 has passed on what another node announces, or withdraws."""
    event = body.get("event") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(event, dict):
        return
    if body.get("by") == node.shape.node_rank:
        return  # it is our own
    try:
        by, kind = number(body, "by"), text(event, "kind")
        what = f"node {by}: {words(event, 'what', WORDS_LENGTH)}"
        left_s = read_left_s(number(event, "left_ms"))
    except Garbled:
        return
    if node.shape.keep_going:
        node.agent.say(f"preemption: {what}: {kind} (--keep-going: this node goes on)")
    elif kind in (ANNOUNCED, WITHDRAWN) and node.has_begun:
        node.agent.observers.respond(kind, what, left_s, by)
