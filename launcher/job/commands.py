"""What a job does: the output of `launcher.job.controller.step`.

`StartAttempt`, `Stop`, `News`, `EndAttempt` and `EndJob` go to all nodes; in a `To` they go to one launcher.
`Stop` and `News` are sent as they are; what the others become is in `launcher.cluster.messages`.
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.wire import message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.errors import Problem
    from launcher.core.wire import Line, Signal
    from launcher.failure.arbiter import Event
    from launcher.failure.model import Verdict
    from launcher.recovery.policy import Decision


class JobCommand:
    """What a job does."""


@frozen
class Refusal:
    """Why a job does not start, or a launcher cannot join it.

    Attributes:
        status: The exit status that results.
        problem: The problem.
        lines: A table of what the nodes differ in.
    """

    status: int
    problem: Problem
    lines: tuple[str, ...] = ()


@frozen
class StartAttempt(JobCommand):
    """Start the processes of an attempt.

    Attributes:
        attempt: 0 for the first.
        order: The index of the node that has each rank.
    """

    attempt: int
    order: tuple[int, ...]


@message
class Stop(JobCommand):
    """Stop the processes, with SIGTERM and, after the grace, SIGKILL.

    Attributes:
        attempt: The attempt that stops.
        why: What has happened.
        by: Rank of the node on which it has; -1 if a node itself has lost node 0.
        number: The signal that a launcher received and the processes get.
        left_ms: Time until the platform takes that node back, milliseconds; None if it does not.
    """

    attempt: int
    why: Line
    by: int
    number: Signal | None = None
    left_ms: int | None = None


@message
class News(JobCommand):
    """The same of a job whose nodes go on after a failure (``--keep-going``): nothing stops."""

    why: Line
    by: int


@frozen
class EndAttempt(JobCommand):
    """An attempt has failed and another one follows: say when nothing of it is left.

    Attributes:
        attempt: The next attempt.
        over: How the job would have ended without it.
        decision: The restart.
    """

    attempt: int
    over: EndJob
    decision: Decision


@frozen
class EndJob(JobCommand):
    """The job has ended.

    Attributes:
        status: Its status.
        first: What came first; None if nothing has failed.
        rank: The rank of the node of that.
        host: The name of its host.
        record: The verdict of that node.
        also: What else has failed of its own accord, in words.
        decision: Why no other attempt follows; None if nothing has failed, or no restart is allowed.
        refusal: Why the job did not start; None if it has.
        why: Why a launcher leaves the job.
        leaves: Whether only this launcher leaves; the job goes on without it.
        is_stopped: Whether only a signal has kept another attempt from following.
    """

    status: int
    first: Event | None = None
    rank: int = 0
    host: str = ""
    record: Verdict | None = None
    also: tuple[str, ...] = ()
    decision: Decision | None = None
    refusal: Refusal | None = None
    why: str = ""
    leaves: bool = False
    is_stopped: bool = False


@frozen
class To(JobCommand):
    """Send one launcher a command; one that was not let in is to leave after it."""

    session: str
    what: StartAttempt | Stop | EndAttempt | EndJob


@frozen
class Admit(JobCommand):
    """Admit a launcher: its connection now belongs to a node."""

    node: int
    session: str


@frozen
class TurnAway(JobCommand):
    """Send a launcher away: its place is taken. It may call again."""

    session: str


@frozen
class HangUp(JobCommand):
    """Close the connection of a launcher that was lost."""

    session: str


@frozen
class Probe(JobCommand):
    """Probe the hosts of the missing nodes, and say what was found."""


@frozen
class Print(JobCommand):
    """Print a line in the log of the job; ``event``: its name among the events."""

    text: str
    event: str


@frozen
class Blame(JobCommand):
    """Remember that something is wrong with a node, although no attempt has failed for it.

    Attributes:
        node: Index of the node.
        rank: Its rank; its index if it is a spare one.
        cause: Code of the cause.
        what: What is wrong.
    """

    node: int
    rank: int
    cause: str
    what: str


@frozen
class Close(JobCommand):
    """Leave: all nodes know how the job ended, or have had the time to hear it."""
