"""The head of a job that mpirun starts: waits for the nodes, runs mpirun, gives the verdict.

mpirun is left two things, to place the processes and to start them. All else goes past it, through the
sessions: an mpirun that is told SIGTERM leaves its ranks 0.5 to 2 s, one that sees a rank fail as
little, one whose network is cut does nothing at all, and each has its own idea of an exit status.
"""

from __future__ import annotations

import os
import stat
import time

from launcher.core.frozen import frozen
from launcher.core.signal import signal
from launcher.failure.model import Cause, Verdict
from launcher.failure.verdict import describe_end
from launcher.mpi.counting import Counting
from launcher.mpi.ending import KILL_WAIT_S, SETTLE_S, RanksTarget
from launcher.mpi.events import DAEMON_LOST, NODE_LOST, Event, explains, find_first
from launcher.mpi.judge import judge
from launcher.mpi.lead import CLOSE_S, LOST, Lead
from launcher.mpi.messages import Abandoned, Briefing, Gone, NodeTold, Orphaned, RankEnded, Started
from launcher.mpi.sessions import Sessions
from launcher.process.descendants import find_children
from launcher.process.signals import name_signal
from launcher.process.spawn import Child, Streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.agent.agent import Agent
    from launcher.mpi.node import Line, Node

MPI_GRACE_S = 4.0
"""Between SIGTERM and SIGKILL to mpirun itself, which has nothing to save."""
EXPLAIN_S = 2.0
"""After mpirun has failed: a session may yet tell why."""


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


