"""Control channel of node 0: admits nodes, takes their messages, and notices those that are silent.

Every client has passed the handshake (`launcher.channel.acceptor`), but its messages are not trusted.
`launcher.cluster.rendezvous` decides whether the job starts, `launcher.cluster.outcome` how it ends.
"""

from __future__ import annotations

import time

from launcher.channel.acceptor import Acceptor
from launcher.cluster.evidence import JobEvidence
from launcher.cluster.join import Join, compare_clocks, read_identity
from launcher.cluster.membership import Member, Membership
from launcher.cluster.messages import (
    FROM_NODE,
    Beat,
    Busy,
    Bye,
    Ended,
    Failed,
    Looked,
    MachineNotice,
    Over,
    Quiet,
    ReadyAgain,
    Reply,
    Start,
    Told,
    Welcome,
)
from launcher.cluster.outcome import Ending, read_failure
from launcher.cluster.rendezvous import Rendezvous, Seen
from launcher.cluster.settings import Shape
from launcher.core.budget import Quota
from launcher.core.errors import EXIT_NOT_READY
from launcher.core.messages import pack, parse, unpack
from launcher.failure.arbiter import GAVE_UP, PREEMPTED
from launcher.job.settings import BEAT_S, QUIET_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    from launcher.channel.connection import Connection
    from launcher.cluster.messages import Again
    from launcher.cluster.offset import Offset
    from launcher.cluster.regroup import Regroup
    from launcher.cluster.rendezvous import FindReasons
    from launcher.core.log import Say
    from launcher.process.loop import Loop

    MakeRegroup = Callable[[Membership, Callable[["Start"], None]], Regroup]

Message = dict[str, object]

TICK_S = 0.5
HOSTS_MAX = 8
"""Maximum number of spare nodes to name in a status."""
SUCCESSOR_S = 5.0
"""Seconds after the loss of a node in which a launcher that has called in its place calls again."""
LATE_S = 1.0
"""If `fire` is later than this many seconds, the machine was paused or the launcher had no CPU."""


