"""A node of a job as the head knows it: how it is reached, what it has said, why it is not ready."""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.process.signals import send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.channel.connection import Connection
    from launcher.mpi.link import Link

NO_ANSWER, BEFORE = "no answer yet", " (before: "
NAMED_MAX = 20
"""How many nodes are named in one message."""


@frozen
class Line:
    """How one node is reached: its name, the command that runs the session there, the connection for it."""

    host: str
    argv: tuple[str, ...]
    link: tuple[str, ...] = ()


class Node:
    """One node of the job.

    Attributes:
        index: Its node rank.
        host: As the host list has it.
        is_ready: Its session has said so, and is there.
        is_gone: It was ready, and is no more.
        reason: Why it is not ready, as far as known.
        name: What it calls itself.
        last_words: Why its session ends, in its own words.
        started: Ranks that have said that they start, by the pid of their shim.
        ended: Those of them that have ended.
        connection: To its session, while there is one.
    """

    def __init__(self, index: int, line: Line) -> None:
        self.index, self.host, self.line = index, line.host, line
        self.link: Link | None = None
        self.is_ready = self.is_gone = False
        self.reason = NO_ANSWER
        self.started: dict[int, int] = {}
        self.ended: set[int] = set()
        self.pid: int | None = None
        self.retry_at: float | None = 0.0
        self.connection: Connection | None = None
        self.errors = b""
        self.last_words = self.name = ""
        self.stderr = -1

    @property
    def running(self) -> int:
        """How many of its ranks run."""
        return len(self.started) - len(self.ended)

    def runs(self, pid: int) -> bool:
        """Whether a rank has started here and not ended, by the pid of its wrapper."""
        return pid in self.started and pid not in self.ended

    def send_signal(self, number: int) -> None:
        """Send a signal to what holds its session, if that is there."""
        if self.pid is not None:
            send(self.pid, number)


def join_reasons(old: str, new: str) -> str:
    """Return why a node does not answer, with what it was before: one that refuses our key gives up, too."""
    before = old.partition(BEFORE)[0]
    if before in ("", NO_ANSWER):
        return new
    return old if new == before else f"{new}{BEFORE}{before})"


def describe_nodes(nodes: Sequence[Node]) -> str:
    """Return the nodes with the reason of each, the same reason once."""
    groups: dict[str, list[str]] = {}
    for node in nodes:
        groups.setdefault(node.reason, []).append(node.host)
    parts = []
    for reason, hosts in groups.items():
        more = f" and {len(hosts) - NAMED_MAX} more" if len(hosts) > NAMED_MAX else ""
        parts.append(f"{', '.join(hosts[:NAMED_MAX])}{more}: {reason}")
    return "; ".join(parts)
