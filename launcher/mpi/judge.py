"""Makes the verdict on the whole job from the reports that the head has received."""

from __future__ import annotations

import os

from launcher.core.frozen import replace
from launcher.core.redact import printable
from launcher.failure.arbiter import NODE_LOST
from launcher.failure.model import Cause, End, ProcessExit, Verdict
from launcher.failure.verdict import describe_end, make_verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.mpi.events import MpiEvent
    from launcher.mpi.messages import RankEnded


def judge(
    event: MpiEvent,
    ends: Mapping[int, tuple[MpiEvent, int]],
    *,
    world_size: int,
    attempt: int,
    ended_ns: int,
    started_ns: int,
    told: str | None,
) -> Verdict:
    """Return the verdict on the whole job.

    Args:
        event: The event that came first.
        ends: How each rank has ended, and its exit code as `os.waitstatus_to_exitcode` returns it; by rank.
        world_size: Number of requested ranks.
        attempt: Number of the attempt, 0 for the first.
        ended_ns: When the event came, nanoseconds since 1970.
        started_ns: When mpirun was started, nanoseconds since 1970.
        told: Name of the signal by which the head was told to end; None if it was not.
    """
    others = tuple(
        _end(other, code, event.at_ns, told)
        for _, (other, code) in sorted(ends.items())
        if other is not event
    )
    verdict = read_reported(event, ended_ns) or make_own(event, world_size, attempt, ended_ns, started_ns)
    return Verdict(**{**vars(verdict), "others": others, "started_ns": started_ns, "told": told})


def read_reported(event: MpiEvent, ended_ns: int) -> Verdict | None:
    """Return the verdict that the rank's wrapper has reported, with the head's time; None without one."""
    verdict = None if event.end is None else event.end.verdict
    if event.node is None or verdict is None:
        return None
    return replace(verdict, ended_ns=ended_ns, node_rank=event.node.index)


def make_own(event: MpiEvent, world_size: int, attempt: int, ended_ns: int, started_ns: int) -> Verdict:
    """Return the head's own verdict on an event for which no rank has reported one."""
    end, node = event.end, event.node
    called = "" if end is not None else (f"node {node.index}" if node else "mpirun")
    death = ProcessExit(
        rank=0 if end is None else end.rank,
        local_rank=0,
        pid=0 if end is None else end.pid,
        code=event.status if end is None else end.code,
        ended_ns=ended_ns,
        called=called,
    )
    verdict = make_verdict(
        death,
        [],
        host_name=node.host if node else os.uname().nodename,
        node_rank=node.index if node else 0,
        world_size=world_size,
        attempt=attempt,
        started_ns=started_ns,
        told=None,
        causes=[event.cause or _why(end)],
    )
    if not called:
        return verdict
    first = End(**{**vars(verdict.first), "status": _describe_loss(event)})
    return Verdict(**{**vars(verdict), "first": first})


def _describe_loss(event: MpiEvent) -> str:
    """Return what happened to a node or to mpirun, as the predicate of a sentence about it."""
    if event.node is None:
        return "did not start the requested ranks"
    return "is lost" if event.code == NODE_LOST else "cannot go on"


def _end(event: MpiEvent, code: int, zero_ns: int, told: str | None) -> End:
    end = event.end
    words = printable(describe_end(code, None if end is None else end.asked, told, heard=False))
    rank, local_rank, pid = (0, 0, 0) if end is None else (end.rank, end.local_rank, end.pid)
    return End(rank, local_rank, pid, code, words, event.at_ns - zero_ns)


def _why(end: RankEnded | None) -> Cause:
    if end is not None and end.why:
        return Cause("rank-refused", end.why, "its own error message has the fix", retryable=False)
    return Cause(
        "rank-killed",
        "its launcher ended without a report, as after SIGKILL",
        "check that node for the kernel's OOM killer (dmesg) and for anything that kills processes",
    )
