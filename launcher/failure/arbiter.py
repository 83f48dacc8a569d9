"""What came first in the whole job, and what that makes the job's end: pure, on node 0 only.

Nodes report failures as they happen, and have the last word about each (its verdict) only when all of their
processes have ended. The first report stops the others at once; who was first of all is decided when
every node has been heard or given up.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.core.messages import message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.messages import Status
    from launcher.failure.model import Cause

RANK, LOST, STALLED, REFUSED = "rank", "lost", "stalled", "refused"
UNPROVEN, UNMET, PREEMPTED = "unproven", "unmet", "preempted"
"""Kinds of events: a process has failed; a node is gone; a job hangs; a node could not start its command; its
NCCL uses another fabric than the one that is required; its processes have not met; its
machine is taken back."""
SILENT_NS = 2_500_000_000
"""A node may have been gone for this long before the last that was heard of it: a heartbeat and a bit."""


@message
class Event:
    """Something that ends the job, or would without ``--keep-going``.

    Attributes:
        node: Rank of the node.
        kind: One of those above.
        at_ns: When, by node 0's monotonic clock.
        status: What it makes the job's status.
        asked: Whether somebody had asked that process to end before.
        what: In words, for the log.
        cause: Why, where no verdict of the node says it.
        facts: Numbers of the process: rank, local_rank, pid, code.
        called: What the process is called if it has no rank.
    """

    node: int
    kind: str
    at_ns: int
    status: Status
    asked: bool = False
    what: str = ""
    cause: Cause | None = None
    facts: Mapping[str, int] | None = None
    called: str = ""


class FailureArbiter:
    """The events of a job and how each node has ended.

    Attributes:
        events: One at most of each node and kind, as they were heard.
        ended: Status of the nodes whose processes have all ended.
        records: Their verdicts, where they had a failure.
    """

    def __init__(self, node_count: int) -> None:
        self.node_count = node_count
        self.events: list[Event] = []
        self.ended: dict[int, int] = {}
        self.records: dict[int, Mapping[str, object]] = {}
        self._lost: set[int] = set()

    def report(self, event: Event) -> bool:
        """Take an event; return whether it is news."""
        if any(known.node == event.node and known.kind == event.kind for known in self.events):
            return False
        if event.kind == LOST:
            if event.node in self.ended:
                return False  # it has said all that it had to say
            self._lost.add(event.node)
        self.events.append(event)
        return True

    def end(self, node: int, status: int, record: Mapping[str, object] | None) -> None:
        """All processes of a node have ended."""
        self.ended.setdefault(node, status)
        if record is not None:
            self.records.setdefault(node, record)

    def is_lost(self, node: int) -> bool:
        """Whether a node was given up."""
        return node in self._lost

    def open_nodes(self) -> list[int]:
        """Return the nodes that have neither ended nor been given up."""
        return [node for node in range(self.node_count) if node not in self.ended and node not in self._lost]

    def find_first(self) -> Event | None:
        """Return what came first of its own accord; None if nothing has failed.

        A process that has only lost its peers tells of somebody else's failure: that comes first, if it is
        known. A node that was lost is why others have lost their peers, too, and was gone some time
        before it was missed.
        """
        own = [event for event in self.events if not event.asked] or self.events
        if not own:
            return None
        ordered = sorted(own, key=lambda event: event.at_ns)
        plain = [event for event in ordered if event.kind != LOST and not self._is_consequence(event)]
        lost = [event for event in ordered if event.kind == LOST]
        if plain and not (lost and lost[0].at_ns + SILENT_NS < plain[0].at_ns):
            return plain[0]
        return lost[0] if lost else ordered[0]

    def _is_consequence(self, event: Event) -> bool:
        causes = self.records.get(event.node, {}).get("causes") if event.kind == RANK else None
        return (
            isinstance(causes, (list, tuple))
            and bool(causes)
            and all(isinstance(cause, Mapping) and cause.get("consequence") is True for cause in causes)
        )

    def status(self) -> int:
        """Return the job's status, as far as is known."""
        first = self.find_first()
        if first is not None:
            return first.status
        return next((status for _, status in sorted(self.ended.items()) if status), 0)
