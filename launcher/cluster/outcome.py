"""Decides how a job of several nodes ends: what stops the others, what came first, what all are told."""

from __future__ import annotations

import time

from launcher.cluster.messages import First, News, Over, Stop
from launcher.core.errors import EXIT_NOT_READY
from launcher.core.frozen import replace
from launcher.core.messages import Garbled
from launcher.core.model import NODE
from launcher.core.shorten import fit
from launcher.failure.arbiter import (
    CUT_OFF,
    GAVE_UP,
    LEFT,
    LOST,
    PREEMPTED,
    RANK,
    REFUSED,
    SILENT_NS,
    STALLED,
    UNMET,
    UNPROVEN,
    Event,
    FailureArbiter,
)
from launcher.failure.model import Cause, End, ProcessExit, Verdict
from launcher.failure.reason import LEFT_FIX, NEVER_MET_FIX
from launcher.failure.text import say_apart
from launcher.failure.verdict import make_verdict
from launcher.job.exits import SETTLE_S as CAUSE_S
from launcher.job.settings import ALSO_MAX, LEAVE_S, LOST_FIX, SETTLE_S, SLACK_S
from launcher.preemption.events import FIX, STATUS_WORDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.cluster.membership import Member, Membership
    from launcher.cluster.messages import Again, Ended, Failed
    from launcher.cluster.settings import Shape

CUT_OFF_FIX = (
    "check the network of this node, and whether its container or machine was paused or ran out of CPU"
)
CAUSES = {
    STALLED: Cause(
        "stalled",
        "",
        "see the stacks above for where each rank waits; raise --stall-timeout if the job was only slow",
    ),
    REFUSED: Cause("node-refused", "", "its own error message, on that node, has the fix"),
    PREEMPTED: Cause("preempted", "", FIX, retryable=True),
    UNPROVEN: Cause("other-fabric", "", "see that node's earlier messages for the fix", retryable=False),
    UNMET: Cause("never-met", "", NEVER_MET_FIX, retryable=False),
    LEFT: Cause("left-running", "", LEFT_FIX, retryable=False),
    GAVE_UP: Cause("node-lost", "", CUT_OFF_FIX, retryable=True),
}
"""Causes of events that are a cause themselves, by kind; the event supplies the text."""
WORDS = {
    LOST: "is lost",
    CUT_OFF: "was cut off from all other nodes",
    GAVE_UP: "was out of contact",
    STALLED: "was ended because it hung",
    REFUSED: "could not start its processes",
    PREEMPTED: STATUS_WORDS,
    UNPROVEN: "was ended because NCCL uses another fabric",
    UNMET: "was ended because its processes did not meet",
    LEFT: "was ended because its command had ended",
}