class Head(Lead):
    """mpirun, and the sessions on all nodes."""

    def __init__(self, job: Job, private: str) -> None:
        super().__init__(private, job.timeout_s)
        self.job = job
        self.events: list[Event] = []
        self.ends: dict[int, tuple[Event, int]] = {}
        """By rank: how it has ended, and its exit code as `os.waitstatus_to_exitcode` has it."""
        self.stdin = find_stdin()

    def attach(self, agent: Agent) -> RanksTarget:
        """Signals are for the ranks."""
        super().attach(agent)
        self.ending = RanksTarget(self)
        self.sessions = Sessions(
            self.job.lines, self.brief, agent.loop, agent.signals, agent.environ, agent.say,
            self.on_message, self.on_lost,
        )  # fmt: skip
        self.counting = Counting(self)
        return self.ending

    def brief(self, index: int) -> Briefing:
        """Return what a node is told of itself and of the job."""
        return Briefing(
            node_rank=index,
            node_count=len(self.job.lines),
            master_addr=self.job.master_addr,
            master_port=self.job.master_port,
            grace_s=self.agent.watch.grace_s,
            colours=os.isatty(1) and not self.agent.environ.get("NO_COLOR"),
            variables=dict(self.job.variables),
            cwd=self.job.cwd,
            stdin=self.stdin,
        )

    def route(self, child: Child, streams: Streams) -> Streams:
        """What rank 0 reads by itself is not for mpirun."""
        if self.stdin is None:
            return streams
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return Streams(null, streams.stdout, streams.stderr)

    def ranks_running(self) -> int:
        """Return how many ranks run, as far as they have said so."""
        return sum(node.running for node in self.sessions.nodes)

    def ranks_ended(self) -> bool:
        """Return whether all ranks have ended, or were killed and are waited for no more."""
        return self.ending.released or not self.ranks_running()

    def ranks_started(self) -> int:
        """Return how many ranks have said that they start."""
        return sum(len(node.started) for node in self.sessions.nodes)

    def helpers(self) -> tuple[int, ...]:
        """What mpirun has left becomes our child: ranks have their grace, the session ends the rest."""
        left = find_children(os.getpid()) if self.sessions.nodes[0].running else ()
        return (*super().helpers(), *(pid for pid in left if pid not in self.agent.group.running))

    def begin(self) -> None:
        """mpirun is about to be started."""
        super().begin()
        self.agent.loop.timers += [self.ending, self.counting]

    # --- what the nodes say

    def on_message(self, node: Node, message: object) -> None:
        """A session has something to say about its node."""
        match message:
            case Started():
                node.started[message.pid] = message.rank
                self.counting.note(message)
            case RankEnded():
                self.note_end(node, message)
            case Gone() if node.runs(message.pid):
                # Once released: by mpirun, which ends what is left when one has failed
                asked = int(signal.SIGKILL) if self.ending.released else None
                self.note_end(node, self.killed(node, message.pid, asked))
            case Abandoned() if node.runs(message.pid):
                self.on_abandoned(node, message.pid)
            case Orphaned():
                self.on_orphaned(node, message.daemon)
            case NodeTold():
                name = name_signal(message.number)
                self.agent.say(f"node {node.index} ({node.host}) was told {name}: for all ranks")
                self.agent.on_signal(message.number, from_terminal=False)

    def note_end(self, node: Node, end: RankEnded) -> None:
        """A rank has ended."""
        node.started.setdefault(end.pid, end.rank)
        node.ended.add(end.pid)
        event = Event(node, time.time_ns(), end.status, end)
        self.ends[end.rank] = (event, end.code)
        if end.status:
            how = describe_end(end.code, None, None, heard=False)
            self.begin_end(event, f"rank {end.rank} on {node.host} {how}")
        self.ending.check()

    def killed(self, node: Node, pid: int, asked: int | None = None) -> RankEnded:
        """Return what is known of a rank that has ended without a word."""
        return RankEnded(node.started[pid], -1, status=137, code=-signal.SIGKILL, asked=asked, pid=pid)

    def on_abandoned(self, node: Node, pid: int) -> None:
        """mpirun has ended a rank, as far as it knows; that goes on, and all have their grace."""
        if not self.ending.released:
            event = Event(node, time.time_ns(), 137, self.killed(node, pid))
            what = f"rank {node.started[pid]} on {node.host} was ended for mpirun"
            self.begin_end(event, what)

    def on_orphaned(self, node: Node, daemon: int) -> None:
        """What mpirun has started on a node to start the ranks there has ended before them."""
        what = f"mpirun's daemon on node {node.index} ({node.host}), pid {daemon}, has ended before its ranks"
        fix = "look for the kernel's OOM killer on that node (dmesg), and for what ends processes there"
        cause = Cause(DAEMON_LOST, what, fix, retryable=True)
        self.begin_end(Event(node, time.time_ns(), LOST, cause=cause), what)

    def on_lost(self, node: Node) -> None:
        """A node's session is gone: whatever ran there is no part of the job any more."""
        node.ended.update(node.started)
        what = f"node {node.index} ({node.host}) is lost: {node.reason}"
        fix = "look at the node, at its network, and at whether its container was ended"
        cause = Cause(NODE_LOST, what, fix, retryable=True)
        self.begin_end(Event(node, time.time_ns(), LOST, cause=cause), what)
        self.ending.check()

    def begin_end(self, event: Event, what: str) -> None:
        """Something has failed: the others would wait for it forever."""
        self.events.append(event)
        if not self.ending.begun:
            others = self.ranks_running()
            self.agent.say(f"{what}; stopping the other {others}" if others else what)
            self.ending.stop(signal.SIGTERM)

    def end_mpirun(self) -> None:
        """No rank is left, and mpirun has not noticed."""
        if self.agent.group.running:
            self.agent.group.stopper.grace_s = MPI_GRACE_S
            self.agent.group.stopper.begin(signal.SIGTERM)

    # --- the end

    def finish(self) -> int:
        """Say how the job ended, and return its status."""
        self.status = self._finish()
        return self.status

    def _finish(self) -> int:
        mpirun = self.agent.group.processes[0]
        self.wait_for(self.ranks_ended, EXPLAIN_S)  # their last words may come after its own
        self.end_ranks()
        if mpirun.status and not self.events:
            self.wait_for(lambda: bool(self.events), EXPLAIN_S)
        first = find_first(self.events)
        if first is not None and first.may_follow:
            self.wait_for(lambda: find_first(self.events) is not first, SETTLE_S / 2)
        if self.agent.forwarder.told is None:
            self.counting.check_all(succeeded=not self.events and not mpirun.status)
        event = find_first(self.events)
        told = self.agent.forwarder.told
        if self.mpirun_knows(event) or (event is None and mpirun.status and told is None):
            self.status = mpirun.status
            self.sessions.close(self.status, CLOSE_S)
            return super().finish()  # mpirun itself: its words say why
        if event is None:
            if told is None:
                return super().finish()
            return 0 if len(self.ends) >= self.job.world_size else 128 + told
        self.status = event.status
        self.sessions.close(self.status, CLOSE_S)
        self.agent.loop.guard(lambda: self.agent.restarter.publish(self.make_verdict(event), shown=True))
        return event.status

    def end_ranks(self) -> None:
        """mpirun has ended before its ranks: they still have their grace."""
        if self.ranks_running() and not self.ending.begun:
            self.agent.say(f"mpirun has ended; stopping {self.ending.describe()}")
            self.ending.stop(signal.SIGTERM)
        limit_s = self.agent.watch.grace_s + 2 * KILL_WAIT_S
        self.wait_for(self.ranks_ended, limit_s)

    def make_verdict(self, event: Event) -> Verdict:
        """Return the verdict on the whole job, where this came first."""
        told = name_signal(self.agent.forwarder.told) if self.agent.forwarder.told is not None else None
        return judge(
            event, self.ends, world_size=self.job.world_size, started_ns=self.agent.started_ns, told=told
        )

    def wait_for(self, is_known: Callable[[], bool], wait_s: float) -> None:
        """That a node was lost arrives a moment after what mpirun makes of it."""
        self.agent.loop.turn_until(lambda: is_known() or not self.sessions.pids(), wait_s)

    def mpirun_knows(self, event: Event | None) -> bool:
        """Whether mpirun's own end says more than that of a rank: it was killed first, or has killed them."""
        mpirun = self.agent.group.processes[0]
        if event is None or mpirun.passed_on is not None:
            return False
        return explains(mpirun.code or 0, mpirun.status, mpirun.ended_ns, event)


def find_stdin() -> str | None:
    """Return the path where rank 0, on our node, can read what we would; None if there is no such path."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return os.devnull
    if stat.S_ISSOCK(mode):
        return None
    return f"/proc/{os.getpid()}/fd/0" if stat.S_ISREG(mode) or stat.S_ISFIFO(mode) else os.devnull
