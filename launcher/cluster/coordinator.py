"""Control channel of node 0: admits nodes, takes their messages, and does what the controller decides.

Every client has passed the handshake (`launcher.channel.acceptor`), but its messages are not trusted.
`launcher.job.controller` decides whether the job starts, what stops it, and how it ends: messages and the
silence of nodes are its events, and its commands become messages.
"""

from __future__ import annotations

import time

from launcher.channel.acceptor import Acceptor
from launcher.channel.connection import CLOSED
from launcher.channel.frames import at_port
from launcher.cluster import messages
from launcher.cluster.admission import Admission
from launcher.cluster.agreed import pack_hosts
from launcher.cluster.attempts import Attempts, describe_error, rescue
from launcher.cluster.join import Join
from launcher.cluster.members import Member, Members
from launcher.cluster.outcome import make_over, read_failure
from launcher.cluster.roll import Missing, find_disagreement
from launcher.core.budget import Quota
from launcher.core.errors import LauncherError
from launcher.core.frozen import frozen, replace
from launcher.core.redact import printable, quote
from launcher.core.supervision import Restarts
from launcher.core.wire import pack, unpack
from launcher.hang.job import JobEvidence
from launcher.hang.model import Looked, Quiet
from launcher.job import between, commands, controller, events
from launcher.job.settings import SAY_EVERY_S
from launcher.job.silence import Silence
from launcher.job.state import Phase
from launcher.job.state_machine import StateMachine

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from typing import Any

    from launcher.channel.connection import Connection
    from launcher.cluster.clocks import Offset
    from launcher.cluster.roll import FindReasons
    from launcher.cluster.settings import Shape
    from launcher.core.log import Say
    from launcher.job.state import State
    from launcher.process.loop import Loop
    from launcher.recovery.history import History

Message = dict[str, object]

TICK_S = 0.5
WAITING_LENGTH = 800


@frozen
class Service:
    """What is different in a job whose other nodes serve node 0, which starts their ranks.

    Attributes:
        kinds: Types of the messages of nodes that are not the channel's own.
        find_rank: Returns the rank of the node with an address, for a launcher that does not know it.
        name_host: Returns the name of the host with an address.
        amend: Returns an event with what only the service knows.
        finish: Returns how the job ends, as all nodes are told.
        on_let_in: Called when a launcher was let in, or back in, with its index and connection.
        on_closed: Called when the connection of a node has ended, with its index and why.
    """

    kinds: tuple[type, ...] = ()
    find_rank: Callable[[str], int | None] = lambda address: None
    name_host: Callable[[str], str] = lambda address: address
    amend: Callable[[events.JobEvent], events.JobEvent] = lambda event: event
    finish: Callable[[messages.Over | messages.Refuse], messages.Over | messages.Refuse] = lambda over: over
    on_let_in: Callable[[int, Connection], None] = lambda index, connection: None
    on_closed: Callable[[int, str], None] = lambda index, why: None


NO_SERVICE = Service()


