"""What came first in a whole job, and what that makes the job's end: pure.

Nodes report failures as they happen, and have the last word about each (its verdict) only when all of their
processes have ended. The first report stops the others at once; what was first of all is decided when every
node has been heard or given up.

Times are by one clock, and each is wrong by its `Event.within_ns` at most: where two may have been in either
order, both are named.
"""

from __future__ import annotations

from launcher.core.messages import message
from launcher.failure.model import Cause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Protocol, TypeVar

    from launcher.core.messages import Line, NodeRank, Status
    from launcher.failure.model import Verdict

    class _Failed(Protocol):
        @property
        def at_ns(self) -> int: ...

        @property
        def asked(self) -> bool: ...

    Failed = TypeVar("Failed", bound=_Failed)

RANK, LOST, REFUSED, PREEMPTED = "rank", "lost", "refused", "preempted"
GAVE_UP, CUT_OFF = "gave-up", "cut-off"
STALLED, UNPROVEN, UNMET = "stalled", "unproven", "unmet"
"""Kinds of events: a process has failed; a node is gone; a node could not start its command; its machine is
taken back; it has given the coordinator up; the coordinator hears no other node; a job hangs; its NCCL uses
another fabric than the one that is required; its processes have not met."""
SILENT_NS = 2_500_000_000
"""So long after its last word a node that fell silent may have gone: a heartbeat and a bit."""
LATENESS_NS = 25_000_000
"""A launcher on a busy machine hears of the end of a process so late."""
EVENTS_OF_NODE = 8


@message
class Event:
    """Something that ends the job, or would without ``--keep-going``.

    Attributes:
        node: Rank of the node.
        kind: One of those above.
        at_ns: When, by the coordinator's monotonic clock.
        status: What it makes the job's status.
        within_ns: How wrong that may be, either way.
        asked: Whether that process was asked to end before.
        follows: Whether its last words only tell of a failure elsewhere.
        what: In words, for the log.
        cause: Why, where no verdict of the node says it.
        facts: Numbers of the process: rank, local_rank, pid, code.
        called: What the process is called if it has no rank.
    """

    node: NodeRank
    kind: Line
    at_ns: int
    status: Status
    within_ns: int = 0
    asked: bool = False
    follows: bool = False
    what: Line = ""
    cause: Cause | None = None
    facts: Mapping[str, int] | None = None
    called: Line = ""


def find_first(failures: Iterable[Failed], follows: Callable[[Failed], bool]) -> Failed | None:
    """Return the failure that the others came from; None if there is none.

    Args:
        failures: The ends of processes, the loss of nodes, all by one clock.
        follows: Whether a failure only tells of another one.

    Returns:
        The earliest that was not asked for and does not follow; where all do, the earliest.
    """
    every = sorted(failures, key=lambda one: one.at_ns)
    own = [one for one in every if not one.asked] or every
    return next((one for one in own if not follows(one)), own[0] if own else None)


class FailureArbiter:
    """The events of a job and how each node has ended.

    Attributes:
        events: As they were heard.
        ended: Status of the nodes whose processes have all ended.
        records: Their verdicts, where they had a failure.
    """

    def __init__(self, node_count: int) -> None:
        self.node_count = node_count
        self.events: list[Event] = []
        self.ended: dict[int, int] = {}
        self.records: dict[int, Verdict] = {}
        self._lost: set[int] = set()

    def report(self, event: Event) -> bool:
        """Take an event; return whether it is news."""
        known = [one for one in self.events if (one.node, one.kind) == (event.node, event.kind)]
        if event.kind == STALLED:
            known = [one for one in self.events if one.kind == STALLED]  # a job hangs as a whole
        if event.kind == RANK:
            known = [one for one in known if (one.facts, one.called) == (event.facts, event.called)]
        if known or sum(one.node == event.node for one in self.events) >= EVENTS_OF_NODE:
            return False
        if event.kind == LOST:
            if event.node in self.ended:
                return False  # it has said all that it had to say
            self._lost.add(event.node)
        self.events.append(event)
        return True

    def end(self, node: int, status: int, record: Verdict | None) -> None:
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

        A node that was lost is why others have lost their peers, too; one that fell silent may have gone
        after the last that was heard of it.
        """
        first = find_first(self.events, self._only_follows)
        if first is None or first.kind != LOST or not first.within_ns:
            return first
        latest = first.at_ns + first.within_ns
        sooner = [one for one in self.events if one.kind != LOST and not one.asked and one.at_ns <= latest]
        return find_first(sooner, self._only_follows) if not all(map(self._only_follows, sooner)) else first

    def find_also(self, first: Event) -> list[tuple[Event, bool]]:
        """Return what else has failed of its own accord, and whether that was at the same time."""
        found = []
        for event in sorted(self.events, key=lambda event: event.at_ns):
            if event is not first and not event.asked and not self._only_follows(event):
                apart_ns = abs(event.at_ns - first.at_ns)
                found.append((event, apart_ns <= event.within_ns + first.within_ns))
        return found

    def _only_follows(self, event: Event) -> bool:
        """Whether a failure only tells of another: by its last words, or by the verdict of its node on it."""
        if event.kind != RANK:
            return False
        record = self.records.get(event.node)
        if record is None or (event.facts is not None and record.first.pid != event.facts.get("pid")):
            return event.follows
        return bool(record.causes) and all(cause.consequence for cause in record.causes)

    def status(self) -> int:
        """Return the job's status, as far as is known."""
        first = self.find_first()
        if first is not None:
            return first.status
        return next((status for _, status in sorted(self.ended.items()) if status), 0)
