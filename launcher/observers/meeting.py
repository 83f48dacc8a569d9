"""Checks whether the processes of a job connect to each other: one job of N processes, or N jobs of one?

Reads /proc from time to time, until every process of this node was seen connected to another one; once is
enough. What cannot be seen counts as met, so that no warning results from what the launcher cannot see.
"""

from __future__ import annotations

import os
import time

from launcher.observers import connections
from launcher.observers.connections import ORPHAN
from launcher.observers.watched import Children, Workers
from launcher.process.descendants import find_children

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.core.log import Say
    from launcher.core.model import Contact as Planned
    from launcher.observers.connections import Ends, Table
    from launcher.observers.watched import Watched
    from launcher.process.spawn import Process

LEAST_S = 5.0
"""Nothing is reported about processes that run shorter: too little can be seen of them. So jobs that end at
once cost no check."""
PAUSE_S = 0.1
PAUSE_LIMIT_S = 30.0
AGE_SHARE = 200
"""A pause between checks is the job's age divided by this ..."""
COST_SHARE, COST_LIMIT_S = 1000, 2.0
"""... or the last check's CPU time times this, up to a limit: checks take about 1/1,000 of a CPU."""
TABLE_S = 1.0
"""Seconds between two readings of the kernel's table if nothing has changed: one takes 1 to 10 ms."""
QUIET_S = 2.0
"""A process that opened a socket less than this before its end may have met another one through it."""
GAP_S = 3.0
"""After a longer time without a check, too little was seen of a job to say that it never met ..."""
GAP_SHARE = 10
"""... unless that time is at most its duration divided by this."""
MASTER_PORT = "MASTER_PORT"


