"""A job under a virtual clock: machines, launchers, their connections and processes, and node 0's controller.

While nothing disturbs a node, its heartbeats are not simulated one by one: the last one that was answered is
known from the time. From the first disturbance on they are.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from launcher.core.errors import EXIT_UNTRUSTED, Problem
from launcher.failure.arbiter import LATENESS_NS, RANK, REFUSED, Event
from launcher.failure.model import Cause
from launcher.job import commands, controller, events, node
from launcher.job.exits import SETTLE_S as CAUSE_S
from launcher.job.settings import BEAT_S, QUIET_S
from launcher.job.silence import Silence
from launcher.job.state import Job
from tests.simulate.network import DOWN, UP, Connection, Link
from tests.simulate.processes import Fate, Processes

LOOK_S, CALL_S, AGAIN_S = 0.5, 0.5, 1.0
KILL_WAIT_S, SURVIVORS_S = 5.0, 10.0
DOG_S = 0.1
"""Seconds in which a watchdog notices that its launcher has died."""
Draw = Callable[[int, int], Fate]


class Launcher:
    """A launcher on a machine.

    Attributes:
        is_calm: Whether its heartbeats are answered as a matter of course.
        inbox: What it will do when it goes on.
        is_disturbed: Whether anything has ever kept it from acting in time.
    """

    def __init__(self, session: str, index: int, machine: int, state: node.NodeState, link: Link) -> None:
        self.session, self.index, self.machine, self.state, self.link = session, index, machine, state, link
        self.is_alive = self.has_dog = True
        self.is_paused = self.is_calm = self.is_disturbed = self.is_beating = False
        self.inbox: list[Callable[[], None]] = []
        self.connection: Connection | None = None
        self.calling: Connection | None = None
        self.calls_at: float | None = None
        self.processes: Processes | None = None
        self.lease_until = 0.0
        self.tick_at: float | None = None
        self.heard = state.began
        self.refusal: commands.Refusal | None = None
        self.exit: tuple[float, int, commands.EndJob | None] | None = None
        self.held: set[int] = set()


class World:
    """A run.

    Attributes:
        story: What has happened, for the report of a failed run.
        history: All processes that were started.
        causes: What has failed of its own accord: when, on which node, in which attempt.
        launchers: All launchers, by session.
        overs: How the job ended, as node 0 has decided.
    """

    def __init__(self, job: Job, rng: random.Random, draw: Draw, delays: Callable[[], Link]) -> None:
        self.job, self.rng, self.draw, self.delays = job, rng, draw, delays
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._number = 0
        self.story: list[str] = []
        self.history: list[Processes] = []
        self.causes: list[tuple[float, int, int]] = []
        self.launchers: dict[str, Launcher] = {}
        self.links: dict[int, Link] = {}
        self.overs: list[commands.EndJob] = []
        self.starts: list[tuple[float, int]] = []
        self.judged: list[tuple[int, commands.EndJob]] = []
        self.wrong: list[str] = []
        self.on_moment: Callable[[], None] = lambda: None
        """Called when node 0 starts or stops something, because faults hurt most right then."""
        self.steps = 0
        self.server = Server(self, self.launch(0, 0))
        for index in range(1, job.node_count + job.spare_count):
            self.at(rng.random() * 2.0, lambda index=index: self.launch(index, index))  # type: ignore[misc]

    # --- time

    def at(self, time: float, act: Callable[[], object]) -> None:
        """Do something at a time."""
        self._number += 1
        heapq.heappush(self._heap, (time, self._number, act))

    def run(self, until: float) -> bool:
        """Run until nothing is left to do, or the time limit; return whether all launchers have ended."""
        heap = self._heap
        while heap:
            time, _, act = heapq.heappop(heap)
            if time > until:
                break
            self.now = time
            self.steps += 1
            act()
        return not self.server.is_alive and not any(one.is_alive for one in self.launchers.values())

    def note(self, what: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{self.now:8.3f} {what}")

    # --- launchers

    def launch(self, index: int, machine: int, problem: str = "") -> Launcher:
        """Start a launcher."""
        session = f"{index}.{len(self.launchers)}"
        link = self.links.setdefault(machine, Link(0.0, 0.0, 0.0) if not machine else self.delays())
        one = Launcher(session, index, machine, node.begin(self.job, index, self.now), link)
        if problem:
            found = Problem("nodes-differ", problem, "roll call", "")
            one.refusal = commands.Refusal(EXIT_UNTRUSTED, found)
        self.launchers[session] = one
        self.note(f"launcher {session} begins on machine {machine}")
        if machine or index:
            self.call(one)
        self.plan_tick(one)
        if self.job.restarts.health_argv:
            self.check(one, 0)
        return one

    def act(self, one: Launcher, act: Callable[[], None]) -> None:
        """Let a launcher do something, when it goes on if it is paused."""
        if one.is_alive:
            if one.is_paused:
                one.inbox.append(act)
            else:
                act()

    def feed(self, one: Launcher, event: object) -> None:
        """Let a launcher handle an event."""
        if not one.is_alive:
            return
        if one.is_calm:
            self.sync(one)
        if isinstance(event, commands.StartAttempt):
            rank = event.order.index(one.index) if one.index in event.order else None
            event = node.Begin(event.attempt, rank)
        one.state, out = node.step(one.state, event, self.now)
        for command in out:
            ACTS[type(command)](self, one, command)
        self.plan_tick(one)

    def plan_tick(self, one: Launcher) -> None:
        """Call the launcher when it is due."""
        due = one.state.due
        if due is not None and one.is_alive and (one.tick_at is None or due < one.tick_at):
            one.tick_at = max(due, self.now)
            self.at(one.tick_at, lambda: self.act(one, lambda: self.tick(one)))

    def tick(self, one: Launcher) -> None:
        """Let time pass for a launcher."""
        one.tick_at = None
        if one.is_alive:
            self.feed(one, events.Tick())

    # --- heartbeats

    def sync(self, one: Launcher) -> None:
        """Note the last heartbeat that was answered while nothing disturbed the node."""
        trip = 2 * (one.link.delay_s + one.link.jitter_s)
        sent = self.now - trip - (self.now - trip - one.state.began) % BEAT_S
        if sent > one.state.answered:
            one.heard = self.now
            one.state, out = node.step(one.state, node.Answered(sent), self.now)
            for command in out:
                ACTS[type(command)](self, one, command)

    def calms(self, one: Launcher) -> bool:
        """Whether nothing disturbs a node."""
        own = self.server.own
        if one is own:
            return not one.is_paused
        return bool(
            one.connection is not None
            and one.connection.is_open == [True, True]
            and one.link.is_fine
            and not (one.is_paused or own.is_paused)
            and self.server.nodes.get(one.connection) is not None
        )

    def disturb(self, one: Launcher) -> None:
        """Simulate the heartbeats of a node one by one from now on."""
        one.is_disturbed = True
        if one.is_calm:
            self.sync(one)
            one.is_calm = False
            if one.connection is not None and one.connection in self.server.nodes:
                trip = one.link.delay_s + one.link.jitter_s
                self.server.silence.hear(
                    self.server.nodes[one.connection], max(0.0, one.state.answered + trip)
                )
            sent = self.now - (self.now - one.state.began) % BEAT_S
            if one.connection is not None and sent > one.state.answered:  # one is on its way
                connection = one.connection
                self.transmit(connection, UP, lambda: self.server.take_beat(connection, sent))
        self.server.watch()
        if not one.is_beating and one.is_alive:
            one.is_beating = True
            self.at(self.now + BEAT_S - (self.now - one.state.began) % BEAT_S, lambda: self.beat(one))

    def beat(self, one: Launcher) -> None:
        """Send a heartbeat, and call again beside a silent connection."""
        if not one.is_alive:
            one.is_beating = False
            return
        if not one.is_paused:
            own = one is self.server.own
            if own:
                self.feed(one, node.Answered(self.now))
            elif one.connection is not None and one.connection.is_open[UP]:
                sent, connection = self.now, one.connection
                self.transmit(connection, UP, lambda: self.server.take_beat(connection, sent))
            if not own and self.now - one.heard > QUIET_S:
                self.call(one)
            if self.calms(one) and self.now - one.heard < QUIET_S:
                self.calm(one)
                return
        self.at(self.now + BEAT_S, lambda: self.beat(one))

    def calm(self, one: Launcher) -> None:
        """Stop to simulate the heartbeats of a node."""
        one.is_calm, one.is_beating = True, False
        if one.connection is not None:
            index = self.server.nodes[one.connection]
            if self.server.silence.hear(index, self.now):
                self.server.feed(events.Heard(index))
            self.server.silence.forget(index)

    # --- connections

    def call(self, one: Launcher) -> None:
        """Call node 0, unless a call is in progress."""
        if one.calls_at is None and one.is_alive and one is not self.server.own:
            one.calls_at = self.now
            self.at(self.now, lambda: self.act(one, lambda: self.try_call(one)))

    def try_call(self, one: Launcher) -> None:
        """Begin a connection, or try again later."""
        server = self.server
        if one.connection is not None and self.now - one.heard <= QUIET_S and one.connection.is_open[UP]:
            one.calls_at = None
        elif one.is_alive and server.is_alive and one.link.is_up and not server.own.is_paused:
            if one.calling is not None and one.calling is not one.connection:
                self.hang_up(one.calling, UP)
            connection = one.calling = Connection(one.session, one.link)
            connection.called = self.now
            begun, attempt = one.state.has_begun, one.state.attempt

            def join() -> None:
                server.calls[one.session] = connection
                server.feed(events.Joined(one.index, one.session, begun, attempt, one.refusal))

            self.transmit(connection, UP, join)
            self.at(self.now + AGAIN_S + 4 * (one.link.delay_s + one.link.jitter_s), lambda: self.retry(one))
        else:
            self.retry(one)

    def retry(self, one: Launcher) -> None:
        """Call again after a while if node 0 has not let the launcher in."""
        one.calls_at = None
        if one.is_alive and not one.is_calm and (one.connection is None or self.now - one.heard > QUIET_S):
            one.calls_at = self.now
            wait_s = CALL_S * (0.75 + 0.5 * self.rng.random())
            self.at(self.now + wait_s, lambda: self.act(one, lambda: self.try_call(one)))

    def transmit(self, connection: Connection, way: int, arrive: Callable[[], None]) -> None:
        """Send a message on a connection; it arrives in order, when the link is up."""
        time = max(connection.sent_until[way], self.now + connection.link.draw_delay_s(self.rng))
        connection.sent_until[way] = time

        def try_arrive() -> None:
            if connection.link.is_cut[way]:
                connection.link.waiting[way].append(try_arrive)
            elif connection.is_open[1 - way]:  # the other side has not closed it
                one = self.launchers[connection.session]
                if way is DOWN:
                    self.act(one, arrive)
                else:
                    self.server.act(arrive)

        self.at(time, try_arrive)

    def connections(self, one: Launcher) -> list[Connection]:
        """Return the connections of a launcher that are, or were, open or begun last."""
        return [each for each in dict.fromkeys((one.connection, one.calling)) if each is not None]

    def admitted(self, one: Launcher, connection: Connection) -> None:
        """Use a connection on which node 0 has let the launcher in."""
        if not one.is_alive:
            return
        before = one.connection
        if before is not None and before is not connection:
            self.hang_up(before, UP)
        one.connection, one.heard = connection, self.now
        self.feed(one, node.Answered(connection.called))
        self.feed(one, node.Connected())
        if self.calms(one) and not one.is_beating:
            self.calm(one)
        elif not one.is_beating:
            self.disturb(one)

    def hang_up(self, connection: Connection, side: int) -> None:
        """Close a side of a connection; the other one notices when it is told."""
        if connection.is_open[side]:
            connection.is_open[side] = False

            def notice() -> None:
                if side is UP:
                    self.server.lose(connection, has_exited=not self.launchers[connection.session].is_alive)
                else:
                    self.drop(self.launchers[connection.session], connection)

            self.transmit(connection, side, notice)

    def drop(self, one: Launcher, connection: Connection) -> None:
        """Note that a launcher has lost its connection."""
        connection.is_open[UP] = False
        if one.connection is connection:
            self.disturb(one)
            one.connection = None
            self.call(one)

    # --- what a node does

    def send(self, one: Launcher, command: node.Send) -> None:
        if one is self.server.own:
            self.server.feed(command.event)
        elif one.connection is not None and one.connection.is_open[UP]:
            connection, event = one.connection, command.event
            self.transmit(connection, UP, lambda: self.server.take(connection, event))

    def start(self, one: Launcher, command: node.Run) -> None:
        for orphan in self.history:
            if orphan.machine == one.machine and orphan.is_orphaned and orphan.ended is None:
                self.kill_processes(orphan, "a new launcher")
        fate = self.draw(one.index, command.attempt)
        self.starts.append((self.now, command.attempt))
        one.held.discard(command.attempt)
        if fate.is_refused:
            self.causes.append((self.now, one.index, command.attempt))
            event = self.make_event(one, REFUSED, 126, "cannot start")
            self.at(self.now, lambda: self.act(one, lambda: self.refuse(one, event)))
            one.processes = None
            return
        made = Processes(one.session, one.machine, command.rank, command.attempt, fate, self.now)
        one.processes = made
        self.history.append(made)
        self.note(f"{one.session} runs rank {command.rank} of attempt {command.attempt}")
        self.at(self.now + fate.runs_s, lambda: self.end_alone(one, made))

    def refuse(self, one: Launcher, event: Event) -> None:
        self.feed(one, node.Broke(event))
        self.feed(one, node.Done(126))

    def make_event(self, one: Launcher, kind: str, status: int, what: str, *, follows: bool = False) -> Event:
        """Return an event with its time by node 0's clock, as exactly as that is known."""
        within = one.link.delay_s + one.link.jitter_s
        at = self.now + within * (2 * self.rng.random() - 1)
        cause = None if follows else Cause("made-up", what, "", retryable=True)
        return Event(one.index, kind, int(at * 1e9), status, int(within * 1e9) + LATENESS_NS,
                     follows=follows, what=what, cause=cause)  # fmt: skip

    def end_alone(self, one: Launcher, made: Processes) -> None:
        """Let processes end by themselves."""
        if made.ended is not None or made.own_end is not None:
            return
        if made.frozen is not None:
            self.at(self.now + 0.5, lambda: self.end_alone(one, made))
            return
        fate, made.own_end = made.fate, self.now
        if not fate.status:
            self.end_processes(made, 0)
            return
        if made.termed is None and not fate.follows and not made.is_orphaned and made.killed is None:
            self.causes.append((self.now, one.index, made.attempt))
        if made.termed is None and made.killed is None:
            self.note(f"{one.session} fails in attempt {made.attempt}{' (follows)' if fate.follows else ''}")
            event = self.make_event(one, RANK, fate.status, f"rank of {one.session}", follows=fate.follows)
            made.status = fate.status
            self.lose_peers(made)
            if self.rng.random() < 0.5:
                self.end_processes(made, fate.status, event)
            else:
                self.act(one, lambda: self.feed(one, node.Broke(event)))
                if self.job.keep_going:  # the agent stops its other processes, without node 0's order
                    self.at(
                        self.now + CAUSE_S,
                        lambda: self.act(one, lambda: self.stop(one, node.EndProcesses(15))),
                    )

    def lose_peers(self, made: Processes) -> None:
        """Let processes of other nodes fail, because they have lost these."""
        for other in self.history:
            is_peer = other is not made and other.attempt == made.attempt and other.ended is None
            if is_peer and self.rng.random() < 0.3:
                after = self.now + 1.8 * self.rng.random()
                self.at(after, lambda other=other: self.follow(other))  # type: ignore[misc]

    def follow(self, made: Processes) -> None:
        if made.ended is None and made.termed is None and made.killed is None and made.own_end is None:
            made.fate = made.fate._replace(status=1, follows=True)
            self.end_alone(self.launchers[made.session], made)

    def end_processes(self, made: Processes, status: int, event: Event | None = None) -> None:
        """Note that all processes of a node have ended, and let its launcher know."""
        if made.ended is not None:
            return
        if made.frozen is not None and made.killed is None:
            self.at(self.now + 0.5, lambda: self.end_processes(made, status, event))
            return
        made.end(self.now, status if made.status is None else made.status)
        one = self.launchers[made.session]
        own = made.attempt

        def done() -> None:
            if event is not None:
                self.feed(one, node.Broke(event))
            if one.processes is made and own not in one.held:
                one.processes = None
                self.feed(one, node.Done(made.status or 0))

        self.act(one, done)

    def stop(self, one: Launcher, command: node.EndProcesses) -> None:
        made = one.processes
        if made is None or made.termed is not None:
            return
        made.termed = self.now
        if made.fate.dies_s < self.job.grace_s:
            status = 0 if self.rng.random() < 0.3 else 143
            self.at(self.now + made.fate.dies_s, lambda: self.end_processes(made, status))
        due = self.now + self.job.grace_s
        self.at(due, lambda: self.act(one, lambda: self.kill_processes(made, "grace")))

    def kill(self, one: Launcher, command: node.Kill) -> None:
        if one.processes is not None:
            self.kill_processes(one.processes, command.why)

    def kill_processes(self, made: Processes, why: str) -> None:
        """Send SIGKILL."""
        if made.ended is not None or made.killed is not None:
            return
        made.killed = self.now, why
        self.note(f"{made.session} attempt {made.attempt} is killed: {why}")
        slow = made.fate.killed_s
        self.at(self.now + slow, lambda: self.end_processes(made, 137))
        if slow > KILL_WAIT_S:
            one = self.launchers[made.session]

            def give_up() -> None:
                if made.ended is None and one.processes is made:
                    one.held.add(made.attempt)
                    self.feed(one, node.Done(137, is_held=True))

            self.at(self.now + KILL_WAIT_S, lambda: self.act(one, give_up))

    def check(self, one: Launcher, attempt: int, until: float | None = None) -> None:
        """Say that nothing is left, or what is."""
        until = self.now + SURVIVORS_S if until is None else until
        made = one.processes
        if made is not None and made.ended is None and self.now < until:
            self.at(self.now + 0.25, lambda: self.act(one, lambda: self.check(one, attempt, until)))
            return
        held = "survives SIGKILL" if made is not None and made.ended is None else ""
        ill = "ill" if self.job.restarts.health_argv and self.rng.random() < 0.1 else ""
        takes_s = self.rng.choice((0.0, 0.01, 0.2, 2.0))
        event = events.Ready(one.index, attempt, held or ill, bool(held))
        self.at(self.now + takes_s, lambda: self.act(one, lambda: self.feed(one, event)))

    def renew(self, one: Launcher, command: node.Lease) -> None:
        one.lease_until = command.until

    def look_lease(self, one: Launcher) -> None:
        """Let the watchdog of a launcher that stands still kill its processes when the lease ends."""
        made = one.processes
        if made is None or made.ended is not None or not one.has_dog or not self.job.restarts.most:
            return
        if self.now >= one.lease_until and made.frozen is None:
            self.kill_processes(made, "lease")

    def leave(self, one: Launcher, command: node.ExitLauncher) -> None:
        self.note(f"{one.session} ends with {command.status}")
        one.exit = self.now, command.status, command.over
        one.is_alive = False
        if one.processes is not None and one.processes.ended is None:
            self.kill_processes(one.processes, "exit")
        for connection in self.connections(one):
            self.hang_up(connection, UP)
        if one is self.server.own and command.over is None:
            self.server.end()


