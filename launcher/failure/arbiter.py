"""Failure arbiter: decides which event of a job came first, and the job's status. Pure.

Nodes report failures as they happen. The verdict on a failure follows only when all processes of its node
have ended. The first report stops the other nodes at once. Which event was first is decided when every node
has ended or was given up.

All times are by one clock, each with an error of at most its `Event.within_ns`. If two events may have
happened in either order, both are named.
"""

from __future__ import annotations

from launcher.core.wire import message
from launcher.failure.model import Cause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from launcher.core.wire import Line, NodeRank, Status
    from launcher.failure.model import Verdict

RANK, LOST, REFUSED, PREEMPTED = "rank", "lost", "refused", "preempted"
GAVE_UP, CUT_OFF = "gave-up", "cut-off"
STALLED, UNPROVEN, UNMET, LEFT = "stalled", "unproven", "unmet", "left-running"
"""Kinds of events: a process has failed; a node is lost; a node could not start its command; a node is
preempted; a node gave up the coordinator; the coordinator hears no other node; the job hangs; its NCCL
uses another fabric than the required one; its processes have not met; its command has ended before them."""
KILLED, ORPHANED, MISPLACED, STARTER = "rank-killed", "daemon-lost", "rank-count", "starter"
"""Kinds of events where mpirun starts the ranks: a rank was killed together with its launcher; MPI's daemon
of a node has ended before its ranks; ranks are in the wrong place; mpirun's own end explains the rest."""
FOLLOW_LOSS = (KILLED, ORPHANED)
"""What the loss of a node brings about: mpirun loses its daemon there, and kills the others and the ranks."""
DECISIVE = (STARTER, MISPLACED)
"""What explains all other events of an attempt, the first of these that is among them."""
NODE_LOST = "node-lost"
CUT_OFF_FIX = (
    "check the network of this node, and whether its container or machine was paused or ran out of CPU"
)
LOST_FIX = "check the node, its network, and whether its container was stopped"
SILENT_NS = 2_500_000_000
"""A silent node may have been lost this long after its last message: a bit more than a heartbeat."""
LATENESS_NS = 25_000_000
"""A launcher on a busy machine may notice the exit of a process this late."""
EVENTS_OF_NODE = 8
"""Number of failed ranks of a node that are kept, the first ones that are reported."""


@message
class Event:
    """Something that ends the job, or would without ``--keep-going``.

    Attributes:
        node: Rank of the node.
        kind: One of the kinds above.
        at_ns: Its time by the coordinator's monotonic clock.
        status: The job's status that results.
        within_ns: Maximum error of that time, in both directions.
        asked: Whether the process was told to stop before.
        follows: Whether its last error output reports only a failure elsewhere.
        what: Description for the log.
        cause: The cause, if no verdict of the node states it.
        facts: Numbers of the process: rank, local_rank, pid, code.
        called: Name of a process without a rank.
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


def make_node_lost(what: str, *, is_cut_off: bool = False) -> Cause:
    """Return the cause that a node is lost; ``is_cut_off``: it runs, and others cannot hear it."""
    return Cause(NODE_LOST, what, CUT_OFF_FIX if is_cut_off else LOST_FIX, retryable=True)


def find_first(failures: Iterable[Event], follows: Callable[[Event], bool]) -> Event | None:
    """Return the failure that caused the others; None if there is none.

    Args:
        failures: Exits of processes and losses of nodes, all by one clock.
        follows: Whether a failure only reports another one.

    Returns:
        The earliest one that was not asked for and does not follow. Failures that were asked for count only
        if there are no others; among these, failures that follow count only if there are no others.
    """
    every = sorted(failures, key=lambda one: one.at_ns)
    own = [one for one in every if not one.asked] or every
    return next((one for one in own if not follows(one)), own[0] if own else None)


def is_new(event: Event, events: Sequence[Event]) -> bool:
    """Whether an event was not reported yet, and is one of the first of its node."""
    same = [one for one in events if (one.node, one.kind) == (event.node, event.kind)]
    if event.kind == STALLED:
        return not any(one.kind == STALLED for one in events)  # the job hangs as a whole
    if event.kind == RANK:
        known = any((one.facts, one.called) == (event.facts, event.called) for one in same)
        return not known and len(same) < EVENTS_OF_NODE
    return not same


def find_first_event(events: Sequence[Event], records: Mapping[int, Verdict]) -> Event | None:
    """Return the event that came first of its own accord; None if nothing has failed.

    A lost node is also the reason why others lost their peers. But a node that fell silent may have been lost
    later than its last message, after an event on another node.

    Args:
        events: The events, in any order.
        records: The verdicts of nodes on their processes.
    """

    kinds = {event.kind for event in events}

    def follows(event: Event) -> bool:
        return only_follows(event, records, kinds)

    first = find_first(events, follows)
    if first is None or first.kind != LOST or not first.within_ns:
        return first
    latest = first.at_ns + first.within_ns
    sooner = [one for one in events if one.kind != LOST and not one.asked and one.at_ns <= latest]
    return find_first(sooner, follows) if not all(map(follows, sooner)) else first


def find_also(
    first: Event, events: Sequence[Event], records: Mapping[int, Verdict]
) -> list[tuple[Event, bool]]:
    """Return what else failed of its own accord, and whether it may be simultaneous with the first."""
    found, kinds = [], {event.kind for event in events}
    for event in sorted(events, key=lambda event: event.at_ns):
        if event is not first and not event.asked and not only_follows(event, records, kinds):
            apart_ns = abs(event.at_ns - first.at_ns)
            found.append((event, apart_ns <= event.within_ns + first.within_ns))
    return found


def only_follows(event: Event, records: Mapping[int, Verdict], kinds: Collection[str]) -> bool:
    """Whether a failure only follows from another: by its error output, its node's verdict, or the others.

    Args:
        event: The failure.
        records: The verdicts of nodes on their processes.
        kinds: The kinds of all events.
    """
    decisive = next((kind for kind in DECISIVE if kind in kinds), event.kind)
    if event.kind != decisive or (event.kind in FOLLOW_LOSS and LOST in kinds):
        return True
    if event.kind != RANK:
        return False
    record = records.get(event.node)
    if record is None or (event.facts is not None and record.first.pid != event.facts.get("pid")):
        return event.follows
    return bool(record.causes) and all(cause.consequence for cause in record.causes)