class MeetingWatch:
    """Watches one attempt.

    Attributes:
        due: When to call `fire` (monotonic seconds); None if never again.
        unmet: Message that the processes have not met; None until it is reported. Withdrawn if they meet
            after all.
    """

    def __init__(
        self,
        planned: Planned,
        processes: Sequence[Process],
        say: Say,
        end: Callable[[str], None],
        is_ending: Callable[[], bool],
        started: float,
    ) -> None:
        """Start to watch.

        Args:
            planned: What to check.
            processes: All processes of this attempt.
            say: Prints one line.
            end: Ends the job as a failure, for a reason.
            is_ending: Whether the job is being stopped; then nothing is reported.
            started: Monotonic time of the start.
        """
        self._planned, self._say, self._end, self._is_ending = planned, say, end, is_ending
        self._processes: Children | Workers
        self._processes = Workers(processes[0]) if planned.of_agent else Children(processes, started)
        ranks = [] if planned.of_agent else [one for one in processes if not one.child.companion]
        ports = {one.child.environ.get(MASTER_PORT, "") for one in ranks}
        self._master_ports = {int(port) for port in ports if port.isdecimal()}
        self._table_at, self._table_s, self._has_changed = 0.0, 0.0, False
        self._least_s = min(LEAST_S, planned.timeout_s)
        self._has_said = False
        self.unmet: str | None = None
        table = self._begin(started)
        self.due: float | None = started + PAUSE_S if table is not None and processes else None

    def _begin(self, now: float) -> Table | None:
        """Start over with unknown processes: the first ones, or those after a restart."""
        self._started = self._looked = now
        self._gap_s = 0.0
        self._families: dict[int, Watched] = {one.pid: one for one in self._processes.running}
        self._open: dict[int, frozenset[str]] = {}
        self._sockets: dict[int, set[bytes]] = {}
        self._libraries: dict[int, str] = {}
        self._met: set[int] = set()
        self._is_outward = not self._planned.spans_nodes
        self.together_at: float | None = None
        self._doubts_at = self._least_s / 2
        self._is_traced = False
        self._opened = connections.count_opened()
        table = connections.read_table()
        self._old: frozenset[Ends] = frozenset() if table is None else table.closed
        self._known: set[Ends] = set() if table is None else {*table.held, *table.closed}
        self._shown = frozenset(self._known)
        self._old_ports = {min(connections.ports_of(ends)) for ends in self._known}
        self._old_ports.update(() if table is None else table.listening.values())
        return table

    @property
    def has_met(self) -> bool:
        """Whether every process has met another one and, in a job of several nodes, this node another one."""
        return self._is_outward and self._are_together

    @property
    def _are_together(self) -> bool:
        members = self._processes.members
        return bool(members) and all(one.pid in self._met for one in members)

    def fire(self, now: float) -> None:
        """Check the processes."""
        if self.due is None:
            return
        if self._processes.update(now):
            self._begin(now)
        gone = [one for one in self._processes.members if one not in self._processes.running]
        self._met.update(one.pid for one in gone if one.end - one.began < self._least_s)
        age, limit_s = now - self._started, self._planned.timeout_s
        is_long = age >= limit_s and not self._has_said and not self._is_ending()
        is_long = is_long and bool(self._processes.running)
        has_doubts = is_long or age >= self._doubts_at
        had_changed, cpu_s, self._table_s = self._has_changed, time.process_time(), 0.0
        self._look(now, in_any_case=has_doubts)
        cost_s = time.process_time() - cpu_s
        if not (had_changed and self._has_changed):  # the table is expensive, but is not read again so soon
            cost_s -= self._table_s
        if self.due is not None and not self.has_met and has_doubts:
            self._doubts_at = 2 * age
            self._doubt()
        if self.due is None:  # the kernel does not show it any more
            return
        if self.has_met:
            self._finish(age)
            return
        if is_long:
            self._warn(age)
        pause = min(PAUSE_LIMIT_S, max(PAUSE_S, age / AGE_SHARE, min(cost_s * COST_SHARE, COST_LIMIT_S)))
        warns_in = limit_s - age if age < limit_s else pause
        self.due = now + min(pause, warns_in)

    def note_end(self) -> None:
        """Plan a check now, because a process has exited and its traces soon disappear."""
        if self.due is not None and time.monotonic() - self._started >= self._least_s:
            self.due = 0.0

    def end(self) -> str | None:
        """Return a message that the processes never met, after all ended; None if they have, or may have."""
        if self.due is None:
            return None
        now = time.monotonic()
        self._processes.update(now)
        members = self._processes.members
        lasted = min((one.end - one.began for one in members), default=0.0)
        if lasted < self._least_s:
            return None
        self._look(now, in_any_case=True)
        if self.due is None or self.has_met:
            return None
        self.due = None
        has_seen = self._gap_s <= max(GAP_S, lasted / GAP_SHARE)
        return self._describe(lasted) if has_seen and self._is_sure() else None

    def _is_sure(self) -> bool:
        """Whether nothing suggests a meeting that was too short to be seen, when all have ended.

        A program may load for a long time, and then meet and end between two checks. So each process must
        have done something other than load libraries or open sockets for some time before its end.
        """
        if self._is_traced or any(one.listens for one in self._processes.members):
            return False
        if self._met or (self._is_outward and self._planned.spans_nodes):
            first_end = min(one.end for one in self._processes.members)
            return self.together_at is not None and first_end - self.together_at >= self._least_s
        return all(
            one.end - one.changed >= self._least_s and one.end - one.opened >= min(QUIET_S, self._least_s)
            for one in self._processes.members
        )

    def _finish(self, age: float) -> None:
        self.due = None
        if self.unmet is not None:
            self.unmet = None
            self._say(f"the processes have met, {age:.0f} s after their start", "met")

    def _warn(self, age: float) -> None:
        self._has_said = True
        self.unmet = self._describe(age)
        if self._planned.required:
            self._end(self.unmet)
        else:
            from launcher.failure.reason import NEVER_MET_FIX

            self._say(f"warning: [never-met] {self.unmet}; fix: {NEVER_MET_FIX}", "never-met")

    def _describe(self, age: float) -> str:
        """Return a message about what was not seen."""
        from launcher.core.ranks import name_ranks

        alone = [one.rank for one in self._processes.members if one.pid not in self._met]
        if not alone:
            return (
                f"no process of this node was seen connected to another node in {age:.0f} s: "
                "each node may do the whole job alone"
            )
        verb, each = ("was", "it") if len(alone) == 1 else ("were", "each")
        return (
            f"{name_ranks(alone)} {verb} not seen connected to another process of the job in {age:.0f} s: "
            f"{each} may do the whole job alone"
        )

    # --- reading /proc

    def _look(self, now: float, *, in_any_case: bool = False) -> None:
        """Read the processes' sockets; read the kernel's table if they changed, if it is time, or anyway."""
        self._gap_s, self._looked = max(self._gap_s, now - self._looked), now
        self._families.update((one.pid, one) for one in self._processes.running)
        self._note_libraries(now)
        self._has_changed = self._has_news(now)
        if not in_any_case and now < self._table_at and not self._has_changed:
            return
        cpu_s = time.process_time()
        opened = connections.count_opened()
        table = connections.read_table()
        if table is None:
            self.due = None
            return
        self._look_at_sockets(table)
        if not self.has_met:
            self._look_at_traces(table)
            self._look_at_counters(opened, table)
        if self.together_at is None and self._are_together:
            self.together_at = now
        self._families = {
            pid: one for one in self._processes.running for pid in connections.with_descendants(one.pid)
        }
        self._table_s = time.process_time() - cpu_s
        self._table_at = now + max(TABLE_S, 2 * COST_SHARE * self._table_s)

    def _note_libraries(self, now: float) -> None:
        """Note which processes have loaded libraries, or started others, since the last check."""
        found = {pid: connections.count_libraries(pid) for pid in self._families}
        for pid, size in found.items():
            leader = self._families[pid]
            before = self._libraries.get(pid) or self._libraries.get(leader.pid)  # a fork has its parent's
            if size and size != before:
                leader.changed = now
        self._libraries = found

    def _has_news(self, now: float) -> bool:
        """Whether the processes have opened or closed sockets since the last check."""
        now_open = {pid: connections.list_descriptors(pid) for pid in self._families}
        if now_open == self._open:
            return False
        sockets = {pid: connections.find_sockets([pid]) for pid in self._families}
        for pid, found in sockets.items():
            if found - self._sockets.get(pid, set()):
                self._families[pid].opened = now
        has_news = sockets != self._sockets
        self._open, self._sockets = now_open, sockets
        return has_news

    def _look_at_traces(self, table: Table) -> None:
        """Check the remains of connections that were opened and closed since the start.

        A connection to the master's port means that all have met. (Below an agent it does not, because agents
        have such connections themselves; then no master port is known here.) A connection to another port
        does not, because a process may have connected to itself; but then we do not report that none was
        connected.
        """
        closed = table.closed - self._old
        if any(not self._master_ports.isdisjoint(connections.ports_of(ends)) for ends in closed):
            self._is_outward = True
            self._met.update(one.pid for one in self._processes.members)
        orphans = {ends for ends, inode in table.held.items() if inode == ORPHAN}
        for ends in (closed | orphans) - self._known:
            ports = connections.ports_of(ends)
            if min(ports) >= connections.PRIVILEGED and self._old_ports.isdisjoint(ports):
                self._is_traced = True
        self._known &= {*table.held, *table.closed}
        self._known.update(ends for ends, inode in table.held.items() if inode != ORPHAN)

    def _look_at_counters(self, opened: int, table: Table) -> None:
        """Check for more connections than the table shows: opened and closed between two checks.

        The end that closes second leaves no trace in the table. It may have belonged to any process.
        """
        shown = frozenset({*table.held, *table.closed})
        self._opened += len(shown - self._shown)
        self._is_traced = self._is_traced or opened > self._opened
        self._shown = shown

    def _look_at_sockets(self, table: Table) -> None:
        """Find the connections between our processes, and those to other nodes."""
        members = {one.pid: one for one in self._processes.running}
        named = {port for one in members.values() for port in one.ports}
        waiting = {inode: port for inode, port in table.listening.items() if port in named}
        pairs = connections.find_pairs(table)
        outward = connections.find_outward(table) if self._planned.spans_nodes else []
        wanted = {inode for pair in pairs for inode in pair}.union(outward, waiting) - {ORPHAN}
        if not wanted:
            return
        owners = _find_owners(wanted, list(members) if self._processes.of_agent else [])
        for one, other in pairs:
            mine, its = owners.get(one), owners.get(other)
            # With a process that is not ours: another node may be simulated on this machine. With the
            # agent: only the store of the whole job connects a worker to it.
            is_foreign = its is None and other != ORPHAN
            is_agents = self._processes.of_agent and its is not None and its not in members
            is_outward = self._planned.spans_nodes and (is_foreign or is_agents)
            if mine in members and mine != its and (its is not None or is_outward):
                self._met.add(mine)
                self._is_outward = self._is_outward or is_outward
        for inode in outward:
            if owners.get(inode) in members:
                self._is_outward = True
                self._met.add(owners[inode])
        for inode, port in waiting.items():
            holder = members.get(owners.get(inode, 0))
            if holder is not None and port in holder.ports:
                holder.listens = True

    def _doubt(self) -> None:
        """Check what takes longer: shared memory, InfiniBand, and processes that we cannot see into."""
        shared: dict[int, set[bytes]] = {}
        for one in self._processes.running:
            family = connections.with_descendants(one.pid)
            if any(connections.is_hidden(pid) or connections.has_direct_device(pid) for pid in family):
                self._met.add(one.pid)
                self._is_outward = True
            shared[one.pid] = connections.find_shared(family)
        for pid, files in shared.items():
            if any(files & others for other, others in shared.items() if other != pid):
                self._met.add(pid)


def _find_owners(wanted: set[bytes], workers: Sequence[int]) -> dict[bytes, int]:
    """Return which of our children holds each of these sockets, itself or by its descendants.

    Args:
        wanted: Inodes of sockets.
        workers: Processes below an agent, which count as if they were our children.
    """
    leaders = [*find_children(os.getpid()), *workers]
    owners = {inode: pid for pid in leaders for inode in connections.find_sockets([pid])}
    if wanted - owners.keys():  # held by a shell's child, or by none of ours
        for pid in leaders:  # workers last: they are below their agent too
            below = connections.find_sockets(connections.with_descendants(pid)[1:])
            owners.update(dict.fromkeys(below, pid))
    for pid in workers:
        owners.update(dict.fromkeys(connections.find_sockets([pid]), pid))
    return owners
