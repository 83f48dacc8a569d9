"""The types of a failure: how a process ended, why, and all that is said about a job that failed."""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.messages import message


@message
class Cause:
    """One reason why a process ended, or one thing that must be known about it.

    Attributes:
        code: Stable name, see docs/failures.md.
        what: In words, with numbers; safe to show.
        fix: What to do.
        retryable: Whether the same command can succeed when started again; None if unknown.
        consequence: It only tells of a failure elsewhere, or of one that is named already.
    """

    code: str
    what: str
    fix: str
    retryable: bool | None = None
    consequence: bool = False


@frozen
class ProcessExit:
    """What the supervisor knows about a process that has ended.

    Attributes:
        rank: Rank in the job.
        local_rank: Rank on this node.
        pid: Its process id.
        code: As `os.waitstatus_to_exitcode` has it: negative for signals.
        ended_ns: When the kernel told of its end, nanoseconds since 1970.
        stderr: The end of its stderr, at most `last_words.STDERR_BYTES`.
        error_file: Path of its error file (TORCHELASTIC_ERROR_FILE), which need not exist.
        asked: The last signal that the launcher passed on or sent to it before it ended.
        called: What it is called if it has no rank: an agent that starts the processes, or a companion.
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


@message
class End:
    """How a process ended, in words; ``after_ns`` counts from the first failure."""

    rank: int
    local_rank: int
    pid: int
    code: int
    status: str
    after_ns: int
    called: str = ""


@message
class Verdict:
    """All that is said about a failure; every text in it is safe to show.

    Attributes:
        first: The process that failed first.
        ended_ns: When it ended, nanoseconds since 1970.
        started_ns: When this attempt was started.
        host_name: This node.
        node_rank: Its index, None if unknown.
        world_size: Processes in the job, None if unknown.
        attempt: 0 for the first, one more for each restart.
        told: The signal by which the launcher was told to stop before anything had failed.
        causes: Why, the most certain first, consequences last.
        retryable: Whether the same command can succeed when started again; None if unknown.
        exception: What Python raised last, empty if unknown.
        traceback: Its lines.
        traceback_from: ``"error file"``, ``"stderr"`` or None.
        stderr: The other last lines of its stderr, oldest first.
        note: Why its error file could not be used, and what of the launcher itself failed meanwhile.
        others: The other processes, as they ended.
        leftovers: What could not be ended.
        also: What else has failed of its own accord, on this node or on others, in words.
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

    @property
    def lasted_ns(self) -> int:
        """From the start to its end; 0 where the clocks of two nodes make it less."""
        return max(0, self.ended_ns - self.started_ns)

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        cause = f": {self.causes[0].what}" if self.causes else ""
        return (
            f"{self.first.called or f'rank {self.first.rank}'} on {self.host_name} {self.first.status}{cause}"
        )
