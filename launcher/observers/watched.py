"""The processes whose meeting is watched: those that we have started, or those of an agent that we have.

An agent is told apart from its workers by their environment: each of them has a RANK and a LOCAL_RANK of
its own, and the agent's other children have what the agent has.
"""

from __future__ import annotations

import re
import time

from launcher.machine.process import read_environ
from launcher.process.descendants import find_children

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.process.spawn import Process

IDENTITY = ("RANK", "LOCAL_RANK")
NAMED_PORT = re.compile(r"(?:^|:)(\d{4,5})(?!\d)")
"""A port in the value of a variable: of MASTER_PORT, and behind the host of a coordinator."""


class Watched:
    """One process of which it is to be seen whether it meets another one.

    Attributes:
        began: When it was first there; this and the others are monotonic seconds.
        seen: When it was last there.
        ended: When it ended, as far as the kernel has told us.
        changed: When it was last seen to have loaded a library: it may have been about to begin.
        opened: When it was last seen with a new socket.
        listens: It was seen to wait for others at a port that its environment names.
        ports: All ports that its environment names.
    """

    def __init__(self, pid: int, rank: int, environ: Mapping[str, str], began: float) -> None:
        self.pid, self.rank = pid, rank
        self.began = self.seen = self.changed = self.opened = began
        self.ended: float | None = None
        self.listens = False
        self.ports = {int(port) for value in environ.values() for port in NAMED_PORT.findall(value)}

    @property
    def end(self) -> float:
        """When it ended, or was last seen."""
        return self.seen if self.ended is None else self.ended


class Children:
    """The processes that we have started, but for companions."""

    of_agent = False

    def __init__(self, processes: Sequence[Process], began: float) -> None:
        self._processes = [one for one in processes if not one.child.companion]
        self.members = [Watched(one.pid, one.child.rank, one.child.environ, began) for one in self._processes]
        self.running = list(self.members)

    def update(self, now: float) -> bool:
        """See which are still there; whether others have taken their place, which never happens here."""
        self.running = []
        for process, member in zip(self._processes, self.members, strict=True):
            if process.code is None:
                member.seen = now
                self.running.append(member)
            elif member.ended is None:
                member.ended = now - (time.time_ns() - process.ended_ns) / 1e9
        return False


class Workers:
    """The processes that an agent of ours has started, below it at whatever depth."""

    of_agent = True

    def __init__(self, agent: Process) -> None:
        self._agent = agent
        self._own = tuple(agent.child.environ.get(name) for name in IDENTITY)
        self.members: list[Watched] = []
        self.running: list[Watched] = []

    def update(self, now: float) -> bool:
        """See which are there; whether all are others than before: an agent starts all of them again."""
        known = {one.pid: one for one in self.members}
        found = []
        level = [] if self._agent.code is not None else find_children(self._agent.pid)
        while level:
            below: list[int] = []
            for pid in level:
                member = known.get(pid) or self._recognize(pid, now)
                if member is None:
                    below += find_children(pid)
                else:
                    member.seen = now
                    found.append(member)
            level = below
        self.running = found
        is_new = bool(found) and not any(one.pid in known for one in found)
        if is_new:
            self.members = []
        self.members = sorted({*self.members, *found}, key=lambda one: one.rank)
        return is_new

    def _recognize(self, pid: int, now: float) -> Watched | None:
        """Return a worker; None for what has no rank of its own, or not yet."""
        environ = read_environ(pid)
        rank, local_rank = (environ.get(name) for name in IDENTITY)
        if rank is None or local_rank is None or (rank, local_rank) == self._own or not rank.isdecimal():
            return None
        return Watched(pid, int(rank), environ, now)
