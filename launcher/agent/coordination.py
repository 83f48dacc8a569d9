"""Interface between an agent and the rest of its job. This implementation does nothing.

Each kind of job has its own: one node (`launcher.agent.lone`), several nodes (`launcher.cluster.node`), and
the head, the ranks and the serving nodes of a job that mpirun starts (`launcher.mpi`).
"""

from __future__ import annotations

from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Protocol

    from launcher.agent.forwarder import Target
    from launcher.agent.runtime import Runtime
    from launcher.core.errors import LauncherError
    from launcher.failure.model import Verdict
    from launcher.failure.reason import Reason
    from launcher.process.spawn import Child, Process, Streams
    from launcher.stacks.answer import Answer as StackAnswer

    Answer = dict[str, object]

    class Questions(Protocol):
        """Sends questions to all nodes of the job."""

        @property
        def due(self) -> float | None:
            """When to call `fire`."""

        def ask(self, what: str, more: Mapping[str, object], take: Callable[[Answer], None]) -> int:
            """Ask all nodes; return the number of the question."""

        def drop(self, question: int) -> None:
            """Stop waiting for the answers to a question."""

        def fire(self, now: float) -> None:
            """Do the work that is due."""


@frozen
class Outcome:
    """How the processes of this node ended.

    Attributes:
        status: The exit status that results.
        verdict: Why they failed; None without a failure of a process.
        line: Message to print if there is no verdict.
        shown: Whether to show the verdict, besides writing it to a file.
    """

    status: int
    verdict: Verdict | None = None
    line: str = ""
    shown: bool = True


class Coordination:
    """Coordination with a job of which nothing is known.

    Attributes:
        runtime: Values and tools of the launcher; set by `attach`.
        shares_terminal: Whether a single process may have the terminal for itself.
        lends_terminal: Whether one of the processes may read from the terminal.
        has_work: Whether processes are to be started here; known after `gather`.
        has_others: Whether processes of the job run elsewhere too.
        speaks: Whether the agent reports the signals that it forwards and the place of its logs.
        guards: Whether a watchdog ends the processes if the agent is killed.
        awaits_deadline: Whether processes get the path of the deadline file even if this node has no
            preemption watch.
        questions: Sends questions to the other nodes; None if that is not possible.
        lease_until: When the processes must have ended if nothing renews this (monotonic seconds), because
            another node may take over; None if no other node may.
    """

    runtime: Runtime
    shares_terminal = True
    lends_terminal = True
    has_work = True
    has_others = False
    speaks = True
    guards = True
    awaits_deadline = False
    questions: Questions | None = None
    lease_until: float | None = None

    def attach(self, runtime: Runtime) -> Target | None:
        """Take the values and tools; return the target of signals, None for the processes of this node."""
        self.runtime = runtime
        return None

    @property
    def run(self) -> str:
        """Name of this run, the same on all nodes; empty until node 0 has told it."""
        return self.runtime.run_id

    @property
    def node_mark(self) -> str:
        """Name in the mark of the processes that is that of any launcher in our place; empty for none."""
        return ""

    def gather(self) -> None:
        """Wait for the other nodes, and give the agent its processes; return early if told to stop.

        Raises:
            LauncherError: The nodes do not come together.
        """
        self.has_work = self.runtime.forwarder.told is None

    def begin(self) -> None:
        """Prepare for the start of an attempt's processes."""

    def began(self) -> None:
        """Note that the processes of an attempt have been started."""

    def route(self, child: Child, streams: Streams) -> Streams:
        """Return the standard streams of a process, if not those of its route."""
        return streams

    def takes_signal(self, number: int, *, from_terminal: bool) -> bool:
        """Handle a signal that is not for the processes here; return whether it was one."""
        return False

    def on_told(self, number: int) -> None:
        """Note that this launcher was told to stop."""

    def on_exit(self, process: Process) -> None:
        """Note that a process of this node has exited."""

    def on_ranks_ended(self) -> None:
        """Note that the ranks of this node have succeeded; its companions go on for those of other nodes."""

    def on_failure(self, process: Process, *, follows: bool) -> None:
        """Note that a process of this node has failed; ``follows``: only because it lost another process."""

    def on_reason(self, reason: Reason) -> None:
        """Note that the agent ends its processes for a reason of its own."""

    def on_quiet(self, what: str | None) -> bool:
        """Note that nothing has happened here for the time of a stall, or (None) that something has again.

        Returns:
            Whether another launcher asks all processes of the job, and reports.
        """
        return False

    def takes_evidence(self, answers: Sequence[StackAnswer]) -> bool:
        """Take what the processes of this node did before they are stopped; return whether it was taken."""
        return False

    def on_refused(self, error: LauncherError) -> None:
        """Note that the processes of this node cannot be started."""

    def on_preemption(self, kind: str, what: str, left_s: float, *, ends: bool) -> None:
        """Note that this node is to be preempted, or no longer; ``ends``: the processes end because of it."""

    def helpers(self) -> tuple[int, ...]:
        """Return the PIDs of children that are not processes of the job."""
        return ()

    def describe_state(self) -> str | None:
        """Return the state of the node in words, if it is not that of its processes."""
        return None

    def describe_nodes(self) -> Mapping[str, object] | None:
        """Return the counts of all, present and lost nodes of the job; None for a single node."""
        return None

    def restarts(self) -> bool:
        """Whether another attempt follows the one that has ended; returns when it is time to start it."""
        return False

    def finish(self, report: Callable[[], int]) -> int:
        """Report how the job ended, when all processes of this node have; return its status.

        ``report``: reports how the last attempt of this node ended, and returns its status.
        """
        return report()

    def takes_verdict(self, verdict: Verdict) -> bool:
        """Take the verdict on an attempt of this node; return whether it is not to be published here."""
        return False

    def clean_up(self) -> None:
        """Remove the private files; the watchdog calls this too if the launcher was killed."""

    def report_killed(self) -> None:
        """Tell the job that this launcher was killed, and nothing of it runs; the watchdog calls this."""

    def close(self) -> None:
        """Leave the job."""
