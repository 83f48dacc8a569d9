"""Reads all processes of this node in one pass over /proc: their tree, CPU time and memory.

It reads one small file per process. A process's list of children would be one file per thread.

Source: proc(5), /proc/PID/stat.
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.machine.process import Stat, list_pids, read_environ, read_stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.process.spawn import Process

WORKERS_MAX = 4096


@frozen
class FamilyUse:
    """A process's state, and the total use of the process and its descendants."""

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


class Processes:
    """All processes at one moment."""

    def __init__(self, seen: dict[int, Stat]) -> None:
        self.seen = seen
        self._children: dict[int, list[int]] = {}
        for pid, one in seen.items():
            self._children.setdefault(one.parent, []).append(pid)

    def children(self, pid: int) -> list[int]:
        """Return the children of a process, the lowest pid first."""
        return sorted(self._children.get(pid, ()))

    def members(self, pid: int, but: list[int] | None = None) -> list[int]:
        """Return a process and its descendants, without those in ``but`` and their descendants."""
        left, todo, found = set(but or ()), [pid], []
        while todo:
            one = todo.pop()
            if one in left or one not in self.seen:
                continue
            left.add(one)  # a pid that was reused while we read could make a cycle
            found.append(one)
            todo += self.children(one)
        return found

    def family(self, pid: int, but: list[int] | None = None) -> FamilyUse:
        """Return the use of a process and its descendants, without those in ``but`` and their descendants."""
        members = [self.seen[one] for one in self.members(pid, but)]
        state = self.seen[pid].state if pid in self.seen else ""
        memory = sum(member.memory_bytes for member in members)
        return FamilyUse(state, sum(member.cpu_s for member in members), memory, len(members))


def read_table() -> Processes:
    """Return all current processes."""
    return Processes({pid: found for pid in list_pids() if (found := read_stat(pid)) is not None})


def find_workers(agent: int, table: Processes) -> list[Worker]:
    """Return the ranks below an agent, sorted: for each RANK in an environment the process nearest to it."""
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
    """Return the rank that a process is, according to the environment at its start; None if it is none."""
    said = read_environ(pid)
    rank, local_rank = said.get("RANK", ""), said.get("LOCAL_RANK", "")
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in (rank, local_rank)):
        return None
    return Worker(int(rank), int(local_rank), pid, said.get("CUDA_VISIBLE_DEVICES"))


def list_ranks(processes: Sequence[Process], table: Processes) -> list[tuple[int, int]]:
    """Return (rank, pid) of the running ranks among our processes, or of the workers of an agent."""
    found: list[tuple[int, int]] = []
    for process in processes:
        if process.code is not None or process.child.companion:
            continue
        if process.child.called:
            found += [(worker.rank, worker.pid) for worker in find_workers(process.pid, table)]
        else:
            found.append((process.child.rank, process.pid))
    return found
