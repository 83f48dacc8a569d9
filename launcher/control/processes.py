"""All processes of this machine in one pass over /proc: their tree, CPU time, memory.

One small file for each process. The list of a process's children would be a file for each of its threads.

Source: proc(5), /proc/PID/stat.
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.machine.process import Stat, list_pids, read_environ, read_stat

WORKERS_MAX = 4096


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

    def __init__(self, seen: dict[int, Stat]) -> None:
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
    return Table({pid: found for pid in list_pids() if (found := read_stat(pid)) is not None})


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
    said = read_environ(pid)
    rank, local_rank = said.get("RANK", ""), said.get("LOCAL_RANK", "")
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in (rank, local_rank)):
        return None
    return Worker(int(rank), int(local_rank), pid, said.get("CUDA_VISIBLE_DEVICES"))
