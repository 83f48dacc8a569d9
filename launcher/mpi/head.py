"""The head of a job that mpirun starts: waits for the nodes, runs mpirun, gives the verdict.

mpirun only places and starts the processes. All else bypasses it and goes through the launchers of the
nodes. An mpirun that gets SIGTERM, or that sees a rank fail, gives its ranks only 0.5 to 2 s. One whose
network is cut does nothing at all. The exit status of a failed job differs between mpiruns.
"""

from __future__ import annotations

import os
import stat
import time

from launcher.agent.coordination import Coordination, Outcome
from launcher.core.budget import Quota
from launcher.core.files import remove_tree
from launcher.core.frozen import frozen
from launcher.core.signal import signal
from launcher.failure.arbiter import NODE_LOST, make_node_lost
from launcher.failure.model import Cause, Verdict
from launcher.failure.verdict import describe_end
from launcher.job.between import TOLD
from launcher.mpi.counting import Counting
from launcher.mpi.ending import KILL_WAIT_S, SETTLE_S, RanksTarget
from launcher.mpi.events import DAEMON_LOST, MpiEvent, explains, find_first
from launcher.mpi.judge import judge
from launcher.mpi.leftovers import end_job
from launcher.mpi.messages import Abandoned, Briefing, Gone, NodeTold, Orphaned, RankEnded, Started
from launcher.mpi.nodes import LOST, Nodes
from launcher.mpi.regroup import Regroup
from launcher.process.descendants import find_children
from launcher.process.signals import name_signal
from launcher.process.spawn import Child, Streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.agent.agent import Agent
    from launcher.core.errors import LauncherError
    from launcher.mpi.nodes import Node
    from launcher.remote.hub import Gate

MPI_GRACE_S = 4.0
"""Seconds between SIGTERM and SIGKILL for mpirun itself, which has nothing to save."""
EXPLAIN_S = 2.0
"""Seconds to wait for reports after mpirun's end: a node may still tell the cause."""
EVENTS_MAX = 1024
"""Ranks of a node, and events of an attempt, that are kept beyond those that the job can have."""


@frozen
class MpiJob:
    """Facts that the head knows about the job before it starts.

    Attributes:
        name: Its name, by which ranks find the launcher of their node and leftovers are recognized.
        hosts: The nodes, by node rank; ours is the first.
        per_node: Number of ranks on each node.
        master_addr: Address at which rank 0 listens.
        master_port: Its port.
        variables: Variables of our environment for the ranks; None for one that they must not have.
        timeout_s: Seconds that nodes may take to answer.
        cwd: Working directory of the ranks; empty if mpirun was told one.
        moves_port: Whether each attempt may have another port.
    """

    name: str
    hosts: tuple[str, ...]
    per_node: int
    master_addr: str
    master_port: int
    variables: Mapping[str, str | None]
    timeout_s: float
    cwd: str = ""
    moves_port: bool = True

    @property
    def world_size(self) -> int:
        """Number of ranks in the job."""
        return len(self.hosts) * self.per_node


