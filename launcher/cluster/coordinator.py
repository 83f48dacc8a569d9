"""Control channel of node 0: admits nodes, takes their messages, and does what the controller decides.

Every client has passed the handshake (`launcher.channel.acceptor`), but its messages are not trusted.
`launcher.job.controller` decides whether the job starts, what stops it, and how it ends: messages and the
silence of nodes are its events, and its commands become messages.
"""

from __future__ import annotations

import time

from launcher.channel.acceptor import Acceptor
from launcher.channel.connection import CLOSED
from launcher.channel.keys import at_port
from launcher.cluster import messages
from launcher.cluster.admission import Admission
from launcher.cluster.agreed import pack_hosts
from launcher.cluster.attempts import Attempts, describe_error, rescue
from launcher.cluster.evidence import JobEvidence
from launcher.cluster.join import Join
from launcher.cluster.members import Member, Members
from launcher.cluster.outcome import make_over, read_failure
from launcher.cluster.roll import Missing, find_disagreement
from launcher.core.budget import Quota
from launcher.core.errors import LauncherError
from launcher.core.frozen import replace
from launcher.core.model import Restarts
from launcher.core.redact import printable, quote
from launcher.core.wire import pack, unpack
from launcher.failure.arbiter import STALLED, Event
from launcher.failure.reason import STALLED_STATUS
from launcher.job import between, commands, controller, events
from launcher.job.feed import Feed
from launcher.job.settings import SAY_EVERY_S
from launcher.job.silence import Silence
from launcher.job.state import Job, Phase

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from typing import Any

    from launcher.channel.connection import Connection
    from launcher.cluster.offset import Offset
    from launcher.cluster.roll import FindReasons
    from launcher.cluster.settings import Shape
    from launcher.core.log import Say
    from launcher.failure.model import Cause
    from launcher.job.state import State
    from launcher.process.loop import Loop
    from launcher.recovery.policy import Decision
    from launcher.recovery.recovery import Recovery

Message = dict[str, object]

TICK_S = 0.5
HOSTS_MAX = 8
"""Maximum number of spare nodes to name in a status."""
WAITING_LENGTH = 800