class Ending:
    """What has failed, and what follows from it; on the coordinator.

    Attributes:
        arbiter: The failures.
        stop: The order to stop the job, once sent.
        over: How the job ended, once decided.
        again: The next attempt, if one follows this one.
        due: When the next decision is due, if it waits only for time; monotonic seconds.
        leave_by: When to stop telling nodes how the job ended.
        attempt: Number of this attempt.
        has_progressed: Whether any node saw progress; None if none watches for it.
    """

    def __init__(
        self,
        shape: Shape,
        membership: Membership,
        tell_all: Callable[[object], None],
        has_started: Callable[[], bool],
        conclude: Callable[[Over], Over | Again] = lambda over: over,
        attempt: int = 0,
    ) -> None:
        """Begin without a failure.

        Args:
            shape: The job.
            membership: Its nodes.
            tell_all: Sends a message to all nodes.
            has_started: Returns whether the job has started.
            conclude: Returns how the job ends by a failure, or the attempt that follows.
            attempt: Number of this attempt, 0 for the first.
        """
        self.attempt = attempt
        self.again: Again | None = None
        self.has_progressed: bool | None = None
        self.arbiter = FailureArbiter(shape.node_count)
        self.stop: Stop | None = None
        self.over: Over | None = None
        self.due: float | None = None
        self.leave_by: float | None = None
        self._shape, self._membership = shape, membership
        self._tell_all, self._has_started, self._conclude = tell_all, has_started, conclude
        self._first_at: float | None = None
        self._decide_by: float | None = None
        self._held: tuple[float, Event] | None = None

    @property
    def gave_up(self) -> set[int]:
        """The ranks of the nodes that have given node 0 up."""
        return {event.node for event in self.arbiter.events if event.kind == GAVE_UP}

    def take(self, event: Event, left_ms: int | None = None) -> None:
        """Take an event that ends the job; ``left_ms``: time until its node is preempted."""
        if not self.arbiter.report(event):
            return
        now = time.monotonic()
        self._first_at = self._first_at or now
        if event.follows and self.stop is None:
            self._held = self._held or (now + CAUSE_S, event)  # the lost process gets time to report why
        elif not event.asked:
            self.begin_stop(event.what, event.node, left_ms=left_ms)
        self.consider()

    def begin_stop(self, what: str, by: int, *, told: int | None = None, left_ms: int | None = None) -> None:
        """Stop all nodes, because the others would wait forever for what has ended."""
        self._held = None
        if self.stop is not None or self.over is not None:
            return
        if self._shape.keep_going:
            self._tell_all(News(what, by))
            return
        self.stop = Stop(what, by, told, left_ms, self.attempt)
        self._decide_by = time.monotonic() + self._shape.grace_s + self._shape.lost_after_s + SLACK_S
        self._tell_all(self.stop)

    def end(self, rank: int, ended: Ended) -> None:
        """Record that all processes of a node have ended."""
        if ended.progressed is not None:
            self.has_progressed = self.has_progressed or ended.progressed
        self.arbiter.end(rank, ended.status, ended.record)
        if ended.status and self._held is None and not self._shape.keep_going:
            # It has stopped its processes itself: one that stood still kills what it has started too late
            self.begin_stop(f"{self._shape.member} {rank} has ended with status {ended.status}", rank)
        self.consider()

    def lose(self, member: Member, since: float, *, is_replaced: bool = False) -> None:
        """Take the loss of a node: its connection has ended, or it was silent for too long.

        Args:
            member: The node.
            since: Since when it could not be heard, monotonic seconds.
            is_replaced: Whether a new launcher has called in its place.
        """
        how = f"its connection has ended ({member.why})" if member.closed else "it stopped responding"
        after = f"no contact for {self._shape.lost_after_s:g} s"
        if is_replaced:
            after = f"and a new launcher has called as {member.kind} {member.rank}"
        what = f"{member.name} is lost: {how}, {after}{suspect_own(member, self._shape)}"
        cause = Cause("node-lost", what, LOST_FIX, retryable=True)
        within_ns = 0 if member.closed else SILENT_NS
        self.take(
            Event(member.rank, LOST, int(since * 1e9), EXIT_NOT_READY, within_ns, what=what, cause=cause)
        )

    def lose_all(self, members: Sequence[Member], since: float) -> None:
        """Take the loss of all other nodes at once: this node is cut off, or was paused."""
        own = self._membership.members[0]
        self.take(make_cut_off(own, len(members), self._shape, since))
        for member in members:
            self.lose(member, member.heard)

    def consider(self) -> None:
        """Decide what can be decided by now."""
        if self.over is not None or self.again is not None or not self._has_started():
            return
        now = time.monotonic()
        self.due = None
        if self._held is not None:
            until, event = self._held
            if now >= until:
                self.begin_stop(event.what, event.node)
            else:
                self.due = until
        if self.arbiter.has_open_nodes() and (self._decide_by is None or now < self._decide_by):
            return
        has_all = len(self.arbiter.ended) == self._shape.node_count  # a node reports its end last of all
        if not has_all and self._first_at is not None and now < self._first_at + SETTLE_S:
            self.due = self._first_at + SETTLE_S
            return
        self.due = None
        told = self._conclude(self._judge(now))
        if isinstance(told, Over):
            self.finish(told)
        else:
            self.again = told
            self._tell_all(told)

    def finish(self, over: Over) -> None:
        """End the job: tell all nodes how."""
        self.over = over
        self.leave_by = time.monotonic() + LEAVE_S
        self._tell_all(over)

    def _judge(self, now: float) -> Over:
        first = self.arbiter.find_first()
        if first is None:
            return Over(self.arbiter.status())
        also = [self._describe(event, first, same) for event, same in self.arbiter.find_also(first)]
        if first.kind in (CUT_OFF, GAVE_UP):
            also = []
        record = self.arbiter.records.get(first.node) if first.kind == RANK else None
        if record is not None and first.facts is not None and record.first.pid != first.facts.get("pid"):
            record = None
        if first.kind == GAVE_UP:
            first = self._blame_for_silence(first)
        member = self._membership.members.get(first.node)
        host = "" if member is None else member.host
        told = First(first, host, time.monotonic_ns() - first.at_ns, time.time_ns())
        return Over(first.status, told, None if record is None else fit(record), tuple(also[:ALSO_MAX]))

    def _blame_for_silence(self, first: Event) -> Event:
        """Return an event that blames this node, because nodes gave it up; or them, if others have not."""
        ranks = self.gave_up
        own = self._membership.members[0]
        many = "s" if len(ranks) > 1 else ""
        names = f"{own.kind}{many} {', '.join(map(str, sorted(ranks)))}"
        what = (
            f"{names} had no contact with {own.name} for {self._shape.lost_after_s:g} s: "
            "the network between them was cut, or one of them was paused"
        )
        lost = self.arbiter.is_lost
        others = [rank for rank in self._membership.members if rank and rank not in ranks and not lost(rank)]
        if others:
            what += f"; {own.name} heard the other {own.kind}s"
        node = first.node if others else 0
        return replace(first, node=node, what=what, cause=replace(CAUSES[GAVE_UP], what=what))

    def _describe(self, event: Event, first: Event, same: bool) -> str:
        """Return what else has failed, and when."""
        return f"{event.what}, {'at the same time' if same else say_apart(event.at_ns - first.at_ns)}"