ACTS: dict[type, Callable[[World, Launcher, Any], None]] = {
    node.Send: World.send,
    node.Run: World.start,
    node.EndProcesses: World.stop,
    node.Kill: World.kill,
    node.Check: lambda world, one, command: world.check(one, command.attempt),
    node.Lease: World.renew,
    node.ExitLauncher: World.leave,
}


class Server:
    """Node 0's controller behind its connections.

    Attributes:
        own: The launcher that it belongs to.
        calls: The latest connection of each launcher that has called, by session.
        nodes: The connections of the nodes that were let in, and their indices.
    """

    def __init__(self, world: World, own: Launcher) -> None:
        self.world, self.own = world, own
        self.is_alive = True
        self.state = controller.begin(world.job, own.session, world.now)
        self.calls: dict[str, Connection] = {}
        self.nodes: dict[Connection, int] = {}
        self.silence = Silence()
        self._is_watching = self._is_busy = False
        self._queue: deque[events.JobEvent] = deque()
        self._tick_at: float | None = None
        own.is_calm = True
        self.feed(events.Tick())

    def feed(self, event: events.JobEvent) -> None:
        """Let the controller handle an event."""
        self._queue.append(event)
        if self._is_busy:
            return
        self._is_busy = True
        while self._queue and self.is_alive:
            one = self._queue.popleft()
            self.state, out = controller.step(self.state, one, self.world.now)
            for command in out:
                self.do(command)
        self._is_busy = False
        due = self.state.due
        if due is not None and (self._tick_at is None or due < self._tick_at):
            self._tick_at = max(due, self.world.now)
            self.world.at(self._tick_at, lambda: self.act(self.tick))

    def act(self, act: Callable[[], None]) -> None:
        """Do something when the launcher is not paused; it stays for the others after its own part."""
        if self.own.is_paused:
            self.own.inbox.append(act)
        elif self.is_alive:
            act()

    def tick(self) -> None:
        """Let time pass."""
        self._tick_at = None
        if self.is_alive:
            self.feed(events.Tick())

    def do(self, command: commands.JobCommand) -> None:
        """Do what the controller wants."""
        world = self.world
        if isinstance(command, (commands.StartAttempt, commands.Stop, commands.EndAttempt, commands.EndJob)):
            if isinstance(command, commands.EndJob):
                world.overs.append(command)
                if self.state.attempt is not None and self.state.attempt.open == 0:
                    world.judged.append((self.state.attempt.number, command))
            elif isinstance(command, commands.EndAttempt):
                world.judged.append((command.attempt - 1, command.over))
            decision = (
                None if isinstance(command, (commands.StartAttempt, commands.Stop)) else command.decision
            )
            why = getattr(command, "why", "") if decision is None else decision.describe()
            world.note(f"node 0: {type(command).__name__} {why}")
            world.on_moment()
            for connection in list(self.nodes):
                self.send(connection, command)
            if self.own.is_alive:
                world.feed(self.own, command)
        elif isinstance(command, commands.Admit):
            connection, one = self.calls[command.session], world.launchers[command.session]
            if one.is_calm:
                world.disturb(one)
            for other in [one for one, index in self.nodes.items() if index == command.node]:
                if other is not connection:
                    del self.nodes[other]
                    world.hang_up(other, DOWN)
            self.nodes[connection] = command.node
            self.silence.hear(command.node, world.now)
            self.watch()
            world.transmit(connection, DOWN, lambda: world.admitted(one, connection))
        elif isinstance(command, (commands.To, commands.TurnAway, commands.HangUp)):
            found = self.calls.get(command.session)
            for other, _ in [one for one in self.nodes.items() if one[0].session == command.session]:
                found = other
            if found is None:
                return
            if isinstance(command, commands.To):
                self.send(found, command.what)
            if found not in self.nodes or not isinstance(command, commands.To):
                self.nodes.pop(found, None)
                world.hang_up(found, DOWN)
        elif isinstance(command, commands.Print):
            world.note(f"node 0: {command.text}")
        elif isinstance(command, commands.Probe):
            self.feed(events.Probed("nobody answers"))
        elif isinstance(command, commands.Close):
            self.end()

    def send(self, connection: Connection, what: object) -> None:
        """Send a launcher a command."""
        one = self.world.launchers[connection.session]
        if connection.is_open[DOWN]:
            self.world.transmit(connection, DOWN, lambda: self.receive(one, connection, what))

    def receive(self, one: Launcher, connection: Connection, what: object) -> None:
        """Let a launcher handle a command, also before it was let in: why it is not."""
        one.heard = self.world.now
        self.world.feed(one, what)

    def take(self, connection: Connection, event: events.JobEvent) -> None:
        """Handle a message of a node."""
        if connection in self.nodes and self.is_alive:
            self.hear(connection)
            self.feed(event)

    def take_beat(self, connection: Connection, sent: float) -> None:
        """Answer a heartbeat."""
        if connection in self.nodes and self.is_alive:
            self.hear(connection)
            one = self.world.launchers[connection.session]
            self.world.transmit(connection, DOWN, lambda: self.receive(one, connection, node.Answered(sent)))

    def hear(self, connection: Connection) -> None:
        """Note that a node was heard."""
        index = self.nodes[connection]
        if not self.world.launchers[connection.session].is_calm and self.silence.hear(index, self.world.now):
            self.feed(events.Heard(index))

    def lose(self, connection: Connection, *, has_exited: bool) -> None:
        """Note that a connection has ended."""
        connection.is_open[DOWN] = False
        index = self.nodes.pop(connection, None)
        if index is not None:
            one = self.world.launchers[connection.session]
            heard = self.world.now if one.is_calm else self.silence.heard(index, self.world.now)
            self.silence.forget(index)
            self.feed(events.Disconnected(index, heard, has_exited))

    def note_killed(self, session: str) -> None:
        """Take the word of a watchdog that its launcher was killed."""
        nodes = self.state.nodes
        for index in [at for at, one in enumerate(nodes) if one is not None and one.session == session]:
            self.feed(events.Killed(index))

    def watch(self) -> None:
        """Look for silent nodes, as long as any may be."""
        if not self._is_watching:
            self._is_watching = True
            self.world.at(self.world.now + LOOK_S, self.look)

    def look(self) -> None:
        """Find the nodes that have fallen silent."""
        self._is_watching = False
        self.act(self.look_now)

    def look_now(self) -> None:
        """Find the nodes that have fallen silent, and look again."""
        for index, heard in list(self.silence.look(self.world.now, LOOK_S)):
            self.feed(events.Silent(index, heard))
        if any(not self.world.launchers[one.session].is_calm for one in self.nodes):
            self.watch()
        else:
            self.silence = Silence()

    def end(self) -> None:
        """Leave: close all connections."""
        if self.is_alive:
            self.is_alive = False
            self.world.note("node 0 leaves")
            for connection in list(self.nodes):
                self.world.hang_up(connection, DOWN)
