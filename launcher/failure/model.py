"""Types of a failure: how a process ended, the causes, and the verdict on a job that failed."""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.wire import message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.wire import Line

OWN_LIMIT = "the container's memory limit"
"""Beginning of the description of `out-of-memory` where the container's own limit was reached."""


@message
class Cause:
    """A reason why a process ended, or a circumstance of it.

    Attributes:
        code: Stable name, see docs/failures.md.
        what: Description with numbers; safe to show.
        fix: What to do.
        retryable: Whether the same command can succeed when started again; None if unknown.
        consequence: Whether it reports only a failure elsewhere, or one that is named already.
    """

    code: str
    what: str
    fix: str
    retryable: bool | None = None
    consequence: bool = False


@frozen
class ProcessExit:
    """What the agent knows about a process that has ended.

    Attributes:
        rank: Rank in the job.
        local_rank: Rank on this node.
        pid: Its process ID.
        code: Exit code as in `os.waitstatus_to_exitcode`: negative for signals.
        ended_ns: When the kernel reported its end, nanoseconds since 1970.
        stderr: The end of its stderr, at most `launcher.failure.stderr.STDERR_BYTES`.
        shared: The same with the lines of other ranks, if it has its stderr together with them.
        error_file: Path of its error file (TORCHELASTIC_ERROR_FILE), which need not exist.
        asked: The last signal that the launcher forwarded or sent to it before it ended.
        called: Its name if it has no rank: an agent that starts the processes, or a companion.
    """

    rank: int
    local_rank: int
    pid: int
    code: int
    ended_ns: int
    stderr: bytes = b""
    error_file: str | None = None
    asked: int | None = None
    called: str = ""
    shared: bytes = b""


@message
class End:
    """How a process ended, as text; ``after_ns`` counts from the first failure."""

    rank: int
    local_rank: int
    pid: int
    code: int
    status: str
    after_ns: int
    called: str = ""


@message
class RankGroup:
    """Ranks that were in one and the same place before they were stopped.

    Attributes:
        ranks: The ranks, e.g. ``0-2, 4-7``.
        doing: What they did, e.g. ``ranks 0-2, 4-7 wait in all_reduce (...) <- train.py:88``.
        differs: Whether the others probably waited for them.
        stack: The frames of one of them, innermost first, e.g. ``/job/train.py:88 step``.
    """

    ranks: Line
    doing: Line
    differs: bool = False
    stack: tuple[Line, ...] = ()


@message
class Verdict:
    """The verdict on a failure; every text in it is safe to show.

    Attributes:
        first: The process that failed first.
        ended_ns: When it ended, nanoseconds since 1970.
        started_ns: When this attempt was started, nanoseconds since 1970.
        host_name: Hostname of its node.
        node_rank: Rank of its node; None if unknown.
        world_size: Number of processes in the job; None if unknown.
        attempt: 0 for the first attempt, plus one for each restart, also one by torchrun's agent.
        told: The signal that told the launcher to stop before any process had failed.
        causes: The causes, the most certain first, consequences last.
        retryable: Whether the same command can succeed when started again; None if unknown.
        exception: The exception that Python raised last; empty if unknown.
        traceback: Lines of its traceback.
        traceback_from: ``"error file"``, ``"stderr"``, ``"faulthandler"`` or None.
        stderr: The other last lines of its stderr, oldest first.
        note: Why its error file could not be used, and which faults the launcher had itself.
        others: How the other processes ended.
        leftovers: Descriptions of processes that survived SIGKILL.
        also: Descriptions of what else failed of its own accord, on this node or on others.
        evidence: What the other ranks did before they were stopped, over all nodes.
    """

    first: End
    ended_ns: int
    started_ns: int
    host_name: str
    node_rank: int | None
    world_size: int | None
    attempt: int
    told: str | None
    causes: tuple[Cause, ...]
    retryable: bool | None
    exception: str
    traceback: tuple[str, ...]
    traceback_from: str | None
    stderr: tuple[str, ...]
    note: str
    others: tuple[End, ...]
    leftovers: tuple[str, ...]
    also: tuple[str, ...]
    evidence: tuple[RankGroup, ...]

    @property
    def lasted_ns(self) -> int:
        """Nanoseconds from the start to its end; 0 if the clocks of two nodes make it negative."""
        return max(0, self.ended_ns - self.started_ns)

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        return self.headline + (f": {self.causes[0].what}" if self.causes else "")

    @property
    def headline(self) -> str:
        """What failed first, where and how; without the cause."""
        place = f" on {self.host_name}" if self.host_name else ""
        return f"{self.first.called or f'rank {self.first.rank}'}{place} {self.first.status}"
