"""Movement: whether the ranks of a node use CPU time, network or storage, for the stall report by default.

It is read once per window, and only while nothing is written and no GPU works. A rank that waits is never
quite at rest: heartbeats, timers, DataLoader workers and monitor threads wake up. So both have limits, far
above what ranks that hang were measured to use (docs/status.md), and below what work uses.
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.machine.host import Host
from launcher.machine.process import read_storage_bytes
from launcher.observers.connections import find_sockets
from launcher.observers.traffic import list_counters, read_connections, read_counters
from launcher.process.families import read_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.process.families import Processes

CPU_SHARE = 0.02
"""Share of a core, used by a rank and its children, that counts as work ..."""
CLOCK_S = 0.02
"""... beyond two ticks of the kernel's clock."""
CONNECTION_BYTES_PER_S = 4096.0
"""Bytes per second on one connection, both ways, that count as traffic."""
OTHER_BYTES_PER_S = 65536.0
"""The same on all InfiniBand and EFA ports, which others may use too, and to and from storage.

A program that is loaded from a slow disk uses nothing else.
"""


@frozen
class Reading:
    """The counters at one moment.

    Attributes:
        at_s: Monotonic time.
        cpu_s: CPU time of each rank and its children, by rank and pid.
        connections: Bytes on each TCP connection of this node, by inode; None if not known.
        other_bytes: Bytes on all InfiniBand and EFA ports, and of the ranks from and to storage.
        members: Processes of all ranks.
    """

    at_s: float
    cpu_s: Mapping[tuple[int, int], float]
    connections: Mapping[bytes, int] | None
    other_bytes: int
    members: Sequence[int]


class Movement:
    """Compares one window with the one before.

    Attributes:
        busy: Ranks that used CPU time in the last window while at least as many waited.
        sees_network: Whether the kernel tells the bytes of connections.
    """

    def __init__(self, list_ranks: Callable[[Processes], Sequence[tuple[int, int]]], window_s: float) -> None:
        """Take how to list (rank, pid) of the running ranks, and the seconds between two readings."""
        self.busy: tuple[int, ...] = ()
        self.sees_network = True
        self._list_ranks, self._window_s = list_ranks, window_s
        self._host = Host()
        self._counters = list_counters(self._host)
        self._before: Reading | None = None

    def forget(self) -> None:
        """Begin again: something else has shown that the job moves, and nothing need be read."""
        self._before = None

    def has_moved(self, now: float, *, spins: bool) -> bool:
        """Read, if a window has passed; return whether the ranks have moved in it.

        The first reading after output counts as movement: what happened before it is not known.

        Args:
            now: Monotonic time.
            spins: Whether GPUs wait in a collective. Then ranks use whole cores to wait for their GPU, and
                CPU time says nothing.
        """
        before = self._before
        if before is not None and now - before.at_s < self._window_s:
            return False
        self._before = after = self._read(now)
        if before is None or not after.cpu_s:
            return True
        used = find_busy(before, after)
        moves = not spins and 2 * len(used) > len(after.cpu_s)
        self.busy = () if spins else used
        return moves or has_traffic(before, after)

    def _read(self, now: float) -> Reading:
        table = read_table()
        families = {(rank, pid): table.members(pid) for rank, pid in self._list_ranks(table)}
        members = [pid for pids in families.values() for pid in pids]
        connections = read_connections()
        self.sees_network = connections is not None
        return Reading(
            now,
            {key: sum(table.seen[pid].cpu_s for pid in pids) for key, pids in families.items()},
            connections,
            read_counters(self._host, self._counters) + sum(map(read_storage_bytes, members)),
            members,
        )


def find_busy(before: Reading, after: Reading) -> tuple[int, ...]:
    """Return the ranks that used CPU time. One that is new did; so did one whose busy child has ended."""
    least_s = CLOCK_S + CPU_SHARE * (after.at_s - before.at_s)
    return tuple(
        sorted(
            rank
            for (rank, pid), used_s in after.cpu_s.items()
            if abs(used_s - before.cpu_s.get((rank, pid), -least_s)) >= least_s
        )
    )


def has_traffic(before: Reading, after: Reading) -> bool:
    """Whether the ranks have moved data: on a connection of theirs, by RDMA, or in storage."""
    elapsed_s = after.at_s - before.at_s
    if abs(after.other_bytes - before.other_bytes) >= OTHER_BYTES_PER_S * elapsed_s:
        return True
    known, least = before.connections or {}, CONNECTION_BYTES_PER_S * elapsed_s
    full = {inode for inode, size in (after.connections or {}).items() if size - known.get(inode, 0) >= least}
    return bool(full) and not full.isdisjoint(find_sockets(after.members))
