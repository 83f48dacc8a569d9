"""All processes of this machine in one pass over /proc: who descends from whom, CPU time, memory.

One small file for each process. The list of a process's children would be a file for each of its threads.

Source: proc(5), /proc/PID/stat.
"""

from __future__ import annotations

import os

from launcher.core.frozen import frozen
from launcher.stacks.look import read_file

TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATE, _PARENT, _OWN_TIMES, _RESIDENT = 0, 1, slice(11, 15), 21
"""Fields 3, 4, 14 to 17 and 24, counted from the state on; the last two times are those of dead children."""
WORKERS_MAX = 4096
ENVIRON_NAMES = (b"RANK", b"LOCAL_RANK", b"CUDA_VISIBLE_DEVICES")


@frozen
class Seen:
    """One process.

    Attributes:
        parent: Pid of its parent.
        state: R, S, D, T, Z ... as ps shows it.
        cpu_s: CPU time of it, and of children of it that have ended.
        memory_bytes: Resident; what it shares with others counts for each.
    """

    parent: int
    state: str
    cpu_s: float
    memory_bytes: int


@frozen
class Family:
    """A process and its descendants together."""

    state: str
    cpu_s: float
    memory_bytes: int
    count: int


@frozen
class Worker:
    """A rank that an agent has started.

    Attributes:
        visible: Its CUDA_VISIBLE_DEVICES.
    """

    rank: int
    local_rank: int
    pid: int
    visible: str | None = None


class Table:
    """All processes at one moment."""

    def __init__(self, seen: dict[int, Seen]) -> None:
        self.seen = seen
        self._children: dict[int, list[int]] = {}
        for pid, one in seen.items():
            self._children.setdefault(one.parent, []).append(pid)

    def children(self, pid: int) -> list[int]:
        """Return the children of a process, the oldest pid first."""
        return sorted(self._children.get(pid, ()))

    def family(self, pid: int, but: list[int] | None = None) -> Family:
        """Return a process and its descendants, without some and theirs."""
        left, todo, members = set(but or ()), [pid], []
        while todo:
            one = todo.pop()
            if one in left or one not in self.seen:
                continue
            left.add(one)  # a pid that was given out again while we read could make a circle
            members.append(self.seen[one])
            todo += self.children(one)
        state = self.seen[pid].state if pid in self.seen else ""
        memory = sum(member.memory_bytes for member in members)
        return Family(state, sum(member.cpu_s for member in members), memory, len(members))


def read_table() -> Table:
    """Return all processes that there are."""
    seen = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            one = parse_stat(read_file(f"/proc/{name}/stat"))
            if one is not None:
                seen[int(name)] = one
    return Table(seen)


def parse_stat(data: bytes) -> Seen | None:
    """Return what /proc/PID/stat says; None for a process that is gone."""
    # The second field is the name in parentheses and may itself hold any character.
    words = data.rpartition(b")")[2].split()
    if len(words) <= _RESIDENT:
        return None
    ticks = sum(int(word) for word in words[_OWN_TIMES])
    state = words[_STATE].decode("ascii", "replace")
    return Seen(int(words[_PARENT]), state, ticks / TICKS, int(words[_RESIDENT]) * PAGE_BYTES)


def find_workers(agent: int, table: Table) -> list[Worker]:
    """Return the ranks below an agent: per RANK in their environments the one nearest to it, by rank."""
    found: dict[int, Worker] = {}
    level = table.children(agent)
    while level and len(found) < WORKERS_MAX:
        further = []
        for pid in level:
            worker = read_worker(pid)
            if worker is None:
                further += table.children(pid)
            else:
                found.setdefault(worker.rank, worker)
        level = further
    return [found[rank] for rank in sorted(found)]


def read_worker(pid: int) -> Worker | None:
    """Return the rank that a process is by the environment it was started with; None for none."""
    pairs = (entry.partition(b"=") for entry in read_file(f"/proc/{pid}/environ").split(b"\0"))
    said = {name: value for name, _, value in pairs if name in ENVIRON_NAMES}
    rank, local_rank = said.get(b"RANK", b""), said.get(b"LOCAL_RANK", b"")
    if not (rank.isdigit() and local_rank.isdigit() and len(rank) < 10 and len(local_rank) < 10):
        return None
    visible = said.get(b"CUDA_VISIBLE_DEVICES")
    return Worker(int(rank), int(local_rank), pid, None if visible is None else os.fsdecode(visible))
