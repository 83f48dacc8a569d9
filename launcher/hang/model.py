"""What is known about the ranks of a job that hangs: stacks, flight recorders, and messages about them."""

from __future__ import annotations

from launcher.core.frozen import frozen, replace
from launcher.core.wire import message
from launcher.failure.model import RankGroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.wire import Fact, Line, Rank, Raw, Seconds


# --- stacks


@frozen
class Frame:
    """One frame of a stack.

    Attributes:
        file: Its file; of a C function the library.
        line: Its line; 0 for a C function.
        function: Its name.
    """

    file: str
    line: int
    function: str

    def render(self) -> str:
        """Return the frame as a line of a stack: as Python writes it, or e.g. ``recv (libc.so.6)``."""
        if self.line:
            return f'File "{self.file}", line {self.line}, in {self.function}'
        return f"{self.function} ({self.file.rpartition('/')[2]})"


@frozen
class Thread:
    """One thread of a process, its innermost frame first."""

    name: str
    frames: tuple[Frame, ...] = ()

    def render(self) -> list[str]:
        """Return its stack as lines."""
        return [f"    {frame.render()}" for frame in self.frames] or ["    no Python frame"]


@frozen
class Answer:
    """Facts about one process of a job.

    Attributes:
        rank: Rank of the started process that this one descends from (or is).
        pid: Its PID.
        command: Its command line, fit for display.
        state: R, S, D, T ... as ps shows it.
        call: System call in which its main thread waits; ``"running"`` if in none, empty if unknown.
        kernel: Kernel function in which it waits; empty if unknown.
        folder: Its working directory; empty if unknown.
        is_python: Whether it is a Python interpreter.
        threads: Its Python threads, the main thread first; empty if unknown.
        means: Origin of the threads: ``"faulthandler"`` or ``"py-spy"``.
        why: Why there are no threads; with threads, why they have no C functions.
    """

    rank: int
    pid: int
    command: str = ""
    state: str = ""
    call: str = ""
    kernel: str = ""
    folder: str = ""
    is_python: bool = False
    threads: tuple[Thread, ...] = ()
    means: str = ""
    why: str = ""

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Python frames of the main thread, innermost first."""
        return tuple(frame for frame in self.threads[0].frames if frame.line) if self.threads else ()

    @property
    def program(self) -> str:
        """Name of its program."""
        return self.command.partition(" ")[0].rpartition("/")[2]

    def with_threads(self, threads: tuple[Thread, ...], means: str) -> Answer:
        """Return a copy with stacks."""
        return replace(self, threads=threads, means=means, why="" if threads else f"{means}: no thread")

    def without_threads(self, why: str) -> Answer:
        """Return a copy with one more reason why there are no stacks, or no C functions in them."""
        return replace(self, why="; ".join(filter(None, (self.why, why))))


# --- flight recorders


@message
class Collective:
    """One collective, or one send or receive, of a rank.

    Attributes:
        number: Its number in its process group, counted from 1; sends and receives have their own.
        name: Name without the backend: ``"all_reduce"``, ``"send 0->1"``.
        is_done: Whether it has completed.
        is_p2p: Whether it is a send or a receive.
        sizes: Sizes of the input, else of the output: ``"[[1024, 1024]]"``.
        dtypes: Types of the same: ``"Float"``.
        size_bytes: Bytes of the same; -1 if unknown.
        age_s: Seconds since it was called, at the time of the dump.
        where: The script's line that called it: ``"train.py:88 step"``; empty if unknown.
    """

    number: int
    name: Fact
    is_done: bool = False
    is_p2p: bool = False
    sizes: Fact = ""
    dtypes: Fact = ""
    size_bytes: int = -1
    age_s: Seconds = 0.0
    where: Fact = ""


@message
class GroupRecord:
    """What a rank has called in one process group.

    Attributes:
        name: torch's name of the group, the same on all ranks: ``"0"``.
        description: What it is for: ``"default_pg"``, ``"mesh_dp"``.
        ranks: Its ranks in the job, as ranges: ``"0-7"``; empty if unknown.
        enqueued: Number of the last collective that was called; -1 if unknown.
        completed: Number of the last one that has completed; -1 if unknown.
        recent: The first that has not completed, and some around it; else the last ones.
    """

    name: Fact
    description: Fact = ""
    ranks: Line = ""
    enqueued: int = -1
    completed: int = -1
    recent: tuple[Collective, ...] = ()


@message
class RankRecord:
    """The flight recorder of one rank, or why there is none.

    Attributes:
        rank: The rank.
        backend: ``"nccl"`` or ``"gloo"``; empty if nothing was recorded.
        groups: Its process groups.
        missing: Why there is no record; empty if there is one.
    """

    rank: Rank
    backend: Fact = ""
    groups: tuple[GroupRecord, ...] = ()
    missing: Line = ""


@message
class ReadDump:
    """What was read of a dump.

    Attributes:
        record: Its facts, or why there are none.
        path: Its copy; empty without one.
        left: Why there is no copy; empty if there is one, or if none is wanted.
    """

    record: RankRecord
    path: Raw = ""
    left: Raw = ""


# --- messages between the nodes


@message
class Quiet:
    """Nothing has happened on this node for the time that makes a stall, or something has happened again.

    Attributes:
        what: What was seen, e.g. ``no output for 10 min``; empty if something has happened again.
        ends: Whether a stall ends the job.
        attempt: Attempt of the job, 0 for the first.
        more_s: Seconds more for which that is no stall as long as no node has made progress; 0 if this one
            has, and without such a limit.
    """

    what: Line = ""
    ends: bool = False
    attempt: int = 0
    more_s: Seconds = 0.0


@message
class Look:
    """The job hangs: report what your ranks do."""

    number: int


@message
class Reached:
    """Progress of a rank, e.g. its step, as the pattern of the user finds it."""

    rank: Rank
    value: Seconds


@message
class Looked:
    """What the ranks of this node do, before they are stopped or because the job hangs.

    Attributes:
        stacks: Their stacks, see `launcher.hang.packing`.
        number: Number of the `Look`; 0 before they are stopped.
        attempt: Attempt of the job, 0 for the first.
        progress: Progress of its ranks, if the user named a pattern.
        records: Their flight recorders, those that PyTorch has.
    """

    stacks: object
    number: int = 0
    attempt: int = 0
    progress: tuple[Reached, ...] = ()
    records: tuple[RankRecord, ...] = ()


@message
class Hung:
    """The report of a stall: one sentence, and what each rank does."""

    headline: Line
    lines: tuple[Line, ...]


@message
class Seen:
    """What the ranks of all nodes did before they were stopped.

    Attributes:
        groups: The ranks by place.
        attempt: Attempt of the job, 0 for the first.
    """

    groups: tuple[RankGroup, ...]
    attempt: int = 0
