"""The head of a job that mpirun starts: waits for the nodes, runs mpirun, gives the verdict.

mpirun is left two things, to place the processes and to start them. All else goes past it, through the
sessions: an mpirun that is told SIGTERM leaves its ranks 0.5 to 2 s, one that sees a rank fail as
little, one whose network is cut does nothing at all, and each has its own idea of an exit status.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable, Mapping, Sequence

from launcher.errors import LauncherError
from launcher.frozen import frozen
from launcher.model import Supervision
from launcher.mpi import wire
from launcher.mpi.crew import Crew, Line, Node, not_ready
from launcher.mpi.verdicts import parse_record
from launcher.redact import printable, redact
from launcher.run.causes import Cause
from launcher.run.relay import Relay
from launcher.run.sig import signal
from launcher.run.signals import name_signal
from launcher.run.spawn import Child, Inherited, Streams
from launcher.run.supervise import Node as Place
from launcher.run.supervise import Supervisor
from launcher.run.verdict import Death, End, Verdict, describe_end, make_verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.run.spawn import Changes

LOST = 75
"""Status of a job that has lost a node: the same command can succeed when started again."""
MISCOUNTED = 78
"""Status of a job that mpirun has started in another shape than was asked for."""
KILLED = (0, 9, 137, 205, 255)
"""Status of an mpirun that knows no more than that a rank was killed, or a node lost."""
KILL_WAIT_S = 2.0
SETTLE_S = 1.0
"""Between the first ranks and the last that mpirun starts."""
MPI_END_S = 5.0
"""How long mpirun may take to notice that all of its ranks have ended."""
MPI_GRACE_S = 4.0
"""Between SIGTERM and SIGKILL to mpirun itself, which has nothing to save."""
COUNT_S = 60.0
"""Between the first rank that starts and the last."""
LOOK_AROUND_S = 0.5
"""After the first rank too many: how many more there are makes the message."""
FOLLOWS_NS = 1_000_000_000
"""The kernel closes what a killed mpirun had open before it tells us of the end: daemons can be quicker."""
EXPLAIN_S = 2.0
"""After mpirun has failed: a session may yet tell why."""
CLOSE_S = 8.0


@frozen
class Job:
    """What the head knows of the job before it starts.

    Attributes:
        name: Its name; ranks find their session by it, and leftovers are known by it.
        lines: How each node is reached, by node rank; ours is the first.
        per_node: Ranks on each.
        master_addr: Where rank 0 listens.
        master_port: The port.
        variables: What the ranks get of our environment; None for what they are not to have.
        timeout_s: How long nodes may take to answer.
        cwd: Where ranks work; empty where mpirun was told.
    """

    name: str
    lines: tuple[Line, ...]
    per_node: int
    master_addr: str
    master_port: int
    variables: Mapping[str, str | None]
    timeout_s: float
    cwd: str = ""

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return len(self.lines) * self.per_node


@frozen
class Event:
    """Something that ends a job: a rank that has failed, a node that is lost, or a wrong shape.

    Attributes:
        node: Where.
        at_ns: When the head heard of it, nanoseconds since 1970: one clock for all nodes.
        message: What the rank has reported; None if it is no rank's.
        cause: Why, if it is no rank's.
        status: What it makes the job's status.
    """

    node: Node | None
    at_ns: int
    status: int
    message: Mapping[str, object] | None = None
    cause: Cause | None = None

    @property
    def asked(self) -> bool:
        """Whether the rank has ended by a signal that somebody sent to make it end."""
        code, asked = (self.message or {}).get("code"), (self.message or {}).get("asked")
        return asked is not None and (code == 0 or asked in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL))


class Ending:
    """The end of the job, once it has begun: ask the ranks, kill them, let them go, end mpirun.

    The same steps as `launcher.run.stopping.Stopper` for processes that are not our children.
    """

    def __init__(self, head: Head) -> None:
        self.due: float | None = None
        self.begun = self.killed = self.released = False
        self._kill_at, self._settled_at = 0.0, 0.0
        self._head = head

    def begin(self, number: int, *, to_group: bool = False) -> None:
        """Tell all ranks; the clock of the first time is not restarted."""
        if not self.begun:
            self.due = self._kill_at = time.monotonic() + self._head.watch.grace_s
        self.begun = True
        self._head.crew.tell({"do": "signal", "number": number, "ends": True})
        self.check()

    def kill(self) -> None:
        """SIGKILL to all ranks, now."""
        self.begun = self.killed = True
        self._head.crew.tell({"do": "signal", "number": int(signal.SIGKILL), "ends": True})
        self.due = time.monotonic() + KILL_WAIT_S
        self.check()

    def check(self) -> None:
        """Once no rank runs any more, mpirun may notice that they have ended.

        Unless some have yet to say that they start: what they would say is lost if mpirun kills them.
        """
        if not self.begun or self.released or self._head.ranks_running():
            return
        if self._head.ranks_started() >= self._head.job.world_size:
            self._release()
        else:
            self._settled_at = time.monotonic() + SETTLE_S
            self.due = min(self._kill_at, self._settled_at)

    def fire(self, now: float) -> None:
        """The next step is due."""
        if self.released:
            self.due = None
            self._head.end_mpirun()
        elif self.killed or (now >= self._settled_at and not self._head.ranks_running()):
            self._release()
        elif now < self._kill_at:
            self.due = self._kill_at  # some have started meanwhile
        else:
            count = self._head.ranks_running()
            ranks = "1 rank still runs" if count == 1 else f"{count} ranks still run"
            self._head.say(f"{ranks} after {self._head.watch.grace_s:g} s: SIGKILL")
            self.kill()

    def _release(self) -> None:
        self.released = True
        self._head.crew.tell({"do": "release"})
        self.due = time.monotonic() + MPI_END_S


class HeadRelay(Relay):
    """Passes signals on to the ranks of all nodes instead of to mpirun."""

    def __init__(self, head: Head) -> None:
        super().__init__(head.watch, shares_terminal=False, say=head.say)
        self._head = head

    def attach(self, stopper: object, running: object) -> None:
        """There is one job, whatever mpirun is asked."""

    def pass_on(self, number: int, *, from_terminal: bool) -> None:
        """Do with a signal what its sender wants to happen to the job."""
        sent = self._translate(number)
        if {number, sent} & {signal.SIGTERM, signal.SIGINT}:
            if from_terminal and number == signal.SIGINT and self.told is not None:
                self._head.ending.kill()
            else:
                self._stop(number, sent, typed=from_terminal)
        elif number != signal.SIGTSTP:  # a cluster is not suspended: its network would time out
            self._head.crew.tell({"do": "signal", "number": sent})

    def _stop(self, number: int, sent: int, *, typed: bool) -> None:
        count = self._head.ranks_running()
        if self.told is None:
            to = "" if sent == number else f" as {name_signal(sent)}"
            now = "; again to end them now" if number == signal.SIGINT and typed else ""
            ranks = f"{count} rank{'' if count == 1 else 's'} on {len(self._head.crew.nodes)} nodes"
            self._head.say(
                f"{name_signal(number)}: passed on{to} to {ranks}, {self._head.watch.grace_s:g} s "
                f"until SIGKILL{now}"
            )
        self.told = self.told or number
        self._head.ending.begin(sent)


class Head(Supervisor):
    """The parent of mpirun, and of the sessions on all nodes."""

    may_share_terminal = False

    def __init__(
        self,
        child: Child,
        path: str,
        watch: Supervision,
        job: Job,
        environ: Mapping[str, str],
        private: str,
    ) -> None:
        self.job, self.private = job, private
        self.events: list[Event] = []
        self.ends: dict[int, tuple[Event, int]] = {}
        """By rank: how it has ended, and its exit code as `os.waitstatus_to_exitcode` has it."""
        super().__init__([child], [path], watch, Place(0, job.world_size), environ)
        self.run_id = job.name
        self.stdin = find_stdin()
        self.processes, self.running = [], {}
        self.has_run = False
        self.ending = Ending(self)
        self.crew = Crew(
            job.lines, self.welcome, self.loop, self.watched, environ, self.say, self.on_message, self.on_lost
        )
        self.counting = Counting(self)

    def make_relay(self) -> Relay:
        """Signals are for the ranks."""
        return HeadRelay(self)

    def welcome(self, index: int) -> dict[str, object]:
        """Return what a node is told of itself and of the job."""
        return {
            "node_rank": index,
            "node_count": len(self.job.lines),
            "master_addr": self.job.master_addr,
            "master_port": self.job.master_port,
            "grace_s": self.watch.grace_s,
            "colours": os.isatty(1) and not self.environ.get("NO_COLOR"),
            "variables": dict(self.job.variables),
            "cwd": self.job.cwd,
            "stdin": self.stdin,
        }

    def prepare(self, index: int, inherited: Inherited) -> tuple[Child, Streams, Changes]:
        """Return mpirun as it is to be started; what rank 0 reads by itself is not for it."""
        child, streams, changes = super().prepare(index, inherited)
        if self.stdin is not None:
            null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            streams = Streams(null, streams.stdout, streams.stderr)
        return child, streams, changes

    def ranks_running(self) -> int:
        """Return how many ranks run, as far as they have said so."""
        return sum(node.running for node in self.crew.nodes)

    def ranks_started(self) -> int:
        """Return how many ranks have said that they start."""
        return sum(len(node.started) for node in self.crew.nodes)

    # --- before mpirun

    def run(self) -> int:
        """Wait for the nodes, then run mpirun to its end.

        Raises:
            NotReady: Nodes did not answer in time.
        """
        status = LOST
        try:
            self.start_guardian()
            self.gather()
            if self.relay.told is not None:
                status = 128 + self.relay.told
                return status
            self.has_run = True
            status = super().run()
            return status
        except LauncherError as error:
            status = error.exit_status
            raise
        finally:
            self.crew.close(status, CLOSE_S)
            if not self.has_run:
                if self.guardian is not None:
                    self.guardian.dismiss()
                self.output.close()
                self.folder.remove()

    def gather(self) -> None:
        """Return once every node has answered, or when we are told to end.

        Raises:
            NotReady: Some did not until the deadline.
        """
        deadline = time.monotonic() + self.job.timeout_s
        wake = Wake(deadline)
        self.loop.timers[:] = [self.crew, wake]
        while self.crew.missing() and self.relay.told is None:
            self.loop.turn()
            self.reap()
            if self.crew.refused is not None:
                raise self.crew.refused
            if wake.due is None and self.crew.missing():
                raise not_ready(self.crew.missing(), self.job.timeout_s)

    def start_all(self) -> None:
        """Start mpirun."""
        self.crew.has_begun = True
        self.loop.timers += [self.crew, self.ending, self.counting]
        super().start_all()

    def remove_traces(self) -> None:
        """Keys stand in the private folder."""
        super().remove_traces()
        shutil.rmtree(self.private, ignore_errors=True)

    def spared(self) -> tuple[int, ...]:
        """Sessions clean up by themselves."""
        return (*super().spared(), *self.crew.pids())

    # --- what the nodes say

    def on_message(self, node: Node, message: Mapping[str, object]) -> None:
        """A session has something to say about its node."""
        pid = wire.number(message, "pid") if "pid" in message else 0
        match message.get("is"):
            case "started":
                node.started[pid] = wire.number(message, "rank")
                self.counting.note(message)
            case "ended":
                self.note_end(node, pid, message)
            case "gone" if pid in node.started and pid not in node.ended:
                end = {"rank": node.started[pid], "local_rank": -1, "code": -9, "status": 137}
                if self.ending.released:  # by mpirun, which ends what is left when one has failed
                    end["asked"] = signal.SIGKILL
                self.note_end(node, pid, end)
            case "orphaned":
                self.on_orphaned(node, wire.number(message, "daemon"))
            case "told":
                number = wire.number(message, "number")
                self.say(f"node {node.index} ({node.host}) was told {name_signal(number)}: for all ranks")
                self.relay.pass_on(number, from_terminal=False)

    def note_end(self, node: Node, pid: int, message: Mapping[str, object]) -> None:
        """A rank has ended."""
        node.started.setdefault(pid, wire.number(message, "rank"))
        node.ended.add(pid)
        status, code = wire.number(message, "status"), wire.number(message, "code")
        event = Event(node, time.time_ns(), status, {**message, "pid": pid})
        self.ends[wire.number(message, "rank")] = (event, code)
        if status:
            self.begin_end(
                event,
                f"rank {message.get('rank')} on {node.host} {describe_end(code, None, None, heard=False)}",
            )
        self.ending.check()

    def on_orphaned(self, node: Node, daemon: int) -> None:
        """What mpirun has started on a node to start the ranks there has ended before them."""
        what = f"mpirun's daemon on node {node.index} ({node.host}), pid {daemon}, has ended before its ranks"
        fix = "look for the kernel's OOM killer on that node (dmesg), and for who ends processes there"
        cause = Cause("daemon-lost", what, fix, retryable=True)
        self.begin_end(Event(node, time.time_ns(), LOST, cause=cause), what)

    def on_lost(self, node: Node) -> None:
        """A node's session is gone: whatever ran there is no part of the job any more."""
        node.ended.update(node.started)
        what = f"node {node.index} ({node.host}) is lost: {node.reason}"
        fix = "look at the node, at its network, and at whether somebody has ended its container"
        cause = Cause("node-lost", what, fix, retryable=True)
        self.begin_end(Event(node, time.time_ns(), LOST, cause=cause), what)
        self.ending.check()

    def begin_end(self, event: Event, what: str, *, is_why: bool = False) -> None:
        """Something has failed: the others would wait for it forever. It may be why others failed before."""
        self.events.insert(0 if is_why else len(self.events), event)
        if not self.ending.begun:
            others = self.ranks_running()
            self.say(f"{what}; stopping the other {others}" if others else what)
            self.ending.begin(signal.SIGTERM)

    def stop_stalled(self, reason: str) -> None:
        """The job hangs, and is to end as a failure: its ranks are, not mpirun."""
        self.stalled = self.stalled or reason
        self.ending.begin(signal.SIGTERM)

    def end_mpirun(self) -> None:
        """No rank is left, and mpirun has not noticed."""
        self.stopper.grace_s = MPI_GRACE_S
        self.stopper.begin(signal.SIGTERM)

    # --- the end

    def finish(self) -> int:
        """Say how the job ended, and return its status."""
        mpirun = self.processes[0]
        self.wait_for(lambda: not self.ranks_running(), EXPLAIN_S)  # their last words may come after its own
        if mpirun.status and not self.events:
            self.wait_for(lambda: bool(self.events), EXPLAIN_S)
        first = self.find_first()
        if first is not None and _may_follow(first):
            self.wait_for(lambda: self.find_first() is not first, SETTLE_S / 2)
        if self.relay.told is None:
            self.counting.check_all(succeeded=not self.events and not mpirun.status)
        event = self.find_first()
        if self.mpirun_knows(event) or (event is None and mpirun.status and self.relay.told is None):
            self.crew.close(mpirun.status, CLOSE_S)
            return super().finish()  # mpirun itself: its words say why
        if event is None:
            if self.relay.told is None:
                return self.end_of_stall()
            return 0 if len(self.ends) >= self.job.world_size else 128 + self.relay.told
        self.crew.close(event.status, CLOSE_S)
        self.loop.guard(lambda: self.publish(self.judge(event), shown=True))
        return event.status

    def mpirun_knows(self, event: Event | None) -> bool:
        """Whether mpirun's own end says more than that of a rank: it was killed first, or has killed them."""
        mpirun = self.processes[0]
        if event is None or mpirun.passed_on is not None:
            return False
        return explains(mpirun.code or 0, mpirun.status, mpirun.ended_ns, event)

    def wait_for(self, is_known: Callable[[], bool], wait_s: float) -> None:
        """That a node was lost arrives a moment after what mpirun makes of it."""
        wake = Wake(time.monotonic() + wait_s)
        self.loop.timers.append(wake)
        while not is_known() and wake.due is not None and self.crew.pids():
            self.loop.turn()

    def find_first(self) -> Event | None:
        """Return what came first, and of its own accord: not because somebody had asked for it."""
        own = [event for event in self.events if not event.asked]
        first = next(iter(own or self.events), None)
        if first is not None and _may_follow(first):
            return next((event for event in own if _code(event) == "node-lost"), first)
        return first

    def judge(self, event: Event) -> Verdict:
        """Return the verdict on the whole job."""
        told = name_signal(self.relay.told) if self.relay.told is not None else None
        others = tuple(
            _end(other, code, event.at_ns, told)
            for _, (other, code) in sorted(self.ends.items())
            if other is not event
        )
        verdict = self.reported(event) or self.own_verdict(event)
        return Verdict(**{**vars(verdict), "others": others, "started_ns": self.started_ns, "told": told})

    def reported(self, event: Event) -> Verdict | None:
        """Return the verdict that a rank's own parent has given."""
        record = (event.message or {}).get("verdict")
        if event.node is None or not isinstance(record, dict):
            return None
        try:
            verdict = parse_record(record)
        except (KeyError, TypeError, ValueError):
            return None
        return Verdict(**{**vars(verdict), "ended_ns": event.at_ns, "node_rank": event.node.index})

    def own_verdict(self, event: Event) -> Verdict:
        """Return what we know ourselves, where nobody else could say it."""
        message, node = event.message or {}, event.node
        called = "" if event.message else (f"node {node.index}" if node else "mpirun")
        numbers = [value if isinstance(value := message.get(key), int) else 0 for key in ("rank", "pid")]
        code = message.get("code", event.status)
        death = Death(
            rank=numbers[0],
            local_rank=0,
            pid=numbers[1],
            code=code if isinstance(code, int) else event.status,
            ended_ns=event.at_ns,
            called=called,
        )
        causes = [event.cause or _why(message)]
        verdict = make_verdict(
            death,
            [],
            host_name=node.host if node else os.uname().nodename,
            node_rank=node.index if node else 0,
            world_size=self.job.world_size,
            attempt=0,
            started_ns=self.started_ns,
            told=None,
            causes=causes,
        )
        if not called:
            return verdict
        status = "has started other processes than it was asked for"
        if node:
            status = "is lost" if causes[0].code == "node-lost" else "cannot go on"
        first = End(**{**vars(verdict.first), "status": status})
        return Verdict(**{**vars(verdict), "first": first})


