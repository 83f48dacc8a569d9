"""What an agent does together with the rest of its job: by itself nothing, as on one node.

The launchers of several nodes (`launcher.cluster.node`), the head and the ranks of a job that mpirun starts,
and a node that serves (`launcher.mpi`) each have one of their own.
"""

from __future__ import annotations

from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from launcher.agent.agent import Agent
    from launcher.agent.forwarder import Target
    from launcher.core.errors import LauncherError
    from launcher.failure.model import Verdict
    from launcher.failure.reason import Reason
    from launcher.process.spawn import Child, Process, Streams

    Answer = dict[str, object]

    class Questions(Protocol):
        """The way of a question to all nodes of the job."""

        @property
        def due(self) -> float | None:
            """When `fire` has something to do."""

        def ask(self, what: str, more: Mapping[str, object], take: Callable[[Answer], None]) -> int:
            """Ask all nodes; return the number of the question."""

        def drop(self, question: int) -> None:
            """The answers are not waited for any more."""

        def fire(self, now: float) -> None:
            """It is time."""


@frozen
class Outcome:
    """How the processes of this node ended.

    Attributes:
        status: What that makes the status.
        verdict: Why; None where nothing has failed.
        line: What is to be said of it where there is no verdict.
        shown: Whether the verdict is to be shown, beside being written to a file.
    """

    status: int
    verdict: Verdict | None = None
    line: str = ""
    shown: bool = True


class Coordination:
    """One node, or a launcher that has been told of no other.

    Attributes:
        agent: The agent; there from `attach` on.
        shares_terminal: A single process may be what the user types to.
        has_others: Processes of the job run elsewhere, too.
        speaks: The agent says what it passes on, and where its logs are.
        guards: A watchdog ends the processes should the agent be killed.
        awaits_deadline: Processes are told where a deadline would be written, though none is planned here.
        questions: The way of a question to the other nodes; None where there is none.
    """

    agent: Agent
    shares_terminal = True
    has_others = False
    speaks = True
    guards = True
    awaits_deadline = False
    questions: Questions | None = None

    def attach(self, agent: Agent) -> Target | None:
        """Belong to an agent; return what signals are for, None for the processes of this node."""
        self.agent = agent
        return None

    def gather(self) -> None:
        """Wait for the other nodes, and give the agent its processes; or until the agent is told to end.

        Raises:
            LauncherError: They do not come together.
        """

    def begin(self) -> None:
        """The processes of an attempt are about to be started."""

    def began(self) -> None:
        """They are on their way."""

    def route(self, child: Child, streams: Streams) -> Streams:
        """Return the standard streams of a process, where they are not those of its route."""
        return streams

    def takes_signal(self, number: int, *, from_terminal: bool) -> bool:
        """Whether a signal means something else than the processes here; then it is dealt with."""
        return False

    def on_told(self, number: int) -> None:
        """This launcher was told to end."""

    def on_exit(self, process: Process) -> None:
        """A process of this node has ended."""

    def on_ranks_ended(self) -> None:
        """The ranks of this node have ended well; its companions run on for those of other nodes."""

    def on_failure(self, process: Process, *, follows: bool) -> None:
        """A process of this node has failed; ``follows``: it has only lost another one."""

    def on_reason(self, reason: Reason) -> None:
        """The agent ends its processes for a reason of its own."""

    def decides(self, reason: Reason) -> bool:
        """Whether the end of the processes for a reason of ours is for the rest of the job to decide."""
        return False

    def on_refused(self, error: LauncherError) -> None:
        """The processes of this node cannot be started."""

    def on_preemption(self, kind: str, what: str, left_s: float, *, ends: bool) -> None:
        """This machine is to be taken back, or is not any more; ``ends``: the processes end for it."""

    def helpers(self) -> tuple[int, ...]:
        """Return the pids of children that are none of the job's processes."""
        return ()

    def describe_state(self) -> str | None:
        """Return what the node does as a whole, where that is not what its processes do."""
        return None

    def describe_nodes(self) -> Mapping[str, object] | None:
        """Return how many of the job's nodes are there; None where there is one."""
        return None

    def finish(self) -> int:
        """All processes of this node have ended: say how the job ended, and return its status."""
        return self.agent.tell(self.agent.find_outcome())

    def publish(self, verdict: Verdict, *, shown: bool) -> None:
        """Give the verdict to people and platforms."""
        self.agent.publish(verdict, shown=shown)

    def clean_up(self) -> None:
        """Remove what is ours alone; also done for a launcher that was killed."""

    def close(self) -> None:
        """Take leave."""
