"""Messages about the ranks of an mpirun job between them, their nodes and the head, one frozen type each.

All else that nodes and the head send is in `launcher.cluster.messages`.

Received messages are checked by the types of their fields (`launcher.core.wire`). An invalid message ends
its connection, and nothing else.
"""

from __future__ import annotations

from launcher.core.supervision import GRACE_S
from launcher.core.wire import message
from launcher.failure.model import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.wire import ExitCode, Line, Rank, Raw, Seconds, Signal, Status, Variables

# --- from a rank to the launcher of its node, which passes it on to the head with the rank's pid


@message
class Attached:
    """The wrapper of a rank has connected, and waits for its `Briefing`."""


@message
class Started:
    """A rank is about to start.

    Attributes:
        rank: Its rank according to mpirun; -1 if mpirun does not tell.
        size: Number of ranks, likewise.
        local_rank: Its local rank, likewise.
        pid: PID of its wrapper, added by the launcher.
    """

    rank: Rank
    size: Rank
    local_rank: Rank
    pid: int = 0


@message
class Abandoned:
    """mpirun has ended the placeholder of a rank; the rank itself still runs."""

    pid: int = 0


@message
class RankEnded:
    """A rank has ended.

    Attributes:
        rank: As in `Started`.
        local_rank: As in `Started`.
        status: Exit status as a shell reports it.
        code: Exit code as `os.waitstatus_to_exitcode` returns it.
        asked: The signal that was passed on to it last; None if none was.
        why: Reason why it could not be started; empty if it was.
        verdict: Verdict of its wrapper; None if it has none.
        pid: PID of its wrapper, added by the launcher.
    """

    rank: Rank
    local_rank: Rank
    status: Status
    code: ExitCode
    asked: Signal | None = None
    why: Line = ""
    verdict: Verdict | None = None
    pid: int = 0


# --- from a node to the head, which is node 0 itself


@message
class Gone:
    """The wrapper of a rank has closed its connection."""

    pid: int


@message
class Orphaned:
    """MPI's daemon has ended before its ranks."""

    daemon: int


# --- from the head to a node


@message
class Variable:
    """A variable of the head for the ranks, unchanged; None for one that they must not have.

    Each is sent before the `Briefing`, because all together may be longer than a frame.
    """

    name: Raw
    value: Raw | None


@message
class Briefing:
    """Facts about an attempt and one node, before its start. The node passes them on to each rank.

    Attributes:
        job: Name of the job, by which ranks find the launcher of their node and leftovers are recognized.
        node_rank: Rank of the node; None if the ranks get it elsewhere. So for the next three.
        node_count: Number of nodes.
        master_addr: Address at which rank 0 listens.
        master_port: Its port.
        grace_s: Seconds between SIGTERM and SIGKILL.
        colours: Whether the head writes to a terminal that shows colours.
        variables: Variables of the head for the ranks, unchanged; None for one that they must not have.
        cwd: Working directory of the ranks; empty if mpirun was told one.
        stdin: Path that rank 0 reads as standard input; None for what mpirun gives it.
        attempt: 0 for the first attempt, plus one for each restart.
    """

    job: Raw = ""
    node_rank: Rank | None = None
    node_count: int | None = None
    master_addr: Line | None = None
    master_port: int | None = None
    grace_s: Seconds = GRACE_S
    colours: bool = False
    variables: Variables = {}  # noqa: RUF012 - never changed
    cwd: Raw = ""
    stdin: Raw | None = None
    attempt: int = 0


@message
class PassOn:
    """Send a signal to the ranks.

    Attributes:
        number: The signal.
        ends: Whether it begins the end of the job.
    """

    number: Signal
    ends: bool = False


@message
class Release:
    """All ranks have ended or are no longer awaited: their wrappers may exit. Also sent to ranks."""


FROM_RANK = (Attached, Started, Abandoned, RankEnded)
FROM_NODE = (Gone, Orphaned, Started, Abandoned, RankEnded)
FROM_HEAD = (Variable, Briefing, PassOn, Release)
TO_RANK = (Briefing, Release)