def find_stdin() -> str | None:
    """Return the path where rank 0, on our node, can read what we would; None if there is no such path."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return os.devnull
    if stat.S_ISSOCK(mode):
        return None
    return f"/proc/{os.getpid()}/fd/0" if stat.S_ISREG(mode) or stat.S_ISFIFO(mode) else os.devnull


class Wake:
    """A point in time that ends a wait."""

    def __init__(self, due: float) -> None:
        self.due: float | None = due

    def fire(self, now: float) -> None:
        """It is time."""
        self.due = None


class Counting:
    """Whether mpirun starts the ranks that it was asked for, where it was asked to.

    An mpirun that does not follow the hostfile runs all of them on one node, and all is well as far as
    it is concerned.
    """

    def __init__(self, head: Head) -> None:
        self.due: float | None = None
        self._head = head
        self._sizes: set[int] = set()
        self._is_wrong = self._has_said = False

    def note(self, message: Mapping[str, object]) -> None:
        """A rank has started."""
        job, nodes = self._head.job, self._head.crew.nodes
        self._sizes.add(wire.number(message, "size"))
        count = self._head.ranks_started()
        too_many = any(len(node.started) > job.per_node for node in nodes)
        if (too_many or self._sizes != {job.world_size}) and not self._is_wrong:
            self._is_wrong = True
            self.due = time.monotonic() + LOOK_AROUND_S
        elif count == 1 and self.due is None:
            self.due = time.monotonic() + COUNT_S
        elif count >= job.world_size and not self._is_wrong:
            self.due = None

    def fire(self, now: float) -> None:
        """Ranks are wrong, or late."""
        self.due = None
        if self._is_wrong or not self._head.ending.begun:
            late = "" if self._is_wrong else f" within {COUNT_S:g} s"
            self._complain(late)

    def check_all(self, *, succeeded: bool) -> None:
        """The job has ended: ranks that were wrong are why, and an mpirun that says all is well may err."""
        count = self._head.ranks_started()
        if not self._has_said and (self._is_wrong or (succeeded and count != self._head.job.world_size)):
            self._complain("")

    def _complain(self, late: str) -> None:
        job, nodes = self._head.job, self._head.crew.nodes
        what = (
            f"asked for {job.world_size} ranks on {len(nodes)} nodes, {job.per_node} on each; "
            f"{describe_places(nodes)}{late}"
        )
        self._has_said = True
        fix = "look at how mpirun is told its hosts (launcher plan), and at its own configuration files"
        event = Event(None, time.time_ns(), MISCOUNTED, cause=Cause("rank-count", what, fix, retryable=False))
        self._head.begin_end(event, what, is_why=True)


def describe_places(nodes: Sequence[Node]) -> str:
    """Return e.g. ``8 started, all on node0`` or ``3 started (2 on node0, 1 on node1)``."""
    counts = {node.host: len(node.started) for node in nodes if node.started}
    total = sum(counts.values())
    if len(counts) == 1 and total > 1:
        return f"{total} started, all on {next(iter(counts))}"
    places = ", ".join(f"{count} on {host}" for host, count in list(counts.items())[:20])
    return f"{total} started" + (f" ({places})" if places else "")


def _end(event: Event, code: int, zero_ns: int, told: str | None) -> End:
    message = event.message or {}
    asked = message.get("asked")
    words = describe_end(code, asked if isinstance(asked, int) else None, told, heard=False)
    numbers = [
        value if isinstance(value := message.get(key), int) else 0 for key in ("rank", "local_rank", "pid")
    ]
    return End(numbers[0], numbers[1], numbers[2], code, printable(words), event.at_ns - zero_ns)


def explains(code: int, status: int, ended_ns: int, event: Event) -> bool:
    """Return whether an end of mpirun that nobody asked for explains an event, rather than following it.

    Args:
        code: How mpirun ended: 0 to 255, or -n by signal n.
        status: The same as a shell has it.
        ended_ns: When, nanoseconds since 1970.
        event: What the head has heard of a rank or a node.
    """
    if code < 0:
        return event.at_ns > ended_ns - (FOLLOWS_NS if _may_follow(event) else 0)
    return _may_follow(event) and status not in KILLED  # MPI_Abort: its status is mpirun's


def _may_follow(event: Event) -> bool:
    """Whether it may be what mpirun does when it loses a node: it kills its daemons and ranks on all."""
    return _code(event) == "daemon-lost" or (event.cause is None and _is_silent(event))


def _is_silent(event: Event) -> bool:
    """Whether a rank was killed together with its launcher, which could not say anything."""
    message = event.message or {}
    return message.get("code") == -signal.SIGKILL and "verdict" not in message and "why" not in message


def _code(event: Event) -> str:
    return event.cause.code if event.cause is not None else ""


def _why(message: Mapping[str, object]) -> Cause:
    refused = printable(redact(wire.text(message, "why")))
    if refused:
        return Cause("rank-refused", refused, "its own error message has the fix", retryable=False)
    return Cause(
        "rank-killed",
        "its launcher ended without a word, as SIGKILL does it",
        "look for the kernel's OOM killer on that node (dmesg), and for who ends processes there",
    )