class Head(Coordination):
    """Coordination of mpirun with the nodes.

    Attributes:
        job: The job.
        nodes: The nodes.
        events: What ends the attempt, in the order in which it was reported.
        outcome: How the last attempt, or the job, has ended.
        stdin: Path at which rank 0 reads our standard input; see `find_stdin`.
        ending: The ranks as the target of signals.
        counting: Checks the ranks that start.
        regroup: Brings the nodes together for another attempt.
    """

    shares_terminal = lends_terminal = False
    outcome: Outcome

    def __init__(self, job: MpiJob, private: str, gate: Gate) -> None:
        """Create the coordination.

        Args:
            job: The job.
            private: The job's private folder, which `clean_up` removes.
            gate: Where the other nodes come.
        """
        self.job = job
        self._private, self._gate = private, gate
        self.events: list[MpiEvent] = []
        self.ends: dict[int, tuple[MpiEvent, int]] = {}
        """How each rank has ended, and its exit code as `os.waitstatus_to_exitcode` returns it; by rank."""
        self.stdin = find_stdin()

    def attach(self, agent: Agent) -> RanksTarget:
        """Create the parts, and return the ranks of all nodes as the target of signals."""
        super().attach(agent)
        job = self.job
        self.take_quota(agent)
        self.nodes = Nodes(
            self._gate, agent.loop, agent.say, job.variables, self.brief, self.on_message, self.on_lost
        )
        self.ending = RanksTarget(self.nodes, job.world_size, agent.watch.grace_s, agent.say, self.end_mpirun)
        port = job.master_port
        self.regroup = Regroup(self.nodes, agent.watch, port, moves_port=job.moves_port)
        return self.ending

    def gather(self) -> None:
        """Wait until every node is ready, or until we are told to end.

        Raises:
            LauncherError: See `Nodes.gather`.
        """
        agent = self.agent
        agent.group.start_watchdog(None, agent.clean_up)
        self.nodes.gather(lambda: agent.forwarder.told, self.job.timeout_s)
        self.has_work = agent.forwarder.told is None

    def take_quota(self, agent: Agent) -> None:
        """Limit the lines that the nodes can cause."""
        self._quota = Quota(agent.say, len(self.job.hosts))

    def brief(self, index: int) -> Briefing:
        """Return the facts for a node about the attempt that comes next."""
        return Briefing(
            job=self.job.name,
            node_rank=index,
            node_count=len(self.job.hosts),
            master_addr=self.job.master_addr,
            master_port=self.regroup.port,
            grace_s=self.agent.watch.grace_s,
            colours=os.isatty(1) and not self.agent.environ.get("NO_COLOR"),
            cwd=self.job.cwd,
            stdin=self.stdin,
            attempt=self.regroup.attempt,
        )

    def route(self, child: Child, streams: Streams) -> Streams:
        """Give mpirun an empty standard input if rank 0 reads ours itself."""
        if self.stdin is None:
            return streams
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return Streams(null, streams.stdout, streams.stderr)

    def helpers(self) -> tuple[int, ...]:
        """Return our children that are not the job's, so that we do not stop them.

        What mpirun leaves behind becomes our child. While ranks run on this node, that is for others to end:
        the ranks have their grace, and the end of the job is the end of the rest.
        """
        left = find_children(os.getpid()) if self.nodes.all[0].running else ()
        return tuple(pid for pid in left if pid not in self.agent.group.running)

    def begin(self) -> None:
        """Forget the attempt before, and start the timers of the end and of the counting."""
        self.nodes.begin()
        self.events, self.ends = [], {}
        self.ending.begin_attempt()
        nodes, per_node = self.nodes.all, self.job.per_node
        self.counting = Counting(nodes, per_node, lambda: self.ending.begun, self.begin_end)
        self.agent.loop.timers += [self.ending, self.counting]

    # --- messages from the nodes

    def on_message(self, node: Node, message: object) -> None:
        """Handle a message from a node."""
        match message:
            case Started() | RankEnded() if not self.has_room(node, message.pid):
                pass  # it names ranks that it cannot have
            case Started() if message.pid not in node.started:
                node.started[message.pid] = message.rank
                self.counting.note(message)
            case RankEnded() if message.pid not in node.ended:
                self.note_end(node, message)
            case Gone() if node.runs(message.pid):
                # After the release mpirun kills the remaining ranks if one has failed
                asked = int(signal.SIGKILL) if self.ending.released else None
                self.note_end(node, self.killed(node, message.pid, asked))
            case Abandoned() if node.runs(message.pid):
                self.on_abandoned(node, message.pid)
            case Orphaned():
                self.on_orphaned(node, message.daemon)
            case NodeTold() if self._quota.allows():
                name = name_signal(message.number)
                self.agent.say(f"{node.name_in_full} received {name}: passing it on to all ranks", "signal")
                self.agent.on_signal(message.number, from_terminal=False)

    def has_room(self, node: Node, pid: int) -> bool:
        """Whether a rank of a node is counted: a faulty mpirun may start all of them on one node."""
        return pid in node.started or len(node.started) < self.job.world_size + EVENTS_MAX

    def note_end(self, node: Node, end: RankEnded) -> None:
        """Record the end of a rank; a failure begins the end of the job."""
        node.started.setdefault(end.pid, end.rank)
        node.ended.add(end.pid)
        event = MpiEvent(node, time.monotonic_ns(), end.status, end)
        self.ends[end.rank] = (event, end.code)
        if end.status == 128 + (end.asked or 0) and end.asked in self.ending.passed_on:
            self.agent.forwarder.told = self.agent.forwarder.told or end.asked  # see `Agent._note_told`
        if end.status:
            how = describe_end(end.code, None, None, heard=False)
            self.begin_end(event, f"rank {end.rank} on {node.host} {how}")
        self.ending.check()

    def killed(self, node: Node, pid: int, asked: int | None = None) -> RankEnded:
        """Return the end of a rank that has not reported one: its wrapper was killed."""
        return RankEnded(node.started[pid], -1, status=137, code=-signal.SIGKILL, asked=asked, pid=pid)

    def on_abandoned(self, node: Node, pid: int) -> None:
        """End the job because mpirun has ended the placeholder of a rank; all ranks have their grace."""
        if not self.ending.released:
            event = MpiEvent(node, time.monotonic_ns(), 137, self.killed(node, pid))
            what = f"mpirun ended rank {node.started[pid]} on {node.host}"
            self.begin_end(event, what)

    def on_orphaned(self, node: Node, daemon: int) -> None:
        """End the job because mpirun's daemon on a node has ended before the ranks there."""
        what = f"mpirun's daemon on {node.name_in_full}, pid {daemon}, has ended before its ranks"
        fix = "check that node for the kernel's OOM killer (dmesg) and for anything that kills processes"
        cause = Cause(DAEMON_LOST, what, fix, retryable=True)
        self.begin_end(MpiEvent(node, time.monotonic_ns(), LOST, cause=cause), what)

    def on_lost(self, node: Node) -> None:
        """End the job because a node is lost; the ranks there count as ended."""
        node.ended.update(node.started)
        event = make_loss(node, what := f"{node.name_in_full} is lost: {node.reason}")
        self.begin_end(event, what)
        self.ending.check()

    def begin_end(self, event: MpiEvent, what: str) -> None:
        """Record a failure, and stop the ranks, which would otherwise wait for the failed one forever.

        Args:
            event: The failure.
            what: The failure in words.
        """
        if len(self.events) < 4 * self.job.world_size + EVENTS_MAX:
            self.events.append(event)
        if not self.ending.begun:
            others = self.ending.count
            self.agent.say(f"{what}; stopping the other {others}" if others else what, "stopping")
            self.ending.stop(signal.SIGTERM)

    def end_mpirun(self) -> None:
        """Stop mpirun if it has not noticed that no rank is left."""
        if self.agent.group.running:
            self.agent.group.stopper.grace_s = MPI_GRACE_S
            self.agent.group.stopper.begin(signal.SIGTERM)

    # --- the end

    def restarts(self) -> bool:
        """Whether mpirun starts again; returns when all nodes are ready for that, and it is time."""
        restarter = self.agent.restarter
        self.outcome = self.find_outcome()
        decision = restarter.decide(self.outcome)
        if decision is None or not decision.restarts:
            return False
        restarter.report(self.outcome)
        missing = self.regroup.wait(decision.wait_s, lambda: restarter.is_told)
        if missing or restarter.is_told:
            restarter.give_up(self.end_without(missing) if missing else TOLD)
            return False
        self.agent.begin_again(self.regroup.attempt)
        return True

    def end_without(self, missing: Sequence[Node]) -> str:
        """End the job because nodes have not come back, unless the last attempt has failed for that, too.

        Returns:
            Why no attempt follows.
        """
        what, why = self.regroup.describe(missing)
        first = find_first(self.events)
        if first is None or first.code != NODE_LOST:
            self.ends = {}
            self.outcome = self.judge(make_loss(missing[0], what))
            if self.outcome.verdict is not None:
                self.publish(self.outcome.verdict, shown=True)
        return why

    def on_refused(self, error: LauncherError) -> None:
        """Take the status of the error: the job cannot be started."""
        self.nodes.status = error.exit_status

    def clean_up(self) -> None:
        """Remove the private folder, and end what is left here; the watchdog calls this if we were killed."""
        remove_tree(self._private)
        end_job(self.job.name, self.agent.watch.grace_s)

    def close(self) -> None:
        """Leave the nodes."""
        self.nodes.close()

    def finish(self) -> int:
        """Report how the job ended, and return its status."""
        self.nodes.status = self.agent.restarter.exit_status(self.outcome.status, self.outcome.verdict)
        self._quota.say_dropped()
        if self.nodes.status:
            self.nodes.close()
        return self.agent.restarter.report(self.outcome)

    def find_outcome(self) -> Outcome:
        """Return how an attempt ended, once mpirun and all ranks have: which event came first."""
        mpirun = self.agent.group.processes[0]
        self.wait_for(lambda: self.ending.has_ended, EXPLAIN_S)  # ranks may report later than mpirun ends
        self.end_ranks()
        if mpirun.status and not self.events:
            self.wait_for(lambda: bool(self.events), EXPLAIN_S)
        first = find_first(self.events)
        if first is not None and first.may_follow:
            self.wait_for(lambda: find_first(self.events) is not first, SETTLE_S / 2)
        if self.agent.forwarder.told is None:
            self.counting.check_all(succeeded=not self.events and not mpirun.status)
        event, told = find_first(self.events), self.agent.forwarder.told
        if event is None and told is not None:
            return Outcome(0 if len(self.ends) >= self.job.world_size else 128 + told)
        if event is None or self.mpirun_knows(event):
            return self.agent.restarter.find_outcome()  # mpirun itself: its own messages say why
        return self.judge(event)

    def end_ranks(self) -> None:
        """Stop the ranks if mpirun has ended before them, and wait for their end, with their grace."""
        if self.ending.count and not self.ending.begun:
            self.agent.say(f"mpirun has ended; stopping {self.ending.describe()}", "stopping")
            self.ending.stop(signal.SIGTERM)
        limit_s = self.agent.watch.grace_s + 2 * KILL_WAIT_S
        self.wait_for(lambda: self.ending.has_ended, limit_s)

    def judge(self, event: MpiEvent) -> Outcome:
        """Return the outcome for the whole job, in which this event came first."""
        agent, found = self.agent, list[Verdict]()
        told = name_signal(agent.forwarder.told) if agent.forwarder.told is not None else None
        agent.loop.guard(
            lambda: found.append(
                judge(
                    event,
                    self.ends,
                    world_size=self.job.world_size,
                    attempt=agent.attempt,
                    ended_ns=agent.at_ns(event.at_ns),
                    started_ns=agent.started_ns,
                    told=told,
                )
            )
        )
        return Outcome(event.status, found[0] if found else None)

    def wait_for(self, is_known: Callable[[], bool], wait_s: float) -> None:
        """Wait for a report: the loss of a node is reported a moment after mpirun's reaction to it."""
        self.agent.loop.turn_until(is_known, wait_s)

    def mpirun_knows(self, event: MpiEvent) -> bool:
        """Whether the end of mpirun explains the event: it was killed before, or has killed the ranks."""
        mpirun = self.agent.group.processes[0]
        if mpirun.passed_on is not None:
            return False
        return explains(mpirun.code or 0, mpirun.status, mpirun.ended_ns, event)


def make_loss(node: Node, what: str) -> MpiEvent:
    """Return the event that a node is lost."""
    return MpiEvent(node, time.monotonic_ns(), LOST, cause=make_node_lost(what))


def find_stdin() -> str | None:
    """Return the path at which rank 0, on our node, can read our standard input.

    Returns:
        The descriptor in /proc for a file or a pipe; None for a socket, which has no path; /dev/null for all
        else, such as a terminal.
    """
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return os.devnull
    if stat.S_ISSOCK(mode):
        return None
    return f"/proc/{os.getpid()}/fd/0" if stat.S_ISREG(mode) or stat.S_ISFIFO(mode) else os.devnull