class Coordinator:
    """The control channel on node 0.

    Attributes:
        membership: The nodes that have joined.
        roll: The roll call, which decides whether the job starts.
        ending: What has failed, and how the job ends.
        evidence: What the ranks of all nodes do, if the job hangs or has failed.
        regroup: The roll call between two attempts; None if there are no restarts.
        acceptor: Connections that have not identified their node yet.
        port: Where it listens.
        subscribers: Handlers of messages that are not the channel's own, by type: (number of the node,
            message) -> None; see `Membership.number_of`.
        offset: No offset: times are those of our own clock.
        is_lost: No: node 0 does not lose itself.
    """

    offset: Offset | None = None
    is_lost = False

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        shape: Shape,
        join: Join,
        loop: Loop,
        say: Say,
        deliver: Callable[[object], None],
        agree: Callable[[], Message],
        find_reasons: FindReasons,
        make_regroup: MakeRegroup | None = None,
    ) -> None:
        """Start to listen.

        Args:
            listener: A listening socket.
            key: Key of the job.
            shape: The job.
            join: Facts of node 0 itself.
            loop: The loop that waits for the sockets.
            say: Prints a message in this node's log.
            deliver: Takes the messages for this node itself.
            agree: Returns the values that all nodes are told at the start.
            find_reasons: Probes the hosts of missing nodes, and later passes on what it found for each rank.
            make_regroup: Makes the roll call between two attempts; None if there are no restarts.
        """
        now = time.monotonic()
        self.subscribers: dict[type, Callable[[int, Any], None]] = {}
        self.acceptor = acceptor = Acceptor(
            listener, key, loop, lambda what, event: say(f"control channel: {what}", event), self._admit
        )
        self._quota = say = Quota(say, shape.node_count + shape.spare_count)
        self._shape, self._loop, self._say, self._deliver = shape, loop, say, deliver
        own = {**vars(join), "clock_ahead_s": 0.0}
        self.membership = Membership(
            shape.node_count,
            Member(shape.member, own, shape.address, None, now),
            shape.spare_count,
            tells_hosts=shape.tells_hosts,
        )
        reasons = acceptor.turned_away.reasons

        def agree_on_nodes() -> Message:
            return {**agree(), **self.membership.describe_nodes()}

        seen = Seen(agree_on_nodes, find_reasons, reasons, lambda: acceptor.has_heard)
        self.roll = Rendezvous(shape, self.membership, seen, say, self._tell_all)
        self.regroup = None if make_regroup is None else make_regroup(self.membership, self._begin)
        if self.regroup is not None:
            self.roll.is_examined = self.regroup.is_examined
        self._begin_attempt(0)
        self._claims: dict[int, tuple[float, str, str]] = {}
        """Launchers that have called as a node of ours, by rank: when to report it, the address, and why."""
        self.port: int = listener.getsockname()[1]
        self._tick_at: float | None = now + TICK_S
        self._beat_at = now + BEAT_S

    @property
    def members(self) -> dict[int, Member]:
        """The nodes that have joined, by rank."""
        return self.membership.members

    @property
    def has_started(self) -> bool:
        """Whether the roll call has succeeded and the job runs."""
        return self.roll.start is not None

    @property
    def starts_at(self) -> float | None:
        """When the next attempt starts at the earliest, monotonic seconds; None if none is to follow."""
        return None if self.regroup is None else self.regroup.starts_at

    # --- attempts

    def _begin_attempt(self, attempt: int) -> None:
        shape, membership, tell_all = self._shape, self.membership, self._tell_all
        self.ending = ending = Ending(
            shape, membership, tell_all, lambda: self.has_started, self._conclude, attempt
        )
        self.evidence = JobEvidence(shape, membership, tell_all, ending)

    def _conclude(self, over: Over) -> Over | Again:
        """Return how the job ends, or the attempt that follows."""
        self._loop.guard(self.evidence.share)
        return over if self.regroup is None else self.regroup.conclude(over, self.ending)

    def _begin(self, start: Start) -> None:
        """Start the next attempt on all nodes."""
        self.roll.start = start
        self._begin_attempt(start.attempt)
        self._tell_all(start)

    @property
    def _is_between(self) -> bool:
        """Whether an attempt has ended, and the next one has not started."""
        return self.regroup is not None and self.regroup.again is not None

    # --- joining

    def _admit(self, connection: Connection, address: str, message: Message) -> None:
        """Admit or reject a client that has the key, by its first message.

        Raises:
            Garbled: The message is not a valid `Join`.
        """
        now, heard_ns = time.monotonic(), time.monotonic_ns()
        identity = read_identity(message)
        rank = self.membership.rank_of(identity.rank)
        if rank is None:
            self._admit_spare(connection, address, message, heard_ns)
            return
        if identity.begun and not self.has_started and rank:
            self._dismiss(connection, f"{self._shape.member} 0 was started again, and begins a new job")
            return
        known = self.members.get(rank)
        is_back = known is not None and known.facts["session"] == identity.session
        if rank == 0 and is_back:
            connection.send(pack(Busy("this launcher itself")))  # through a service in front of us
            connection.close()
            return
        may_join = self._may_join(rank, identity.session)
        if self._is_gone(identity.session) and not may_join:
            self._dismiss(connection)
            return
        if self.roll.refusal is not None and not self.membership.has_room(rank):
            self.membership.part(connection, self.roll.refusal)
            return
        if self.has_started and not is_back and not may_join:
            self._lose_replaced(known, message)
            self._send_away(connection, address, rank)
            return
        join = parse(Join, message)
        if known is not None and is_back:
            member = known
            member.reconnect(connection, address, now)
        else:
            member = self._make_member(join, rank, address, connection)
            refusal = self.roll.compare_with(member) if may_join else None
            if refusal is not None:
                self.membership.part(connection, refusal)
                return
            if may_join:
                self.roll.warn_of(member)
        connection.redirect(
            lambda message: self._on_message(member, message),
            lambda why: self._on_closed(member, connection, why),
        )
        connection.send(pack(Welcome(join.mono_ns, heard_ns, time.monotonic_ns())))
        if not connection.is_open:
            return  # it has left already, and will call again
        if may_join and self.regroup is not None:
            self.regroup.join(member)
            self._claims.pop(rank, None)
        elif may_join and known is not None:
            known.hang_up()
            self.members[rank] = member
            self.ending.arbiter.forget(rank)
            self._say(f"{member.name} is back", "node-back")
        elif known is not None and known is not member:
            self.roll.refuse_doubles(known, member)
        else:
            self.members[rank] = member
            self.roll.note(member)
        self._catch_up(member, connection)
        self.roll.check()

    def _may_join(self, rank: int, session: object) -> bool:
        """Whether a launcher may join as a node that is missing after the start."""
        if self.regroup is not None:
            return self.regroup.may_join(rank, session)
        known = self.members.get(rank)
        if not (self._shape.keep_going and self.has_started and rank) or known is None:
            return False
        return known.facts["session"] != session and (known.connection is None or self._is_lost(rank))

    def _admit_spare(self, connection: Connection, address: str, message: Message, heard_ns: int) -> None:
        """Admit a node that waits to take the place of a lost one.

        Raises:
            Garbled: The message is not a valid `Join`.
        """
        join = parse(Join, message)
        spares, index = self.membership.spares, join.rank
        known = spares.get(index)
        is_back = known is not None and known.facts["session"] == join.session
        if join.begun and not self.has_started:
            self._dismiss(connection, f"{self._shape.member} 0 was started again, and begins a new job")
            return
        if self._is_gone(join.session):
            self._dismiss(connection)
            return
        if known is not None and not is_back and known.connection is not None:
            self._send_away(connection, address, index)
            return
        if known is not None and is_back:
            member = known
            member.reconnect(connection, address, time.monotonic())
        else:
            member = self._make_member(join, index, address, connection)
            refusal = self.roll.compare_with(member)
            if refusal is not None:
                self.membership.part(connection, refusal)
                return
            self._say(f"{member.name} is here as a spare {member.kind}", "spare-joined")
        spares[index] = member
        connection.redirect(
            lambda message: self._on_message(member, message),
            lambda why: self._on_closed(member, connection, why),
        )
        connection.send(pack(Welcome(join.mono_ns, heard_ns, time.monotonic_ns())))
        self._catch_up(member, connection)
        if self.regroup is not None:
            self.regroup.fill()

    def _make_member(self, join: Join, rank: int, address: str, connection: Connection) -> Member:
        facts = {**vars(join), "rank": rank, "clock_ahead_s": compare_clocks(join, time.time_ns())}
        return Member(self._shape.member, facts, address, connection, time.monotonic())

    def _is_gone(self, session: object) -> bool:
        """Whether a launcher was lost, so that it knows only an old attempt."""
        return self.regroup is not None and session in self.regroup.gone

    def _dismiss(
        self, connection: Connection, why: str = "it was lost, and the job goes on without it"
    ) -> None:
        """End a launcher that was lost and whose place is taken: it must not go on with an old attempt."""
        what = f"this {self._shape.member} leaves the job: {why}; status {EXIT_NOT_READY}"
        self.membership.part(connection, Over(EXIT_NOT_READY, why=what, leaves=True))

    def _lose_replaced(self, known: Member | None, message: Message) -> None:
        """Give up a node at once whose connection has ended, if a new launcher that fits has its place.

        Raises:
            Garbled: The message is not a valid `Join`.
        """
        if self.regroup is None or self._is_between or known is None or known.closed is None:
            return
        if known.rank in self.ending.arbiter.ended:
            return
        facts = {**vars(parse(Join, message)), "clock_ahead_s": None}
        new = Member(self._shape.member, facts, known.address, None, known.closed)
        new.facts["rank"] = known.rank
        if self.roll.compare_with(new) is None:
            self.ending.lose(known, known.closed, is_replaced=True)

    def _send_away(self, connection: Connection, address: str, rank: int) -> None:
        """Reject a client that is not one of our nodes: a restarted launcher, or one of another job."""
        kind, known = self._shape.member, self.members.get(rank)
        if known is not None:
            why, with_whom = f"claims to be a {kind} that has already joined", known.name
        else:
            why, with_whom = "connected after the job had begun", f"{kind}s 0 to {self._shape.node_count - 1}"
        if self.regroup is None or known is None:
            self.acceptor.turned_away.note(address, f"{why}: as {kind} {rank}")
        else:
            until = time.monotonic() + self._shape.given_up_s + SUCCESSOR_S
            self._claims.setdefault(rank, (until, address, why))
        connection.send(pack(Busy(f"a job that runs already, with {with_whom}")))
        connection.close()

    def _note_claims(self, now: float) -> None:
        """Report launchers that called as a node of ours, and were not its successors."""
        for rank, (until, address, why) in list(self._claims.items()):
            if now >= until:
                del self._claims[rank]
                self.acceptor.turned_away.note(address, f"{why}: as {self._shape.member} {rank}")

    def _catch_up(self, member: Member, connection: Connection) -> None:
        """Send a node that has joined, or reconnected, what it has missed."""
        ending, regroup = self.ending, self.regroup
        missed = (self.roll.refusal, self.roll.start, ending.stop, ending.again, ending.over)
        if self._is_between and regroup is not None and member.facts["session"] not in regroup.parts:
            missed = (None, None, None, ending.again, ending.over)  # it starts with the next attempt
        for message in missed:
            if message is not None:
                connection.send(pack(message))
        for encoded in member.unheard:
            connection.send_encoded(encoded)

    # --- messages from nodes

    def hear_own(self, message: object) -> None:
        """Handle a message of node 0 itself."""
        self._hear(self.members[0], message)

    def _on_message(self, member: Member, packed: Message) -> None:
        """Handle a message of another node.

        Raises:
            Garbled: It is not a valid message.
        """
        member.heard = time.monotonic()
        member.unheard.clear()
        if packed.get("is") != "beat":
            message = unpack(packed, FROM_NODE)
            if self.membership.may_send(member, type(message)):
                self._hear(member, message)
            else:
                self.acceptor.turned_away.note(member.address, f"sends too many messages: as {member.name}")

    def _hear(self, member: Member, message: object) -> None:
        rank, is_spare = member.rank, self.membership.is_spare(member)
        match message:
            case Bye():
                self._on_bye(member, is_spare=is_spare)
            case _ if not self.membership.is_known(member):
                pass  # its place was given to another
            case Failed() | Ended() | Told() | Quiet() | Looked() | MachineNotice() | Reply() if is_spare:
                pass  # it has no part in the job yet
            case Failed() if message.kind == PREEMPTED and self._is_between:
                self._end_restarts(f"{member.name} is taken back: {message.what}")
            case Failed() if message.kind == GAVE_UP and self.regroup is not None and self._is_between:
                self.regroup.note_left(rank)
            case Failed() | Ended() | Quiet() | Looked() if message.attempt != self.ending.attempt:
                pass  # of an attempt that is over
            case Failed():
                self.ending.take(read_failure(member, message), message.left_ms)
            case Told() if not self.has_started:
                self.roll.refuse_by_signal(message.name, member)
            case Told():
                what = f"{member.name} received {message.name}"
                self._end_restarts(what)
                self.ending.begin_stop(what, rank, told=message.number)
            case Ended():
                self.ending.end(rank, message)
            case ReadyAgain():
                if self.regroup is not None:
                    self.regroup.note_ready(member, message)
                    self.regroup.fire(time.monotonic())
                self.roll.check()
            case Quiet():
                self.evidence.note_quiet(rank, message)
            case Looked():
                self.evidence.take(rank, message)
            case _:
                subscriber = self.subscribers.get(type(message))
                if subscriber is not None:
                    number = self.membership.number_of(member)
                    self._loop.guard(lambda: subscriber(number, message))

    def _on_bye(self, member: Member, *, is_spare: bool) -> None:
        member.has_heard_end = True
        member.hang_up()
        if is_spare and self.ending.over is None:
            del self.membership.spares[member.rank]
            self._say(f"{member.name}, a spare {member.kind}, has left", "spare-left")

    def _end_restarts(self, why: str) -> None:
        """Note that the job was told to end: no attempt follows."""
        if self.regroup is not None:
            self.regroup.is_told = True
            self.regroup.end(why)

    def _on_closed(self, member: Member, connection: Connection, why: str) -> None:
        if member.connection is not connection:
            return
        member.connection = None
        member.closed, member.why = time.monotonic(), why
        if self.roll.is_open and self.members.get(member.rank) is member:
            del self.members[member.rank]  # it will join again, or its successor will
            self.roll.lost[member.rank] = _describe_loss(member)

    # --- messages to nodes

    @property
    def may_leave(self) -> bool:
        """Whether all nodes know how the job ended, or why it did not start, or the time for that is over."""
        until = self.ending.leave_by or self.roll.leave_by
        if until is None or time.monotonic() >= until:
            return until is not None
        if self.roll.refusal is not None and self.membership.missing():
            return False
        spares = self.membership.spares.values()
        return all(
            member.has_heard_end or not rank or self._is_lost(rank) for rank, member in self.members.items()
        ) and all(member.has_heard_end or member.connection is None for member in spares)

    def _is_lost(self, rank: int) -> bool:
        return self.ending.arbiter.is_lost(rank)

    def _tell_all(self, message: object) -> None:
        self.membership.send_all(message)
        self._deliver(message)

    def broadcast(self, message: object) -> None:
        """Send every node, node 0 included, a message that is not the channel's own.

        Raises:
            ValueError: It is longer than a frame may be.
        """
        self._tell_all(message)

    def tell(self, rank: int, message: object) -> bool:
        """Send one node, which may be node 0, a message that is not the channel's own.

        Returns:
            False if the node is not connected.

        Raises:
            ValueError: It is longer than a frame may be.
        """
        if rank == 0:
            self._deliver(message)
            return True
        return self.membership.send(rank, message)

    def is_there(self, rank: int) -> bool:
        """Whether a node can receive messages now."""
        return self.membership.why_silent(rank) == ""

    def is_behind(self, rank: int) -> bool:
        """Whether a node has not yet taken everything that was sent to it."""
        return self.membership.is_behind(rank)

    def why_silent(self, rank: int) -> str:
        """Return why a node cannot be asked now; empty if it can."""
        why = self.membership.why_silent(rank)
        return "it is lost" if why and self._is_lost(rank) else why

    def count_nodes(self) -> dict[str, object]:
        """Return the numbers of all, present, lost and spare nodes, and the hosts of the spare ones."""
        ranks = range(self._shape.node_count)
        return {
            "count": self._shape.node_count,
            "heard": sum(self.is_there(rank) for rank in ranks),
            "lost": sum(self._is_lost(rank) for rank in ranks),
            "spares": len(spares := self.membership.spares),
            "spare_hosts": [one.host for _, one in sorted(spares.items())][:HOSTS_MAX],
        }

    # --- time

    @property
    def due(self) -> float | None:
        """When to call `fire`."""
        if self._tick_at is None:
            return None
        between = None if self.regroup is None else self.regroup.due
        times = (self._tick_at, self.ending.due, self.evidence.due, self.acceptor.due, between)
        return min(due for due in times if due is not None)

    def fire(self, now: float) -> None:
        """Do the periodic work: give up late and silent nodes, send heartbeats."""
        slept_s = now - (self.due or now)
        if slept_s > LATE_S:
            for member in self.membership.everyone():
                member.outwait(slept_s)
        self.acceptor.look(now)
        self._note_claims(now)
        self._find_lost(now)
        if now >= self._beat_at:
            self._beat_at = now + BEAT_S
            self.membership.send_all(Beat())
        self.roll.fire(now)
        self._tick_at = now + TICK_S
        self.evidence.fire(now)
        self.ending.consider()
        if self.regroup is not None:
            self.regroup.fire(now)
            self.roll.check()

    def _find_lost(self, now: float) -> None:
        """Give up nodes that were silent or disconnected for too long; none after a refusal."""
        if self.roll.refusal is not None:
            return

        def is_late(member: Member) -> bool:
            if member.closed and not self._shape.keep_going and member.rank in self.ending.gave_up:
                return True  # it ends
            shape = self._shape
            return now > _since(member) + (shape.lost_after_s if member.closed else shape.given_up_s)

        for index, spare in list(self.membership.spares.items()):
            if is_late(spare):
                self._say(
                    f"{spare.name}, a spare {spare.kind}, is lost: {_describe_loss(spare)}", "spare-lost"
                )
                spare.hang_up()
                del self.membership.spares[index]
        between = self.regroup if self._is_between else None
        others = [
            member
            for rank, member in self.members.items()
            if rank and (between or (rank not in self.ending.arbiter.ended and not self._is_lost(rank)))
        ]
        late = [member for member in others if is_late(member)]
        heard_by = (*others, *self.membership.spares.values())
        is_alone = all(one.closed is None and _since(one) < now - QUIET_S for one in heard_by)
        if self.has_started and late and len(others) > 1 and is_alone:
            if len(late) == len(others):
                since = max(map(_since, others))
                (between or self.ending).lose_all(others, since)
            return  # wait: if one is heard again, or all are late, it is clear whose network it is
        for member in late:
            if between is not None:
                between.lose(member, _describe_loss(member))
                continue
            if self.has_started:
                self.ending.lose(member, _since(member))
                continue
            self._say(f"{member.name} has left again: {_describe_loss(member)}", "node-left")
            member.hang_up()
            del self.members[member.rank]
            self.roll.lost[member.rank] = _describe_loss(member)

    def close(self) -> None:
        """Close all connections."""
        self._note_claims(float("inf"))
        self.acceptor.close()
        self.membership.close()
        self._quota.say_dropped()
        if self.regroup is not None:
            self.regroup.close()
        self._tick_at = None


def _since(member: Member) -> float:
    """Return since when a node could not be heard (monotonic seconds)."""
    return member.heard if member.closed is None else max(member.closed, member.heard)


def _describe_loss(member: Member) -> str:
    return f"its connection has ended ({member.why})" if member.closed else "it stopped responding"
