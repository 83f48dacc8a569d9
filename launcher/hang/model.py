"""Flight recorder facts: one rank's collective calls, as messages between nodes."""

from __future__ import annotations

from launcher.core.wire import message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.wire import Fact, Line, Rank, Seconds


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


def parse_ranges(text: str, limit: int = 1 << 16) -> frozenset[int]:
    """Return the ranks of ranges; empty if they are none, or more than ``limit``."""
    found: set[int] = set()
    for part in filter(None, text.split(", ")):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(part) > 20:
            return frozenset()
        begin, end = int(first), int(last or first)
        if not begin <= end < begin + limit or len(found) + end - begin > limit:
            return frozenset()
        found.update(range(begin, end + 1))
    return frozenset(found)
