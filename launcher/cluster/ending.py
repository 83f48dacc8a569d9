"""How a job of several nodes ends, on node 0: who stops the others, what came first, who is told."""

from __future__ import annotations

import time

from launcher.channel.frames import Garbled, number, text, words
from launcher.cluster.rendezvous import FAREWELL_S
from launcher.cluster.verdict import First
from launcher.core.errors import EXIT_NOT_READY
from launcher.core.frozen import replace
from launcher.core.messages import render
from launcher.core.redact import printable
from launcher.failure import transfer
from launcher.failure.arbiter import (
    LOST,
    PREEMPTED,
    RANK,
    REFUSED,
    STALLED,
    UNMET,
    UNPROVEN,
    Event,
    FailureArbiter,
)
from launcher.failure.model import Cause
from launcher.failure.reason import NEVER_MET_FIX
from launcher.preemption.events import FIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.cluster.membership import Member, Membership
    from launcher.cluster.settings import Shape

    Message = dict[str, object]

SETTLE_S = 0.3
"""After a first report, for one of something that was earlier: nodes have told within milliseconds."""
SLACK_S = 5.0
WORDS_LENGTH, CALLED_LENGTH = 400, 32
LOST_FIX = "look at the node, at its network, and at whether somebody has ended its container"
CAUSES = {
    STALLED: Cause(
        "stalled",
        "",
        "the stacks printed before tell who waits where; a longer --stall-timeout if it was only slow",
    ),
    REFUSED: Cause("node-refused", "", "its own error message, on that node, has the fix"),
    PREEMPTED: Cause("preempted", "", FIX, retryable=True),
    UNPROVEN: Cause("other-fabric", "", "what that node has said before tells the fix", retryable=False),
    UNMET: Cause("never-met", "", NEVER_MET_FIX, retryable=False),
}
"""Kinds of events that are a cause by themselves; what has happened is the event's to say."""


class Ending:
    """What has failed, and what follows from that.

    Attributes:
        court: What has failed.
        stop: That the job stops, once that was told.
        over: How it ended, once that was decided.
        settles_at: When it can be decided, if only that is waited for; monotonic seconds.
        leave_by: Until when nodes are told how it ended.
    """

    def __init__(
        self,
        shape: Shape,
        roster: Membership,
        tell_all: Callable[[Message], None],
        has_started: Callable[[], bool],
    ) -> None:
        self.court = FailureArbiter(shape.node_count)
        self.stop: Message | None = None
        self.over: Message | None = None
        self.settles_at: float | None = None
        self.leave_by: float | None = None
        self._shape, self._roster = shape, roster
        self._tell_all, self._has_started = tell_all, has_started
        self._first_at: float | None = None
        self._decide_by: float | None = None

    def take(self, event: Event, more: Mapping[str, object] | None = None) -> None:
        """Something has ended the job; ``more`` goes to all nodes."""
        if not self.court.report(event):
            return
        self._first_at = self._first_at or time.monotonic()
        if not event.asked:
            self.begin_stop(event.what, {"by": event.node, **(more or {})})
        self.consider()

    def begin_stop(self, what: str, more: Mapping[str, object]) -> None:
        """Something has ended the job: the others would wait for it forever."""
        if self.stop is not None or self.over is not None:
            return
        message: Message = {"is": "stop", "what": what, **more}
        if self._shape.keep_going:
            self._tell_all({**message, "is": "news"})
            return
        self.stop = message
        self._decide_by = time.monotonic() + self._shape.grace_s + self._shape.lost_after_s + SLACK_S
        self._tell_all(message)

    def end(self, rank: int, status: int, record: object) -> None:
        """The processes of a node have all ended."""
        self.court.end(rank, status, record if isinstance(record, dict) else None)
        self.consider()

    def lose(self, member: Member, how: str, since: float) -> None:
        """A node is gone."""
        after = f"{self._shape.lost_after_s:g} s"
        what = f"{member.name} is lost: {how}, and nothing was heard of it for {after}"
        cause = Cause("node-lost", what, LOST_FIX, retryable=True)
        self.take(Event(member.rank, LOST, int(since * 1e9), EXIT_NOT_READY, what=what, cause=cause))

    def consider(self) -> None:
        """Decide how the job ended, once that can be known."""
        if self.over is not None or not self._has_started():
            return
        now = time.monotonic()
        if self.court.open_nodes() and (self._decide_by is None or now < self._decide_by):
            return
        if self._first_at is not None and now < self._first_at + SETTLE_S:
            self.settles_at = self._first_at + SETTLE_S
            return
        self.settles_at = None
        self.over = self._judge()
        self.leave_by = now + FAREWELL_S
        self._tell_all(self.over)

    def _judge(self) -> Message:
        first = self.court.find_first()
        over: Message = {"is": "over", "status": self.court.status(), "first": None, "record": None}
        if first is None:
            return over
        member = self._roster.members.get(first.node)
        host = "" if member is None else member.host
        told = First(first, host, time.monotonic_ns() - first.at_ns, time.time_ns())
        return {**over, "first": render(told), "record": self._find_record(first)}

    def _find_record(self, first: Event) -> Message | None:
        """Return what its node has said of a failure, read and written again: it is to fit into a frame."""
        told = transfer.parse(self.court.records.get(first.node)) if first.kind == RANK else None
        return None if told is None else transfer.render(told)


def read_failure(member: Member, message: Message) -> tuple[Event, Message]:
    """Return what a node says has ended the job, and what all nodes are told besides.

    Raises:
        Garbled: It does not say that.
    """
    kind = text(message, "kind")
    if kind not in (RANK, *CAUSES):
        raise Garbled("a failure of an unknown kind")
    what = words(message, "what", WORDS_LENGTH)
    names = ("rank", "local_rank", "pid", "code")
    facts = {name: number(message, name) for name in names} if kind == RANK else None
    called = printable(text(message, "called")[:CALLED_LENGTH])[:CALLED_LENGTH]
    event = Event(
        node=member.rank,
        kind=kind,
        at_ns=number(message, "at_ns"),
        status=number(message, "status") & 0xFF or 1,
        asked=message.get("asked") is True,
        what=f"{what} on {member.name}",
        cause=explain(kind, what),
        facts=None if called else facts,
        called=called,
    )
    return event, {"left_ms": number(message, "left_ms")} if kind == PREEMPTED else {}


def explain(kind: str, what: str) -> Cause | None:
    """Return the cause that a kind of event is by itself."""
    cause = CAUSES.get(kind)
    return None if cause is None else replace(cause, what=what)