def suspect_own(member: Member, shape: Shape) -> str:
    """Return what else the silence of the only other node can mean; empty if others are there."""
    if shape.node_count != 2 or member.closed:
        return ""
    own = f"{member.kind} 0"
    return f"; or the network of {own} was cut, or {own} was paused"


def make_cut_off(own: Member, count: int, shape: Shape, since: float) -> Event:
    """Return the event that node 0 has lost all others at once: it is cut off, or was paused.

    Args:
        own: Node 0.
        count: Number of the others.
        shape: The job.
        since: Since when none was heard, monotonic seconds.
    """
    what = (
        f"{own.name} had no contact with any of the {count} other {own.kind}s for "
        f"{shape.lost_after_s:g} s: its own network was cut, or it was paused"
    )
    cause = Cause("node-lost", what, CUT_OFF_FIX, retryable=True)
    return Event(0, CUT_OFF, int(since * 1e9), EXIT_NOT_READY, what=what, cause=cause)


def read_failure(member: Member, failed: Failed) -> Event:
    """Return a node's report as an event.

    Raises:
        Garbled: A node cannot report this kind, e.g. that a node is lost or that node 0 is cut off.
    """
    if failed.kind not in (RANK, *CAUSES):
        raise Garbled("a failure of an unknown kind")
    what = failed.what if failed.kind == GAVE_UP else f"{failed.what} on {member.place}"
    cause = CAUSES.get(failed.kind)
    facts = {
        name: value
        for name, value in (
            ("rank", failed.rank),
            ("local_rank", failed.local_rank),
            ("pid", failed.pid),
            ("code", failed.code),
        )
        if value is not None
    }
    return Event(
        node=member.rank,
        kind=failed.kind,
        at_ns=failed.at_ns,
        status=failed.status or 1,
        within_ns=failed.within_ns,
        asked=failed.asked,
        follows=failed.follows,
        what=what,
        cause=None if cause is None else replace(cause, what=failed.what),
        facts=facts if failed.kind == RANK and not failed.called else None,
        called=failed.called,
    )


def lose_coordinator(shape: Shape) -> tuple[str, Over]:
    """Return the message that node 0 is lost, and how the job ends by that: no other node can decide it."""
    what = f"{shape.member} 0 ({shape.address}) is lost: no contact for {shape.lost_after_s:g} s"
    cause = Cause("node-lost", what, LOST_FIX, retryable=True)
    event = Event(0, LOST, time.monotonic_ns(), EXIT_NOT_READY, what=what, cause=cause)
    first = First(event, shape.address, int(shape.given_up_s * 1e9), time.time_ns())
    return what, Over(EXIT_NOT_READY, first)


def read_verdict(
    over: Over, own: Verdict | None, shape: Shape, started_ns: int, attempt: int = 0
) -> Verdict | None:
    """Return the verdict on the whole job; None if nothing has failed.

    Args:
        over: The coordinator's final message.
        own: The verdict on our own processes, used if the coordinator reports a failure without a verdict.
        shape: The job.
        started_ns: When our processes were started, nanoseconds since 1970.
        attempt: Number of the attempt, 0 for the first.
    """
    verdict = over.record
    if verdict is None and over.first is not None:
        verdict = judge_event(over.first, shape, started_ns, attempt)
    if verdict is None and over.status:
        verdict = own
    return verdict if verdict is None or not over.also else replace(verdict, also=over.also)


def judge_event(first: First, shape: Shape, started_ns: int, attempt: int) -> Verdict:
    """Return a verdict from an event alone, if its node gave none.

    Args:
        first: The event that came first.
        shape: The job.
        started_ns: When our processes were started, nanoseconds since 1970.
        attempt: Number of the attempt, 0 for the first.
    """
    event = first.event
    facts = event.facts or {}
    called = "" if facts else event.called or f"{shape.member} {event.node}"
    exit_ = ProcessExit(
        rank=facts.get("rank", 0),
        local_rank=facts.get("local_rank", 0),
        pid=facts.get("pid", 0),
        code=facts.get("code", event.status),
        ended_ns=max(first.wall_ns - first.ago_ns, started_ns),
        called=called,
    )
    verdict = make_verdict(
        exit_,
        [],
        host_name=first.host,
        node_rank=event.node if shape.member == NODE else None,
        world_size=shape.world_size,
        attempt=attempt,
        started_ns=started_ns,
        told=None,
        causes=[event.cause] if event.cause is not None else [],
    )
    if event.kind not in WORDS:
        return verdict
    return replace(verdict, first=End(**{**vars(verdict.first), "status": WORDS[event.kind]}))
