"""What a node says of failures, as messages; and what node 0 says, read: pure."""

from __future__ import annotations

import time

from launcher.channel.frames import text
from launcher.cluster.ending import LOST_FIX
from launcher.cluster.verdict import First, read_own
from launcher.core.errors import EXIT_NOT_READY, EnvironmentUntrusted, LauncherError, NotReady, Problem
from launcher.core.messages import render
from launcher.core.redact import printable, redact
from launcher.core.signal import signal
from launcher.failure import transfer
from launcher.failure.arbiter import LOST, Event
from launcher.failure.model import Cause, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.cluster.settings import Shape
    from launcher.process.spawn import Process

Message = dict[str, object]

LINES_MAX = 200
WORDS_LENGTH = 400
PROBLEM = ("code", "what", "where", "fix")


def tell_event(kind: str, status: int, what: str, more: Message, add_ns: int) -> Message:
    """Return that something ends the job.

    Args:
        kind: See `launcher.failure.arbiter`.
        status: What it makes the job's status.
        what: In words.
        more: What belongs to its kind.
        add_ns: From our monotonic clock to node 0's.
    """
    return {
        "is": "failed",
        "kind": kind,
        "at_ns": time.monotonic_ns() + add_ns,
        "status": status,
        "what": printable(redact(what))[:WORDS_LENGTH],
        **more,
    }


def describe_process(first: Process) -> Message:
    """Return what belongs to the failure of a process."""
    return {
        "rank": first.child.rank,
        "local_rank": first.child.local_rank,
        "pid": first.pid,
        "code": first.code or 0,
        "called": first.child.called,
        "asked": first.passed_on in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL),
    }


def lose_hub(shape: Shape) -> tuple[str, Message]:
    """Return that node 0 is gone, in words, and how the job ends by that: nobody is left to decide it."""
    what = f"node 0 ({shape.address}) is lost: nothing was heard of it for {shape.lost_after_s:g} s"
    cause = Cause("node-lost", what, LOST_FIX, retryable=True)
    event = Event(0, LOST, time.monotonic_ns(), EXIT_NOT_READY, what=what, cause=cause)
    first = First(event, shape.address, int(shape.lost_after_s * 1e9), time.time_ns())
    return what, {"is": "over", "status": EXIT_NOT_READY, "first": render(first)}


def read_refusal(message: Message) -> tuple[list[str], LauncherError]:
    """Return the table of nodes that differ, if there is one, and why the job does not start."""
    lines = message.get("lines")
    shown = (lines if isinstance(lines, list) else [])[:LINES_MAX]
    table = [printable(redact(line)) for line in shown if isinstance(line, str)]
    problem = Problem(*(printable(redact(text(message, name))) for name in PROBLEM))
    is_late = message.get("status") == EXIT_NOT_READY
    return table, NotReady(problem) if is_late else EnvironmentUntrusted(problem)


def read_status(over: Message) -> int:
    """Return the job's status."""
    status = over.get("status")
    return status & 0xFF if isinstance(status, int) and not isinstance(status, bool) else EXIT_NOT_READY


def read_verdict(over: Message, own: Verdict | None, shape: Shape, started_ns: int) -> Verdict | None:
    """Return the verdict on the whole job; None where nothing has failed.

    Args:
        over: What node 0 has told in the end.
        own: On our own processes, where it has none and still says that something has failed.
        shape: The job.
        started_ns: When our processes were started, nanoseconds since 1970.
    """
    first = over.get("first")
    verdict = transfer.parse(over.get("record"))
    if verdict is None and isinstance(first, dict):
        verdict = read_own(first, shape.world_size, started_ns)
    if verdict is None and over.get("status"):
        verdict = own
    return verdict