class Coordinator:
    """The control channel on node 0.

    Attributes:
        members: The launchers that were let in.
        evidence: What the ranks of all nodes do, if the job hangs or has failed.
        acceptor: Connections that have not identified their node yet.
        port: Where it listens.
        say: Prints lines that others cause, within a limit.
        subscribers: Handlers of messages that are not the channel's own, by type: (number of the node,
            message) -> None; see `Members.number_of`. Preemption notices go to all nodes.
        may_leave: Whether all nodes know how the job ended, or have had the time to hear it.
        offset: No offset: times are those of our own clock.
        delay_s: No delay: there is no network between.
    """

    offset: Offset | None = None
    delay_s: float | None = None

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        shape: Shape,
        join: Join,
        loop: Loop,
        say: Say,
        deliver: Callable[[object], None],
        agree: Callable[[int], Mapping[str, Any]],
        find_reasons: FindReasons,
        history: Callable[[], History],
        restarts: Restarts | None = None,
        run: str = "",
        service: Service = NO_SERVICE,
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
            history: Returns the record of attempts.
            restarts: What the user allows after a failure; None for no restarts.
            run: Name of this run.
            service: What is different if the other nodes serve us.
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
        self.say = Quota(say, shape.node_count + shape.spare_count)
        self._shape, self._loop, self._deliver, self._agree = shape, loop, deliver, agree
        self._service = service
        own = Member(0, {**vars(join), "clock_ahead_s": 0.0}, shape.address)
        job = shape.make_job(restarts or Restarts(), shape.timeout_s, run)
        self._run = run
        begun = controller.begin(job, own.session, now, own.host, own.described)
        self._job = StateMachine(
            controller.step, begun, self._do, lambda event, error: rescue(self.state, event, error)
        )
        self.members = members = Members(shape, own, self._job)
        self._attempts = Attempts(members, history, self.say)
        self._missing = Missing(members, find_reasons, acceptor, service.name_host)
        self._admission = Admission(
            members, self.feed, acceptor.turned_away, self._attempts.say, service.find_rank
        )
        self.may_leave = False
        self._silence = Silence(shape.given_up_s) if shape.serves else Silence()
        self._sent: dict[type, tuple[object, object]] = {}
        """The latest command of each type that went to all nodes, and its message."""
        self._first: messages.First | None = None
        """What came first in the last attempt that has failed."""
        self._tick_at: float | None = now + TICK_S
        self._say_at = now + SAY_EVERY_S
        self.evidence = JobEvidence(
            members.list_open, members.name, members.place, shape.world_size, self.broadcast, self.feed
        )

    def _admit(self, connection: Connection, address: str, message: Message) -> None:
        if self._shape.serves:  # its streams end with its connection, and so it is lost
            self._cut(self.members.find(str(message.get("session"))), "it has joined again")
        self._admission.take(connection, address, message)

    # --- the controller

    @property
    def state(self) -> State:
        """The job, as the controller knows it."""
        return self.members.state

    def feed(self, event: events.JobEvent) -> None:
        """Let the controller handle an event, and do what it decides."""
        self._job.feed(self._service.amend(event))

    def _do(self, command: commands.JobCommand) -> None:
        match command:
            case commands.StartAttempt():
                self._start(command)
            case commands.Stop():
                self._send_all(command, command)
            case commands.News():
                self.broadcast(command)
            case commands.EndAttempt():
                self._go_on(command)
            case commands.EndJob():
                self._end(command)
            case commands.To():
                self._send_one(command)
            case commands.Admit():
                self._let_in(command)
            case commands.TurnAway():
                self._admission.send_away(command.session)
            case commands.HangUp():
                self._drop(self.members.find(command.session))
            case commands.Probe():
                self._missing.look(self._on_probed)
            case commands.Print():
                self._attempts.say(command.text, command.event)
            case commands.Blame():
                self._attempts.blame(command)
            case commands.Close():
                self.may_leave = True

    def _start(self, command: commands.StartAttempt) -> None:
        """Start an attempt on all nodes, or end the job if it has no port."""
        attempts, number = self._attempts, command.attempt
        attempts.release()
        try:
            agreed = self._agree(number)
            seats = {str(index): rank for index, rank in self.state.seats.items()}
            addresses = self.members.find_addresses(command.order) if self._shape.tells_hosts else None
            hosts = None if addresses is None else pack_hosts(addresses)
            start = messages.Start(number, **{**agreed, "seats": seats, "hosts": hosts})
        except (OSError, LauncherError) as error:
            why = f"node 0 finds no port for attempt {number}: {printable(str(error))}"
            self.feed(events.Unable(0, why))
            return
        except Exception as error:
            self.feed(events.Unable(0, describe_error(error)))
            raise
        self.evidence.begin(number)
        self._send_all(command, start)
        attempts.note_start()

    def _go_on(self, command: commands.EndAttempt) -> None:
        """Say that another attempt follows; its lines wait for the report of the one that has failed."""
        self._loop.guard(self.evidence.share)
        over = make_over(command.over)
        assert isinstance(over, messages.Over)  # noqa: S101 - of an attempt
        self._first = over.first
        self._loop.guard(lambda: self._attempts.note(over, command.decision, command.over.first))
        self._attempts.hold()
        self._say_at = time.monotonic() + SAY_EVERY_S
        self._send_all(command, messages.Again(command.attempt, over, command.decision.describe(), self._run))

    def _end(self, command: commands.EndJob) -> None:
        """Say how the job ends."""
        was_between, decision = commands.EndAttempt in self._sent, command.decision
        self._attempts.release()
        known = self._first if was_between else None
        over = make_over(command, "" if decision is None else decision.describe(), known)
        if decision is not None and was_between:
            why = decision.why
            self._loop.guard(lambda: self._attempts.give_up(why))
        elif self.state.attempt is not None:
            self._loop.guard(self.evidence.share)
            if decision is not None and isinstance(over, messages.Over):
                failed, follows = over, decision
                self._loop.guard(lambda: self._attempts.note(failed, follows, command.first))
        self._send_all(command, self._service.finish(over))

    def _send_all(self, command: object, message: object) -> None:
        """Send all nodes a command, and keep it for those that join later."""
        if isinstance(command, commands.StartAttempt):
            self._sent.clear()
        self._sent[type(command)] = command, message
        self.broadcast(message)

    def _send_one(self, command: commands.To) -> None:
        """Send one launcher a command; one that was not let in, or leaves alone, is hung up on after it."""
        what, member = command.what, self.members.find(command.session)
        known, message = self._sent.get(type(what), (None, None))
        if known is None or (what != known and not isinstance(what, commands.StartAttempt)):
            if not isinstance(what, commands.EndJob):
                return  # an attempt that could not start: no node was told of it
            message = make_over(what)
        if member is None:
            caller = self._admission.take_call(command.session)
            if caller is not None and caller.connection is not None:
                self.members.send_off(caller.connection, message)
        elif isinstance(what, commands.EndJob) and what.leaves:
            connection, member.connection = member.connection, None
            if connection is not None:
                self.members.send_off(connection, message)
            self._drop(member)
        elif member.connection is not None:
            member.connection.send(pack(message))

    def _let_in(self, command: commands.Admit) -> None:
        """Use the connection of a launcher from now on."""
        caller = self._admission.take_call(command.session)
        assert caller is not None and caller.connection is not None  # noqa: S101 - it has just joined
        connection, index, now = caller.connection, command.node, time.monotonic()
        member = self.members.find(command.session)
        if member is not None:
            member.reconnect(connection, caller.address)
        else:
            member = caller
            self.members.put(member)
            self._admission.note_admitted(index)
        self._silence.forget(index)
        self._silence.hear(index, now)
        known = member
        connection.redirect(
            lambda message: self._on_message(known, message),
            lambda why: self._on_closed(known, connection, why),
        )
        connection.send(pack(messages.Welcome(*caller.joined_ns, time.monotonic_ns())))
        for encoded in member.unheard:
            connection.send_encoded(encoded)
        self._service.on_let_in(index, connection)
        if not connection.is_open:  # it has left already, and will call again
            member.connection = None
            self.feed(events.Disconnected(index, now, why="broken"))

    def _drop(self, member: Member | None) -> None:
        """Forget a launcher, and hang up on it."""
        if member is not None:
            self._silence.forget(member.index)
            self.members.drop(member.index)

    def _on_probed(self, described: str) -> None:
        """Let the controller know what the missing nodes are, and in what the others differ."""
        lines = find_disagreement(self.members.list_facts(), self._shape.member)[1]
        self.feed(events.Probed(described, tuple(lines)))

    # --- messages from nodes

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
        message = unpack(packed, (*messages.FROM_NODE, *self._service.kinds))
        if self.members.by_index.get(member.index) is not member:
            return  # its place was given to another
        if isinstance(message, self._service.kinds) or self.members.may_send(member.index, type(message)):
            self.hear(member.index, message)
        else:
            name = self.members.name(member.index)
            self.acceptor.turned_away.note(member.address, f"sends too many messages: as {name}")

    def send(self, message: object) -> None:
        """Handle a message of node 0 itself."""
        self.hear(0, message)

    def report_killed(self) -> None:
        """Do nothing: the other nodes notice that their connections have ended."""

    def hear(self, index: int, message: object) -> None:
        """Handle a message of a node, which may be node 0 itself."""
        is_spare, number = self.members.number_of(index) < 0, self.state.attempt_number
        match message:
            case events.Left():
                self.feed(events.Left(index))
                self._cut(self.members.by_index.get(index), CLOSED, has_exited=True)
            case events.Failed():
                self.feed(read_failure(index, self.members.place(index), message))
            case events.Ready():
                self.feed(replace(message, node=index))
                if not index:
                    self._attempts.release()  # node 0 has reported the attempt
            case events.Received() | events.Exited():
                self.feed(replace(message, node=index))
            case Quiet() | Looked() if is_spare or message.attempt != number:
                pass  # it has no part in the attempt
            case Quiet():
                self.evidence.note_quiet(index, message)
            case Looked():
                self.evidence.take(index, message)
            case _:
                subscriber = self.subscribers.get(type(message))
                if subscriber is not None and not (is_spare and not isinstance(message, messages.Ask)):
                    self._loop.guard(lambda: subscriber(self.members.number_of(index), message))

    def _on_closed(self, member: Member, connection: Connection, why: str) -> None:
        if member.connection is connection:
            node = self.state.nodes[member.index]
            self._lose(member, why, has_exited=why == CLOSED and node is not None and not node.has_left)

    def _lose(self, member: Member, why: str, *, has_exited: bool = False) -> None:
        """Note that the connection of a node has ended."""
        index, member.connection = member.index, None
        heard = self._silence.heard(index, time.monotonic())
        self._silence.forget(index)
        self.feed(events.Disconnected(index, heard, has_exited, why))
        self._service.on_closed(index, why)

    def _cut(self, member: Member | None, why: str, *, has_exited: bool = False) -> None:
        """End the connection of a node, if it has one."""
        if member is not None and member.connection is not None:
            member.connection.close()
            self._lose(member, why, has_exited=has_exited)

    # --- messages to nodes

    def broadcast(self, message: object) -> None:
        """Send every node a message, node 0 included.

        Raises:
            ValueError: It is longer than a frame may be.
        """
        self.members.send_all(message)
        self._deliver(message)

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
        times = (self._tick_at, self._job.due, self.evidence.due, self.acceptor.due)
        return min(due for due in times if due is not None)

    def fire(self, now: float) -> None:
        """Do the periodic work: notice silent nodes, send heartbeats, let time pass for the controller."""
        self.acceptor.look(now)
        self._admission.note_claims(now)
        if self._tick_at is not None and now >= self._tick_at:
            for index, heard in list(self._silence.look(now, TICK_S)):
                if self._shape.serves:
                    why = f"it sent nothing for {self._shape.given_up_s:g} s"
                    self._cut(self.members.by_index.get(index), why)
                else:
                    self.feed(events.Silent(index, heard))
            self._tick_at = now + TICK_S
        self._job.fire(now)
        if self._attempts.holds and now >= self._attempts.report_by:
            self._attempts.release()
        if now >= self._say_at:
            self._say_at = now + SAY_EVERY_S
            self._say_waiting(now)
        self.evidence.fire(now, is_ending=self.state.phase is not Phase.RUNNING)

    def _say_waiting(self, now: float) -> None:
        """Print what the job waits for."""
        if self.state.phase is Phase.GATHERING and self.state.missing:
            self._missing.look(self._say_missing)
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
            self.broadcast(messages.Waiting(quote(what, WAITING_LENGTH)))

    def close(self) -> None:
        """Close all connections."""
        self._admission.note_claims(float("inf"))
        self.acceptor.close()
        self.members.close()
        self._attempts.release()
        self.say.say_dropped()
        self._tick_at = None
