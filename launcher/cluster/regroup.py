"""Node 0 between two attempts: decides on a restart, waits for all nodes, and starts the next attempt.

A node is ready once it says that nothing of the last attempt is left on it. A lost node may come back as a
new launcher with the same rank. Until it has, or `rejoin_timeout_s` has passed, the others wait.

No two attempts run at once. A node that fell silent may still run its processes: it has heard node 0 until
we hung up at the latest. After `Shape.lease_s` its launcher has stopped them, or its watchdog has killed
them. The next attempt does not start before. A connection that the other side has closed shows that the
launcher has ended, and its watchdog kills the processes at once.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter

from launcher.channel.connection import CLOSED
from launcher.cluster.messages import Again, First, Over, Start
from launcher.cluster.outcome import make_cut_off, read_verdict, suspect_own
from launcher.cluster.settings import SAY_EVERY_S
from launcher.core.budget import LINES_MAX, LINES_OF_NODE, Latest, Quota
from launcher.core.errors import EXIT_NOT_READY, LauncherError
from launcher.core.frozen import replace
from launcher.core.redact import printable, redact
from launcher.failure.arbiter import CUT_OFF, LOST, PREEMPTED, Event
from launcher.failure.model import Cause
from launcher.job.attempt import VETOES
from launcher.job.settings import KILLED_S, LEASE_SLACK_S, LOST_FIX, SPARES_S
from launcher.recovery.policy import describe_attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from launcher.cluster.membership import Member, Membership
    from launcher.cluster.messages import ReadyAgain
    from launcher.cluster.outcome import Ending
    from launcher.cluster.settings import Shape
    from launcher.core.log import Say
    from launcher.core.model import Restarts
    from launcher.recovery.recovery import Recovery

REPORT_S = 2.0
"""Within this time node 0 has reported a failed attempt, although it may not be ready yet."""
NAMED_MAX = 20


class Regroup:
    """The roll call between two attempts.

    Attributes:
        again: The attempt that is about to start; None while one runs.
        attempt: Number of the attempt that runs, or ran last.
        is_told: Whether any node was told to end, after which no attempt follows.
        gone: Launchers that were lost, by session; none of them may go on with an old attempt.
        parts: Launchers that have taken part in an attempt, by session.
    """

    def __init__(
        self,
        rule: Restarts,
        recovery: Recovery,
        shape: Shape,
        membership: Membership,
        say: Say,
        agree: Callable[[], Mapping[str, object]],
        begin: Callable[[Start], None],
    ) -> None:
        """Wait for the first failure.

        Args:
            rule: What the user allows.
            recovery: Decides about restarts.
            shape: The job.
            membership: Its nodes.
            say: Prints one line.
            agree: Returns the values of the next attempt that must be the same on all nodes; may raise
                `OSError` or `LauncherError`.
            begin: Starts the next attempt on all nodes.
        """
        self.again: Again | None = None
        self.attempt, self.is_told = 0, False
        everyone = shape.node_count + shape.spare_count
        self.gone, self.parts = Latest(4 * everyone), Latest(4 * everyone)
        self._rule, self._recovery, self._shape, self._membership = rule, recovery, shape, membership
        self._quota = self._say = Quota(say, everyone)
        self._agree, self._begin = agree, begin
        self._ready: set[int] = set()
        self._held = Latest(4 * everyone)
        """Launchers, by session, whose nodes hold processes of the last attempt that survive SIGKILL."""
        self._unhealthy: dict[int, float] = {}
        """Ranks of unhealthy nodes, and until when a spare node is awaited for each."""
        self._nodes: dict[int, Member] = {}
        """The node that had, or has, each rank last."""
        self._until: dict[int, float] = {}
        """Until when each rank that was lost, or has come back, is waited for."""
        self._left: set[int] = set()
        self._ending: Ending | None = None
        self._started_mono_ns = time.monotonic_ns()
        self._not_before = self._say_at = self._report_by = 0.0
        self._unsaid: list[tuple[str, str]] | None = None
        """Lines for the log after the report of the attempt that has failed; None if it is there."""

    # --- the decision

    def note_start(self) -> None:
        """Note that the processes of an attempt start now."""
        self._started_mono_ns = time.monotonic_ns()

    @property
    def _started_ns(self) -> int:
        """Start time of the attempt in nanoseconds since 1970, by the clock as it is set now."""
        return time.time_ns() - (time.monotonic_ns() - self._started_mono_ns)

    def conclude(self, over: Over, ending: Ending) -> Over | Again:
        """Return how the job ends after an attempt, or the attempt that follows."""
        try:
            return self._conclude(over, ending)
        except Exception as error:
            self.again = None
            return replace(over, why=f"no restart: {_describe(error)}")

    def _conclude(self, over: Over, ending: Ending) -> Over | Again:
        if over.first is None and not over.status:
            return over
        verdict = read_verdict(over, None, self._shape, self._started_ns, self.attempt)
        failed = describe_attempt(
            verdict, self.attempt, over.status, self._started_ns, time.time_ns(), ending.has_progressed,
            self._find_machine,
        )  # fmt: skip
        if over.first is not None:  # the verdict has the time by the clock of its node
            ended_ns = over.first.wall_ns - over.first.ago_ns
            failed = replace(failed, ended_ns=max(ended_ns, failed.started_ns))
        self._note_hosts()
        decision = self._recovery.decide(failed, self._find_veto(over, ending))
        why = self._recovery.describe()
        if not decision.restarts:
            return replace(over, why=why)
        self.again = again = Again(self.attempt + 1, over, why, self._recovery.history.run)
        self._open(ending, decision.wait_s)
        return again

    def _note_hosts(self) -> None:
        """Note which host names do not tell nodes apart."""
        hosts = Counter(member.host for member in self._membership.everyone())
        for host in (host for host, number in hosts.items() if number > 1):
            self._recovery.history.shared_hosts.add(host)

    def _find_machine(self, rank: int | None) -> str:
        member = None if rank is None else self._membership.members.get(rank)
        return "" if member is None else str(member.facts["machine"] or "")

    def _find_veto(self, over: Over, ending: Ending) -> str:
        if self.is_told:
            return "the job was told to end"
        if any(event.kind == PREEMPTED for event in ending.arbiter.events):
            return VETOES[PREEMPTED]  # also if something else has failed before
        if over.first is not None and self._has_lost_all(ending):
            return VETOES[CUT_OFF]  # it was paused: they have given it up and do not come back
        return "" if over.first is None else VETOES.get(over.first.event.kind, "")

    def _has_lost_all(self, ending: Ending) -> bool:
        """Whether all other nodes have given node 0 up, or are lost."""
        left = ending.gave_up
        others = [rank for rank in self._membership.members if rank]
        return bool(left) and all(rank in left or ending.arbiter.is_lost(rank) for rank in others)

    # --- the log

    def _notice(self, text: str, event: str) -> None:
        """Print a line; the report of the attempt that has failed comes first."""
        if self._unsaid is None:
            self._say(text, event)
        elif len(self._unsaid) < LINES_MAX + LINES_OF_NODE * self._shape.node_count:
            self._unsaid.append((text, event))
        else:
            self._quota.drop()

    def _tell_unsaid(self) -> None:
        """Print what has waited for the report."""
        for text, event in self._unsaid or ():
            self._say(text, event)
        self._unsaid = None

    # --- the nodes

    def _open(self, ending: Ending, wait_s: float) -> None:
        """Begin to wait for the nodes; lost ones are no members any more."""
        now = time.monotonic()
        self._ending, self._ready, self._unsaid = ending, set(), []
        self._not_before, self._say_at = now + wait_s, now + SAY_EVERY_S
        self._report_by = now + REPORT_S
        self._until, self._left = {}, set()
        left = ending.gave_up
        for rank, member in list(self._membership.members.items()):
            self._nodes[rank] = member
            self._await(rank)
            self.parts.add(member.facts["session"])
            if rank and (ending.arbiter.is_lost(rank) or rank in left):
                if rank in ending.arbiter.ended:
                    member.has_heard_end = True  # it has reported that nothing of it runs
                self._drop(member, now, has_given_up=rank in left)
        self.fill()

    def _drop(self, member: Member, now: float, *, has_given_up: bool = False) -> None:
        """Forget a node that is lost, and wait until its processes have ended."""
        if member.has_heard_end:
            clear_at = now
        elif member.closed is not None and member.why == CLOSED and not has_given_up:
            clear_at = now + KILLED_S + LEASE_SLACK_S
        else:
            clear_at = (member.closed or now) + self._shape.lease_s + KILLED_S
        if member.facts["session"] in self.parts:
            self._not_before = max(self._not_before, clear_at)
        member.hang_up()
        self.gone.add(member.facts["session"])
        self._ready.discard(member.rank)
        self._unhealthy.pop(member.rank, None)
        self._membership.members.pop(member.rank, None)

    def _await(self, rank: int) -> None:
        """Give a node its time from now on, because it has to end, to come back, or to get ready."""
        until = max(time.monotonic(), self._not_before) + self._shape.grace_s + self._rule.rejoin_timeout_s
        self._until[rank] = max(self._until.get(rank, 0.0), until)

    def fill(self) -> None:
        """Give the ranks of lost and unhealthy nodes to spare nodes."""
        self.replace_unhealthy(time.monotonic())
        if self.again is None:
            return
        for rank in self._membership.missing():
            if not self._seat(rank):
                return

    def _seat(self, rank: int, why: str = "") -> bool:
        """Give a rank to a spare node, and say why; return whether there was one."""
        member = self._membership.seat_spare(rank, needs_health=bool(self._rule.health_argv))
        if member is None:
            return False
        self._nodes[rank] = member
        self._ready.add(rank)
        if why:
            self._notice(why, "unhealthy")
        index = next((index for index, taken in self._membership.seats.items() if taken == rank), rank)
        kind = member.kind
        self._notice(f"spare {kind} {index} ({member.host}) takes the place of {kind} {rank}", "spare-taken")
        return True

    def lose(self, member: Member, how: str) -> None:
        """Note that a node was lost between two attempts."""
        other = suspect_own(member, self._shape)
        self._notice(f"{member.name} is lost before attempt {self.attempt + 1}: {how}{other}", "node-lost")
        self._note(member, "node-lost", how)
        self._await(member.rank)
        self._drop(member, time.monotonic())
        self.fill()

    def note_left(self, rank: int) -> None:
        """Note that a node has given node 0 up between two attempts; end the job if all others have."""
        self._left.add(rank)
        others = [member for rank, member in self._membership.members.items() if rank]
        if all(member.rank in self._left for member in others):
            self.lose_all(others, max(member.heard for member in others))

    def lose_all(self, members: Sequence[Member], since: float) -> None:
        """End the job, because node 0 has lost all others at once: they have ended, as inside an attempt."""
        own = self._membership.members[0]
        event = make_cut_off(own, len(members), self._shape, since)
        first = First(event, own.host, time.monotonic_ns() - event.at_ns, time.time_ns())
        self._finish(Over(EXIT_NOT_READY, first), VETOES[CUT_OFF])
        for member in members:
            self._drop(member, time.monotonic())

    def may_join(self, rank: int, session: object) -> bool:
        """Whether a launcher may join as a node: as one that is missing."""
        member = self._membership.members.get(rank)
        if self.again is None or not 0 < rank < self._shape.node_count:
            return False
        return member is None or (member.connection is None and member.facts["session"] != session)

    def join(self, member: Member) -> None:
        """Take a node that has joined; a new launcher has nothing left of the last attempt."""
        replaced = self._membership.members.get(member.rank)
        if replaced is not None and replaced is not member:
            self._drop(replaced, time.monotonic())  # its processes may still end
        self._membership.members[member.rank] = member
        before, session = self._nodes.get(member.rank), member.facts["session"]
        if before is None or session != before.facts["session"] or session in self.gone:
            self._notice(f"{member.name} is back", "node-back")
        self.gone.discard(session)
        self._left.discard(member.rank)
        self._nodes[member.rank] = member
        self._await(member.rank)
        if session not in self.parts and not self._rule.health_argv:
            self._ready.add(member.rank)

    def note_ready(self, member: Member, ready: ReadyAgain) -> None:
        """Take the message that a node is ready, or what its health command found."""
        with self._ends_on_error():
            self._note_ready(member, ready)

    def _note_ready(self, member: Member, ready: ReadyAgain) -> None:
        if ready.is_held:
            self._held.add(member.facts["session"])
        member.health, now = ready.unhealthy, time.monotonic()
        if self.again is not None and not self._membership.is_spare(member):
            has_part = member.facts["session"] in self.parts
            if ready.attempt == (self.again.attempt if has_part else 0):
                self._ready.add(member.rank)
                if not member.rank:
                    self._tell_unsaid()  # node 0 has reported the attempt
        if not ready.unhealthy:
            self.replace_unhealthy(now)  # it may be a spare node
            return
        self._note(member, "unhealthy", ready.unhealthy)
        if self._membership.is_spare(member):
            del self._membership.spares[member.rank]
            self._notice(f"{member.name}, a spare {member.kind}, is unhealthy: {member.health}", "unhealthy")
            self._dismiss(member, "")
        else:
            self._unhealthy[member.rank] = now + SPARES_S
            self.replace_unhealthy(now)

    def _note(self, member: Member, cause: str, what: str) -> None:
        """Remember what is wrong with a node, for the last screen."""
        self._note_hosts()
        machine = str(member.facts["machine"] or "")
        self._recovery.note_node(cause, what, member.rank, member.host, machine)

    def is_examined(self, rank: int) -> bool:
        """Whether a node may start: its health command has answered, and no spare node is awaited for it."""
        if not self._rule.health_argv:
            return True
        return self._membership.members[rank].health is not None and rank not in self._unhealthy

    def replace_unhealthy(self, now: float) -> None:
        """Put spare nodes in the place of unhealthy ones; one without a spare node takes part.

        If it holds processes of the last attempt, the job ends instead.
        """
        membership = self._membership
        for rank, until in list(self._unhealthy.items()):
            member = membership.members.get(rank)
            if member is None or not member.health:
                pass  # it has gone, or another launcher has its place
            elif rank and self._seat(rank, f"{member.name} is unhealthy: {member.health}"):
                self._dismiss(member, f"; a spare {member.kind} has taken its place")
            elif not rank or now >= until or membership.has_all_spares:
                found = f"{member.name} is unhealthy: {member.health}"
                if member.facts["session"] in self._held:
                    self.end(f"{found}; no spare {member.kind} can take its place")
                else:
                    self._notice(
                        f"{found}; no spare {member.kind} can take its place, so it takes part", "unhealthy"
                    )
            else:
                continue
            del self._unhealthy[rank]

    def _dismiss(self, member: Member, then: str) -> None:
        """End the launcher of an unhealthy node; ``then``: what has followed."""
        self.gone.add(member.facts["session"])
        if member.connection is not None:
            what = f"this {member.kind} leaves the job: it is unhealthy ({member.health}){then}"
            over = Over(EXIT_NOT_READY, why=f"{what}; status {EXIT_NOT_READY}", leaves=True)
            self._membership.part(member.connection, over)
            member.connection = None

    # --- time

    @property
    def due(self) -> float | None:
        """Time of the next decision, monotonic seconds; None while an attempt runs."""
        if self._unhealthy:
            return min(self._unhealthy.values())
        if self.again is None:
            return None
        if self._has_all():
            return self._not_before
        return min((self._say_at, *(max(until, self._not_before) for until in self._awaited().values())))

    @property
    def starts_at(self) -> float | None:
        """When the next attempt starts at the earliest, monotonic seconds; None while one runs."""
        return None if self.again is None else self._not_before

    def _has_all(self) -> bool:
        """Whether all nodes can start; nodes are asked one by one only when all have said so."""
        return len(self._ready) == self._shape.node_count and not self._absent()

    def _absent(self) -> list[int]:
        """Return the ranks of the nodes that cannot start yet."""
        silent = self._membership.why_silent
        return [rank for rank in range(self._shape.node_count) if rank not in self._ready or silent(rank)]

    def _awaited(self) -> dict[int, float]:
        """Return until when each node is waited for that cannot start yet; not for one that is cut off."""
        members, silent = self._membership.members, self._membership.why_silent
        return {rank: self._until[rank] for rank in self._absent() if rank not in members or not silent(rank)}

    def fire(self, now: float) -> None:
        """Start the next attempt, or end the job if nodes are missing for too long."""
        with self._ends_on_error():
            self._fire(now)

    @contextlib.contextmanager
    def _ends_on_error(self) -> Iterator[None]:
        """End the job if a fault of ours leaves no other attempt: the nodes would wait for it for ever."""
        try:
            yield
        except Exception as error:
            self.end(_describe(error))
            raise

    def _fire(self, now: float) -> None:
        if now >= self._report_by:
            self._tell_unsaid()
        self.replace_unhealthy(now)
        if self.again is None or self._unhealthy:
            return
        if self._has_all():
            if now >= self._not_before:
                self._start()
            return
        awaited = self._awaited()
        late = [rank for rank, until in awaited.items() if now >= max(until, self._not_before)]
        if late:
            self._end_without(late)
        elif now >= self._say_at:
            self._say_at = now + SAY_EVERY_S
            until = max(min(awaited.values(), default=now), self._not_before)
            left = f"at most {until - now:.0f} s more (--rejoin-timeout)"
            self._tell_unsaid()
            self._say(
                f"attempt {self.again.attempt} waits for {self._name(self._absent())}, {left}", "waiting"
            )

    def _name(self, ranks: list[int]) -> str:
        kind = self._shape.member
        names = ", ".join(map(str, ranks[:NAMED_MAX])) + (" and more" if len(ranks) > NAMED_MAX else "")
        return f"{kind}{'s' if len(ranks) > 1 else ''} {names}"

    def _start(self) -> None:
        """Start the next attempt, or end the job if it has no port."""
        assert self.again is not None  # noqa: S101 - see `fire`
        self._tell_unsaid()
        try:
            agreed = {**self._agree(), **self._membership.describe_nodes()}
        except (OSError, LauncherError) as error:
            self.end(f"node 0 finds no port for attempt {self.again.attempt}: {printable(str(error))}")
            return
        awaited = self.again, self._ending
        self.attempt, self.again, self._ending = self.again.attempt, None, None
        try:
            self._begin(Start(agreed, self.attempt))
        except Exception:
            self.again, self._ending = awaited
            raise
        self.note_start()

    def close(self) -> None:
        """Print how many lines were dropped."""
        self._quota.say_dropped()

    # --- no other attempt

    def end(self, why: str) -> None:
        """End the job as the last attempt has ended; ``why``: the reason why no other follows."""
        if self.again is not None:
            self._finish(self.again.over, why)

    def _end_without(self, absent: list[int]) -> None:
        """End the job because nodes did not come back."""
        assert self.again is not None  # noqa: S101 - see `fire`
        over, rank = self.again.over, absent[0]
        timeout = f"{self._rule.rejoin_timeout_s:g} s"
        what = f"{self._name(absent)} did not come back within {timeout} (--rejoin-timeout)"
        if over.first is None or over.first.event.kind != LOST:
            cause = Cause("node-lost", what, LOST_FIX, retryable=True)
            event = Event(rank, LOST, time.monotonic_ns(), EXIT_NOT_READY, what=what, cause=cause)
            over = Over(EXIT_NOT_READY, First(event, self._nodes[rank].host, 0, time.time_ns()))
        self._finish(over, what)

    def _finish(self, over: Over, why: str) -> None:
        assert self._ending is not None  # noqa: S101 - see `_open`
        ending, self.again, self._ending = self._ending, None, None
        try:
            self._tell_unsaid()
            self._recovery.give_up(why)
        finally:
            ending.finish(replace(over, why=f"no restart: {why}"))


def _describe(error: Exception) -> str:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"internal launcher error on node 0 between two attempts: {printable(redact(what))}"
