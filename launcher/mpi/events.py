"""What ends a job that mpirun has started, as events of the job; and whether mpirun's own end explains them.

The head's clock serves all nodes: an event has the time at which the head received it.
"""

from __future__ import annotations

import time

from launcher.core.errors import EXIT_NOT_READY, EXIT_UNTRUSTED
from launcher.core.signal import signal
from launcher.failure.arbiter import FOLLOW_LOSS, KILLED, MISPLACED, ORPHANED, RANK, Event
from launcher.failure.model import Cause
from launcher.failure.verdict import describe_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.mpi.nodes import Node
    from launcher.mpi.protocol import RankEnded

UNKNOWING = (0, 9, 137, 205, 255)
"""Exit statuses of an mpirun that only knows that a rank was killed or a node was lost."""
FOLLOWS_NS = 1_000_000_000
"""Nanoseconds by which an event may precede the reported end of a killed mpirun that caused it.

The kernel closes the descriptors of mpirun before it reports the end to us: its daemons can react earlier.
"""
WATCH_FOR_KILLS = "check that node for the kernel's OOM killer (dmesg) and for anything that kills processes"


def make_rank_event(node: Node, end: RankEnded) -> Event:
    """Return the event that a rank has failed."""
    asked = end.asked is not None and (
        end.code == 0 or end.asked in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
    )
    # Killed together with its wrapper, which could not report anything
    is_silent = end.code == -signal.SIGKILL and end.verdict is None and not (end.why or asked)
    causes = () if end.verdict is None else end.verdict.causes
    facts = {"rank": end.rank, "local_rank": end.local_rank, "pid": end.pid, "code": end.code}
    return Event(
        node.index,
        KILLED if is_silent else RANK,
        time.monotonic_ns(),
        end.status,
        asked=asked,
        follows=bool(causes) and all(one.consequence for one in causes),
        what=f"rank {end.rank} on {node.host} {describe_end(end.code, None, None, heard=False)}",
        cause=None if end.verdict is not None else find_cause(end.why),
        facts=facts if end.verdict is None else {**facts, "pid": end.verdict.first.pid},
    )


def find_cause(why: str) -> Cause:
    """Return the cause of a rank's end on which there is no verdict; ``why``: why it could not be started."""
    if why:
        return Cause("rank-refused", why, "its own error message has the fix", retryable=False)
    return Cause(KILLED, "its launcher ended without a report, as after SIGKILL", WATCH_FOR_KILLS)


def make_orphaned(node: Node, daemon: int) -> Event:
    """Return the event that mpirun's daemon on a node has ended before the ranks there."""
    what = f"mpirun's daemon on {node.name_in_full}, pid {daemon}, has ended before its ranks"
    cause = Cause(ORPHANED, what, WATCH_FOR_KILLS, retryable=True)
    return Event(node.index, ORPHANED, time.monotonic_ns(), EXIT_NOT_READY, what=what, cause=cause)


def make_misplaced(what: str) -> Event:
    """Return the event that mpirun has not started the requested ranks."""
    fix = "check mpirun's host options (launcher plan) and its configuration files"
    cause = Cause(MISPLACED, what, fix, retryable=False)
    return Event(0, MISPLACED, time.monotonic_ns(), EXIT_UNTRUSTED, what=what, cause=cause, called="mpirun")


def explains(code: int, status: int, ended_ns: int, event: Event) -> bool:
    """Whether the end of mpirun explains an event, rather than follows from it.

    Args:
        code: mpirun's exit code: 0 to 255, or -n for signal n; we have not asked it to end.
        status: The same as a shell reports it.
        ended_ns: When it ended, monotonic nanoseconds.
        event: The event of a rank or a node.
    """
    may_follow = event.kind in FOLLOW_LOSS
    if code < 0:
        return event.at_ns > ended_ns - (FOLLOWS_NS if may_follow else 0)
    # MPI_Abort: mpirun has its status. Ranks that were asked to end after that do not tell the cause.
    return status not in UNKNOWING and (may_follow or (event.asked and event.at_ns > ended_ns))
