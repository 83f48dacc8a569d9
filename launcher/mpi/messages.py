"""What head, sessions and ranks of an mpirun job say to each other: one frozen type for each message.

What arrives is checked by the types of the fields (`launcher.core.messages`): a message that is none ends its
connection, and nothing else.
"""

from __future__ import annotations

from launcher.core.messages import message
from launcher.failure.model import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.messages import ExitCode, Line, Rank, Raw, Seconds, Signal, Status, Variables

GRACE_S = 30.0
"""Where nothing is told."""


# --- from a rank to its session, which passes it on to the head with the rank's pid


@message
class Attached:
    """A rank's wrapper is there, and waits for the `Briefing`."""


@message
class Started:
    """A rank is about to start; where mpirun has put it, -1 for what it does not say."""

    rank: Rank
    size: Rank
    local_rank: Rank
    pid: int = 0


@message
class Abandoned:
    """mpirun has ended what it knows of a rank, which goes on."""

    pid: int = 0


@message
class RankEnded:
    """A rank has ended.

    Attributes:
        rank: As in `Started`.
        local_rank: The same.
        status: As a shell has it.
        code: As `os.waitstatus_to_exitcode` has it.
        asked: The signal by which it was asked to end.
        why: Why it could not be started.
        verdict: Of its own launcher.
        pid: Of its wrapper.
    """

    rank: Rank
    local_rank: Rank
    status: Status
    code: ExitCode
    asked: Signal | None = None
    why: Line = ""
    verdict: Verdict | None = None
    pid: int = 0


# --- from a session to the head


@message
class Ready:
    """The session is there: what its node is called, and the version of its launcher."""

    node: Line
    launcher: Line


@message
class Taken:
    """This job has a session on that node already."""

    node: Line


@message
class Leaving:
    """Why the session ends."""

    why: Line


@message
class Gone:
    """The wrapper of a rank has hung up."""

    pid: int


@message
class Orphaned:
    """MPI's daemon has ended before its ranks."""

    daemon: int


@message
class NodeTold:
    """The launcher that serves on this node was told a signal."""

    number: Signal


# --- from the head to a session


@message
class Briefing:
    """What a node is told of itself and of the job; its session tells each rank.

    Attributes:
        node_rank: Of the node; None where the ranks have it from elsewhere.
        node_count: How many nodes there are.
        master_addr: Where rank 0 listens.
        master_port: The port.
        grace_s: Between SIGTERM and SIGKILL.
        colours: Whether the head writes to a terminal that shows them.
        variables: What ranks get of the head's environment, as it is; None for what they are not to have.
        cwd: Where they work; empty where mpirun was told.
        stdin: What rank 0 reads; None for what mpirun gives it.
    """

    node_rank: Rank | None = None
    node_count: int | None = None
    master_addr: Line | None = None
    master_port: int | None = None
    grace_s: Seconds = GRACE_S
    colours: bool = False
    variables: Variables = {}  # noqa: RUF012 - never changed
    cwd: Raw = ""
    stdin: Raw | None = None


@message
class PassOn:
    """Send the ranks a signal; ``ends``: it begins the end of the job."""

    number: Signal
    ends: bool = False


@message
class Release:
    """All ranks have ended, or are waited for no more: they need not be held. A rank is told the same."""


@message
class JobOver:
    """How the job has ended."""

    status: Status


FROM_RANK = (Attached, Started, Abandoned, RankEnded)
FROM_SESSION = (Ready, Taken, Leaving, Gone, Orphaned, NodeTold, Started, Abandoned, RankEnded)
FROM_HEAD = (Briefing, PassOn, Release, JobOver)
TO_RANK = (Briefing, Release)