class Coordinator:
    """The control channel on node 0.

    Attributes:
        members: The launchers that were let in.
        evidence: What the ranks of all nodes do, if the job hangs or has failed.
        acceptor: Connections that have not identified their node yet.
        port: Where it listens.
        subscribers: Handlers of messages that are not the channel's own, by type: (number of the node,
            message) -> None; see `Members.number_of`. Preemption notices go to all nodes.
        may_leave: Whether all nodes know how the job ended, or have had the time to hear it.
        offset: No offset: times are those of our own clock.
        is_lost: No: node 0 does not lose itself.
        kinds: Types of the messages of nodes that are not the channel's own, besides those of a job whose
            nodes decide with us.
    """

    offset: Offset | None = None
    is_lost = False
    kinds: tuple[type, ...] = ()

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        shape: Shape,
        join: Join,
        loop: Loop,
        say: Say,
        deliver: Callable[[object], None],
        agree: Callable[[int], Message],
        find_reasons: FindReasons,
        recovery: Callable[[], Recovery],
        restarts: Restarts | None = None,
        run: str = "",
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
            agree: Returns the values of an attempt that must be the same on all nodes; may raise `OSError` or
                `LauncherError`.
            find_reasons: Probes the hosts of missing nodes, and later passes on what it found for each rank.
            recovery: Returns the record of attempts.
            restarts: What the user allows after a failure; None for no restarts.
            run: Name of this run.
        """
        now = time.monotonic()
        self.subscribers: dict[type, Callable[[int, Any], None]] = {
            messages.MachineNotice: lambda rank, notice: self.broadcast(messages.NodeNotice(rank, notice))
        }
        self.port: int = listener.getsockname()[1]
        self.acceptor = acceptor = Acceptor(
            listener,
            at_port(key, self.port),
            loop,
            lambda what, event: say(f"control channel: {what}", event),
            self._admit,
            shape.node_count + shape.spare_count,
        )
        self._quota = quota = Quota(say, shape.node_count + shape.spare_count)
        self._shape, self._loop, self._deliver, self._agree = shape, loop, deliver, agree
        own = Member(0, {**vars(join), "clock_ahead_s": 0.0}, shape.address)
        self._missing = Missing(shape, find_reasons, self.list_turned_away, lambda: acceptor.has_heard)
        job = Job(
            shape.node_count,
            shape.spare_count,
            shape.grace_s,
            shape.lost_after_s,
            shape.timeout_s,
            shape.member,
            shape.keep_going,
            restarts or Restarts(),
            run,
            shape.serves,
        )
        self._run = run
        state = controller.begin(job, own.session, now, own.host, own.described)
        self.members = members = Members(shape, own, state)
        self._attempts = Attempts(shape, recovery, quota)
        self._admission = Admission(
            members, self.feed, acceptor.turned_away, self._attempts.say, self.find_rank
        )
        self.may_leave = False
        self._feed = Feed(self._take, lambda event, error: rescue(self.state, event, error))
        self._silence = Silence(shape.given_up_s) if shape.serves else Silence()
        self._sent: dict[type, tuple[object, object]] = {}
        """The latest command of each type that went to all nodes, and its message."""
        self._first: messages.First | None = None
        """What came first in the last attempt that has failed."""
        self._tick_at: float | None = now + TICK_S
        self._say_at = now + SAY_EVERY_S
        self._begin_evidence(0)

    def _begin_evidence(self, attempt: int) -> None:
        self.evidence = JobEvidence(
            self._shape,
            attempt,
            self.members.list_open,
            self.members.name,
            self.members.place,
            self._tell_all,
            self._hang,
        )

    def _admit(self, connection: Connection, address: str, message: Message) -> None:
        self._admission.take(connection, address, message)

    def find_rank(self, address: str) -> int | None:
        """Return the rank of the node with an address, for a launcher that does not know it."""
        return None

    def list_turned_away(self) -> Mapping[str, str]:
        """Return why connections were turned away, by address."""
        return self.acceptor.turned_away.reasons()

    def finish(self, over: messages.Over | messages.Refuse) -> messages.Over | messages.Refuse:
        """Return how the job ends, as all nodes are told."""
        return over

    def on_let_in(self, index: int, connection: Connection) -> None:
        """Note that a launcher was let in, or back in, with this connection."""

    def on_closed(self, index: int, why: str) -> None:
        """Note that the connection of a node has ended."""

    # --- the controller

    @property
    def state(self) -> State:
        """The job, as the controller knows it."""
        return self.members.state

    def feed(self, event: events.JobEvent) -> None:
        """Let the controller handle an event, and do what it decides."""
        self._feed(event)

    def _take(self, event: events.JobEvent) -> None:
        self.members.state, found = controller.step(self.state, event, time.monotonic())
        for command in found:
            ACTS[type(command)](self, command)

    def _start(self, command: commands.Start) -> None:
        """Start an attempt on all nodes, or end the job if it has no port."""
        attempts, number = self._attempts, command.attempt
        attempts.release()
        try:
            agreed = {**self._agree(number), **self._describe_nodes(command.order)}
        except (OSError, LauncherError) as error:
            why = f"node 0 finds no port for attempt {number}: {printable(str(error))}"
            self.feed(events.Unable(0, why))
            return
        except Exception as error:
            self.feed(events.Unable(0, describe_error(error)))
            raise
        self._begin_evidence(number)
        self._send_all(command, messages.Start(agreed, number))
        attempts.note_start()

    def _describe_nodes(self, order: tuple[int, ...]) -> Message:
        """Return the part of the start signal about nodes: which took the place of others, all addresses."""
        seats = {str(index): rank for index, rank in self.state.seats.items()}
        found: Message = {"seats": seats} if seats else {}
        if self._shape.tells_hosts:
            found |= pack_hosts(self.members.find_addresses(order))
        return found

    def _stop(self, command: commands.Stop) -> None:
        stop = messages.Stop(command.why, command.by, command.number, command.left_ms, command.attempt)
        self._send_all(command, stop)

    def _spread(self, command: commands.News) -> None:
        self._tell_all(messages.News(command.why, command.by))

    def _go_on(self, command: commands.Again) -> None:
        """Say that another attempt follows; its lines wait for the report of the one that has failed."""
        self._loop.guard(self.evidence.share)
        over = make_over(command.over)
        assert isinstance(over, messages.Over)  # noqa: S101 - of an attempt
        self._first = over.first
        self._note(over, command.over, command.decision)
        self._attempts.hold()
        self._say_at = time.monotonic() + SAY_EVERY_S
        self._send_all(command, messages.Again(command.attempt, over, command.decision.describe(), self._run))

    def _end(self, command: commands.Over) -> None:
        """Say how the job ends."""
        was_between, decision = commands.Again in self._sent, command.decision
        self._attempts.release()
        if decision is not None and was_between:
            why = decision.why
            self._loop.guard(lambda: self._attempts.give_up(why))
        elif self.state.attempt is not None:
            self._loop.guard(self.evidence.share)
            if decision is not None:
                self._note(make_over(command), command, decision)
        known = self._first if was_between else None
        over = make_over(command, "" if decision is None else decision.describe(), known)
        self._send_all(command, self.finish(over))

    def _note(self, over: object, ended: commands.Over, decision: Decision) -> None:
        """Remember an attempt that has failed; a fault in that costs the record, and not the job."""
        attempt = self.state.attempt
        if attempt is None or not isinstance(over, messages.Over):
            return
        hosts = [member.host for member in self.members.by_index.values()]
        machine = "" if ended.first is None else self.members.machine(ended.first.node)
        self._loop.guard(
            lambda: self._attempts.note(over, decision, attempt.number, attempt.progressed, hosts, machine)
        )

    def _send_all(self, command: object, message: object) -> None:
        """Send all nodes a command, and keep it for those that join later."""
        if isinstance(command, commands.Start):
            self._sent.clear()
        self._sent[type(command)] = command, message
        self._tell_all(message)

    def _send_one(self, command: commands.To) -> None:
        """Send one launcher a command; one that was not let in, or leaves alone, is hung up on after it."""
        what, member = command.what, self.members.find(command.session)
        known, message = self._sent.get(type(what), (None, None))
        if known is None or (what != known and not isinstance(what, commands.Start)):
            if not isinstance(what, commands.Over):
                return  # an attempt that could not start: no node was told of it
            message = make_over(what)
        if member is None:
            call = self._admission.take_call(command.session)
            if call is not None:
                self.members.send_off(call.connection, message)
        elif isinstance(what, commands.Over) and what.leaves:
            connection, member.connection = member.connection, None
            self._silence.forget(member.index)
            if connection is not None:
                self.members.send_off(connection, message)
            self.members.drop(member.index)
        elif member.connection is not None:
            member.connection.send(pack(message))

    def _let_in(self, command: commands.Admit) -> None:
        """Use the connection of a launcher from now on."""
        call = self._admission.take_call(command.session)
        assert call is not None  # noqa: S101 - it has just joined
        connection, index, now = call.connection, command.node, time.monotonic()
        member = self.members.find(command.session)
        if member is not None:
            member.reconnect(connection, call.caller.address)
        else:
            member = call.caller
            member.connection = connection
            self.members.put(member)
            self._admission.note_admitted(index)
        self._silence.forget(index)
        self._silence.hear(index, now)
        known = member
        connection.redirect(
            lambda message: self._on_message(known, message),
            lambda why: self._on_closed(known, connection, why),
        )
        connection.send(pack(messages.Welcome(call.join.mono_ns, call.heard_ns, time.monotonic_ns())))
        for encoded in member.unheard:
            connection.send_encoded(encoded)
        self.on_let_in(index, connection)
        if not connection.is_open:  # it has left already, and will call again
            member.connection = None
            self.feed(events.Lost(index, now, why="broken"))

    def _send_away(self, command: commands.Busy) -> None:
        self._admission.send_away(command.session)

    def _hang_up(self, command: commands.HangUp) -> None:
        member = self.members.find(command.session)
        if member is not None:
            self._silence.forget(member.index)
            self.members.drop(member.index)

    def _probe(self, command: commands.Probe) -> None:
        def tell(described: str) -> None:
            lines = find_disagreement(self.members.list_facts(), self._shape.member)[1]
            self.feed(events.Probed(described, tuple(lines)))

        self._missing.look(self.members.missing, lambda: self.state.left, tell)

    def _print(self, command: commands.Print) -> None:
        self._attempts.say(command.text, command.event)

    def _blame(self, command: commands.Blame) -> None:
        member = self.members.by_index.get(command.node)
        if member is not None:
            machine = str(member.facts["machine"] or "")
            self._attempts.note_hosts(one.host for one in self.members.by_index.values())
            self._attempts.blame(command.cause, command.what, command.rank, member.host, machine)

    def _leave(self, command: commands.Close) -> None:
        self.may_leave = True

    # --- messages from nodes

    def hear_own(self, message: object) -> None:
        """Handle a message of node 0 itself."""
        self._hear(0, message)

    def _on_message(self, member: Member, packed: Message) -> None:
        """Handle a message of another node.

        Raises:
            Garbled: It is not a valid message.
        """
        member.unheard.clear()
        if self._silence.hear(member.index, time.monotonic()):
            self.feed(events.Heard(member.index))
        if packed.get("is") == "beat" and isinstance(packed.get("sent"), float):
            if member.connection is not None:
                member.connection.send({"is": "beat", "sent": packed["sent"]})
            return
        message = unpack(packed, (*messages.FROM_NODE, *self.kinds))
        if self.members.by_index.get(member.index) is not member:
            return  # its place was given to another
        if isinstance(message, self.kinds) or self.members.may_send(member.index, type(message)):
            self._hear(member.index, message)
        else:
            name = self.members.name(member.index)
            self.acceptor.turned_away.note(member.address, f"sends too many messages: as {name}")

    def _hear(self, index: int, message: object) -> None:
        is_spare, attempt = self.members.number_of(index) < 0, self.state.attempt
        number = 0 if attempt is None else attempt.number
        match message:
            case events.Left():
                self.feed(events.Left(index))
                self._hang_up_on(index)
            case events.Failed():
                self.feed(read_failure(index, self.members.place(index), message))
            case events.Ready():
                self.feed(replace(message, node=index))
                if not index:
                    self._attempts.release()  # node 0 has reported the attempt
            case events.Received() | events.Exited():
                self.feed(replace(message, node=index))
            case messages.Quiet() | messages.Looked() if is_spare or message.attempt != number:
                pass  # it has no part in the attempt
            case messages.Quiet():
                self.evidence.note_quiet(index, message)
            case messages.Looked():
                self.evidence.take(index, message)
            case _:
                subscriber = self.subscribers.get(type(message))
                if subscriber is not None and not (is_spare and not isinstance(message, messages.Ask)):
                    self._loop.guard(lambda: subscriber(self.members.number_of(index), message))

    def _hang_up_on(self, index: int) -> None:
        """Close the connection of a launcher that leaves."""
        member = self.members.by_index.get(index)
        if member is not None and member.connection is not None:
            member.hang_up()
            self._silence.forget(index)
            self.feed(events.Lost(index, time.monotonic(), has_exited=True, why=CLOSED))
            self.on_closed(index, CLOSED)

    def _on_closed(self, member: Member, connection: Connection, why: str) -> None:
        if member.connection is not connection:
            return
        index, now, node = member.index, time.monotonic(), self.state.nodes[member.index]
        member.connection = None
        heard = self._silence.heard(index, now)
        self._silence.forget(index)
        has_exited = why == CLOSED and node is not None and not node.has_left
        self.feed(events.Lost(index, heard, has_exited, why))
        self.on_closed(index, why)

    def _fall_silent(self, index: int, heard: float) -> None:
        """Note that a node was not heard. Streams are given up with their connection, and so is the node."""
        member = self.members.by_index.get(index)
        connection = None if member is None else member.connection
        if not self._shape.serves:
            self.feed(events.Silent(index, heard))
        elif member is not None and connection is not None:
            connection.close()
            self._on_closed(member, connection, f"it sent nothing for {self._shape.given_up_s:g} s")

    # --- messages to nodes

    def _tell_all(self, message: object) -> None:
        self.members.send_all(message)
        self._deliver(message)

    def broadcast(self, message: object) -> None:
        """Send every node, node 0 included, a message that is not the channel's own.

        Raises:
            ValueError: It is longer than a frame may be.
        """
        self._tell_all(message)

    def tell(self, number: int, message: object) -> bool:
        """Send one node, which may be node 0, a message that is not the channel's own.

        Returns:
            False if the node is not connected.

        Raises:
            ValueError: It is longer than a frame may be.
        """
        if number == 0:
            self._deliver(message)
            return True
        member = self.members.find_by_number(number)
        return member is not None and self.members.send(member.index, message)

    def count_nodes(self) -> dict[str, object]:
        """Return the numbers of all, present, lost and spare nodes, and the hosts of the spare ones."""
        return self.members.count()

    def _hang(self, index: int, what: str, cause: Cause) -> None:
        """End the attempt, because the job hangs."""
        attempt = self.state.attempt
        if attempt is not None:
            event = Event(index, STALLED, time.monotonic_ns(), STALLED_STATUS, what=what, cause=cause)
            self.feed(events.Failed(index, event, attempt.number))

    # --- time

    @property
    def starts_at(self) -> float | None:
        """When the next attempt starts at the earliest, monotonic seconds; None if none is to follow."""
        return None if self.state.pause is None else self.state.pause.starts_at

    @property
    def due(self) -> float | None:
        """When to call `fire`."""
        if self._tick_at is None:
            return None
        times = (self._tick_at, self.state.due, self.evidence.due, self.acceptor.due)
        return min(due for due in times if due is not None)

    def fire(self, now: float) -> None:
        """Do the periodic work: notice silent nodes, send heartbeats, let time pass for the controller."""
        self.acceptor.look(now)
        self._admission.note_claims(now)
        if self._tick_at is not None and now >= self._tick_at:
            for index, heard in list(self._silence.look(now, TICK_S)):
                self._fall_silent(index, heard)
            self._tick_at = now + TICK_S
        if self.state.due is not None and now >= self.state.due:
            self.feed(events.Tick())
        if self._attempts.holds and now >= self._attempts.report_by:
            self._attempts.release()
        if now >= self._say_at:
            self._say_at = now + SAY_EVERY_S
            self._say_waiting(now)
        self.evidence.fire(now, is_ending=self.state.phase is not Phase.RUNNING)

    def _say_waiting(self, now: float) -> None:
        """Print what the job waits for."""
        if self.state.phase is Phase.GATHERING and self.state.missing:
            self._missing.look(self.members.missing, lambda: self.state.left, self._say_missing)
        elif self.state.phase is Phase.BETWEEN:
            waiting = between.describe_wait(self.state, now)
            if waiting:
                self._attempts.release()
                self._attempts.say(waiting, "waiting")

    def _say_missing(self, described: str) -> None:
        if self.state.phase is Phase.GATHERING:
            count = f"{self._shape.node_count} {self._shape.member}s"
            what = f"waiting for {self.state.missing} of {count}: {described}"
            self._attempts.say(what, "waiting")
            self._tell_all(messages.Waiting(quote(what, WAITING_LENGTH)))

    def close(self) -> None:
        """Close all connections."""
        self._admission.note_claims(float("inf"))
        self.acceptor.close()
        self.members.close()
        self._attempts.release()
        self._quota.say_dropped()
        self._tick_at = None


ACTS: Mapping[type, Callable[[Coordinator, Any], None]] = {
    commands.Start: Coordinator._start,
    commands.Stop: Coordinator._stop,
    commands.News: Coordinator._spread,
    commands.Again: Coordinator._go_on,
    commands.Over: Coordinator._end,
    commands.To: Coordinator._send_one,
    commands.Admit: Coordinator._let_in,
    commands.Busy: Coordinator._send_away,
    commands.HangUp: Coordinator._hang_up,
    commands.Probe: Coordinator._probe,
    commands.Print: Coordinator._print,
    commands.Blame: Coordinator._blame,
    commands.Wait: lambda coordinator, command: None,
    commands.Close: Coordinator._leave,
}
"""What node 0 does for each command of the controller."""
