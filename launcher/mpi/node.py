"""The head's record of a node: how to reach it, what it has reported, and why it is not ready."""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.process.signals import send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.channel.connection import Connection

NO_ANSWER, BEFORE = "no answer yet", " (before: "
NAMED_MAX = 20
"""Maximum number of nodes that a message names for one reason."""


@frozen
class Line:
    """How to reach a node.

    Attributes:
        host: Its name or address.
        argv: The command that runs the session there.
    """

    host: str
    argv: tuple[str, ...]


class Node:
    """One node of the job.

    Attributes:
        index: Its node rank.
        host: Its name or address in the host list.
        line: How to reach it.
        is_ready: Whether its session has reported that it has started, and still runs.
        is_clear: Whether nothing of an attempt before is left there.
        is_gone: Whether its session was lost, and has not been replaced.
        reason: Why it is not ready, as far as known.
        name: Its own host name.
        last_words: Why its session ends, if that is known.
        started: Ranks that have reported their start, by the PID of their wrapper.
        ended: PIDs of those that have ended.
        pid: PID of the process that holds its session; None without one.
        retry_at: When to try again to reach it (monotonic seconds); None for not.
        connection: The connection to its session, while there is one.
        errors: Last part of what its session has written to standard error.
        stderr: Descriptor from which that is read; -1 without a session.
    """

    def __init__(self, index: int, line: Line) -> None:
        self.index, self.host, self.line = index, line.host, line
        self.is_ready = self.is_clear = self.is_gone = False
        self.reason = NO_ANSWER
        self.forget_ranks()
        self.pid: int | None = None
        self.retry_at: float | None = 0.0
        self.connection: Connection | None = None
        self.errors = b""
        self.why_ending = self.name = ""
        self.stderr = -1

    def forget_ranks(self) -> None:
        """Forget the ranks of the last attempt."""
        self.started: dict[int, int] = {}
        self.ended: set[int] = set()

    @property
    def name_in_full(self) -> str:
        """Its rank and its host, e.g. ``node 1 (10.0.0.5)``."""
        return f"node {self.index} ({self.host})"

    @property
    def running(self) -> int:
        """Number of its running ranks."""
        return len(self.started) - len(self.ended)

    def runs(self, pid: int) -> bool:
        """Whether the rank whose wrapper has this PID has started here and not ended."""
        return pid in self.started and pid not in self.ended

    def send_signal(self, number: int) -> None:
        """Send a signal to the process that holds its session, if there is one."""
        if self.pid is not None:
            send(self.pid, number)


def join_reasons(old: str, new: str) -> str:
    """Return why a node does not answer, with the reason before.

    The earlier reason can be the cause: a node that refuses our key also gives up after a while.
    """
    before = old.partition(BEFORE)[0]
    if before in ("", NO_ANSWER):
        return new
    return old if new == before else f"{new}{BEFORE}{before})"


def describe_nodes(nodes: Sequence[Node]) -> str:
    """Return the nodes with the reason of each; nodes with the same reason are grouped."""
    groups: dict[str, list[str]] = {}
    for node in nodes:
        groups.setdefault(node.reason, []).append(node.host)
    parts = []
    for reason, hosts in groups.items():
        more = f" and {len(hosts) - NAMED_MAX} more" if len(hosts) > NAMED_MAX else ""
        parts.append(f"{', '.join(hosts[:NAMED_MAX])}{more}: {reason}")
    return "; ".join(parts)
