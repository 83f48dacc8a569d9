"""Checks whether the processes of a job connect to each other: one job of N processes, or N jobs of one?

Reads /proc from time to time, until every process of this node was seen connected to another one; once is
enough. What cannot be seen counts as met, so that no warning results from what the launcher cannot see.
"""

from __future__ import annotations

import os
import time

from launcher.machine.process import find_descendants, read_environ
from launcher.observers import connections
from launcher.observers.connections import ORPHAN
from launcher.observers.watched import Children, Workers, is_single

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from launcher.core.supervision import Contact as Planned
    from launcher.observers.connections import ConnectionTable, Ends
    from launcher.observers.watched import Watched
    from launcher.process.spawn import Process

LEAST_S = 5.0
"""Nothing is reported about processes that ran shorter since their framework's library was loaded: too little
can be seen of them. So jobs that end at once cost no check."""
PAUSE_S = 0.1
PAUSE_LIMIT_S = 30.0
AGE_SHARE = 200
"""A pause between checks is the job's age divided by this ..."""
COST_SHARE, COST_LIMIT_S = 1000, 2.0
"""... or the last check's CPU time times this, up to a limit: checks take about 1/1,000 of a CPU."""
TABLE_S = 1.0
"""Seconds between two readings of the kernel's table if nothing has changed: one takes 1 to 10 ms."""
LOOK_S = 1.0
"""CPU time of one check, after which nothing is checked any more: the loop has signals to answer."""
GAP_S = 3.0
"""After a longer time without a check, too little was seen of a job to say that it never met ..."""
GAP_SHARE = 10
"""... unless that time is at most its duration divided by this."""


class TooMuch(Exception):
    """There is more to read than a check may read."""


class MeetingWatch:
    """Watches one attempt.

    Attributes:
        due: When to call `fire` (monotonic seconds); None if never again.
        together_at: When all processes were first seen connected within this node (monotonic seconds).
    """

    def __init__(
        self,
        planned: Planned,
        processes: Sequence[Process],
        tell: Callable[[str, bool], None],
        is_ending: Callable[[], bool],
        started: float,
    ) -> None:
        """Start to watch.

        Args:
            planned: What to check.
            processes: All processes of this attempt.
            tell: Called with a message that they have not met in time (False), or have met after that (True).
            is_ending: Whether the job is being stopped; then nothing is reported.
            started: Monotonic time of the start.
        """
        self._planned, self._tell, self._is_ending = planned, tell, is_ending
        self._processes: Children | Workers
        self._processes = Workers(processes[0]) if planned.of_agent else Children(processes, started)
        self._least_s = min(LEAST_S, planned.timeout_s)
        self._has_said = False
        self._until_cpu_s = self._cost_s = 0.0
        table = self._begin(started)
        self.due: float | None = started + PAUSE_S if table is not None and processes else None

    def _begin(self, now: float) -> ConnectionTable | None:
        """Start over with unknown processes: the first ones, or those after a restart."""
        self._started = self._looked = now
        self._gap_s, self._table_at = 0.0, 0.0
        self._sockets: dict[int, set[bytes]] = {}
        self._libraries: dict[int, int] = {}
        self._met: set[int] = set()
        self._excused: set[int] = set()
        """Of these too little can be seen: they count as met, at an unknown time."""
        self._is_outward = not self._planned.spans_nodes
        self.together_at: float | None = None
        self._doubts_at = self._least_s / 2
        table = connections.read_table()
        self._old: frozenset[Ends] = frozenset() if table is None else table.closed
        return table

    @property
    def has_met(self) -> bool:
        """Whether every process has met another one and, in a job of several nodes, this node another one."""
        return self._is_outward and self._are_together

    @property
    def _are_together(self) -> bool:
        members = self._processes.members
        known = self._met | self._excused
        return bool(members) and all(one.pid in known and not one.is_single for one in members)

    def fire(self, now: float) -> None:
        """Check the processes, or give up if that takes too long."""
        try:
            self._fire(now)
        except TooMuch:
            self.due = None

    def _fire(self, now: float) -> None:
        if self.due is None:
            return
        if self._processes.update(now):
            self._begin(now)
        gone = [one for one in self._processes.members if one not in self._processes.running]
        self._excused.update(one.pid for one in gone if one.end - one.began < self._least_s)
        age, limit_s = now - self._started, self._planned.timeout_s
        is_long = age >= limit_s and not self._has_said and not self._is_ending()
        is_long = is_long and bool(self._processes.running)
        has_doubts = is_long or age >= self._doubts_at
        self._look(now, in_any_case=has_doubts)
        if has_doubts and self.due is not None and not self.has_met:
            self._doubts_at = 2 * age
            self._doubt()
        if self.due is None:  # the kernel does not show it any more
            return
        if self.has_met:
            self.due = None
            if self._has_said:
                self._tell(f"the processes have met, {age:.0f} s after their start", True)
            return
        if is_long:
            self._has_said = True
            self._tell(self._describe(age), False)
        pause = min(
            PAUSE_LIMIT_S, max(PAUSE_S, age / AGE_SHARE, min(self._cost_s * COST_SHARE, COST_LIMIT_S))
        )
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
        lasted = min((one.end - one.began for one in self._processes.members), default=0.0)
        if lasted < self._least_s:
            return None
        try:
            self._look(now, in_any_case=True)
        except TooMuch:
            self.due = None
        if self.due is None or self.has_met:
            return None
        self.due = None
        has_seen = self._gap_s <= max(GAP_S, lasted / GAP_SHARE)
        return self._describe(lasted) if has_seen and self._is_sure() else None

    def _is_sure(self) -> bool:
        """Whether the processes have had the time and the means to meet, when all have ended.

        The time counts from the moment at which they had loaded all their libraries: loading may take long,
        and what comes behind it may be too short to be seen. A program without a framework is judged only on
        demand.
        """
        members = self._processes.members
        if any(one.is_single for one in members):
            return True
        if self._are_together:  # but none of another node
            first_end = min(one.end for one in members)
            return self.together_at is not None and first_end - self.together_at >= self._least_s
        if self._met or self._excused:
            return False
        has_framework = all(one.loaded is not None for one in members) or self._planned.required
        since = [max(one.changed, one.loaded or 0.0) for one in members]
        return has_framework and all(
            one.end - begin >= self._least_s for one, begin in zip(members, since, strict=True)
        )

    def _describe(self, age: float) -> str:
        """Return a message about what was not seen."""
        from launcher.core.ranks import name_ranks

        members = self._processes.members
        single = [one.rank for one in members if one.is_single]
        if single:
            verb, noun = ("was", "a single process") if len(single) == 1 else ("were", "single processes")
            return (
                f"{name_ranks(single)} {verb} started by accelerate launch as {noun}: without an accelerator "
                "or a rank each does the whole job alone"
            )
        alone = [one.rank for one in members if one.pid not in self._met | self._excused]
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

    def _each(self, pids: Iterable[int]) -> Iterator[int]:
        """Yield processes to read; each takes up to 0.3 s.

        Raises:
            TooMuch: This check has had its time.
        """
        for pid in pids:
            if time.process_time() > self._until_cpu_s:
                raise TooMuch
            yield pid

    def _look(self, now: float, *, in_any_case: bool = False) -> None:
        """Read the processes' sockets; read the kernel's table if they changed, if it is time, or anyway.

        Raises:
            TooMuch: They have too many.
        """
        begun_s = time.process_time()
        self._until_cpu_s = begun_s + LOOK_S
        self._gap_s, self._looked = max(self._gap_s, now - self._looked), now
        families = {
            pid: one for one in self._processes.running for pid in connections.with_descendants(one.pid)
        }
        sockets = {pid: connections.find_sockets([pid]) for pid in self._each(families)}
        has_changed, self._sockets = sockets != self._sockets, sockets
        libraries = {pid: connections.count_libraries(pid) for pid in self._each(families)}
        self._cost_s = time.process_time() - begun_s  # the rest is rare, and has a pace of its own
        for pid, size in libraries.items():
            before = self._libraries.get(pid)
            # A fork has its parent's, a process that ends has none
            if not size or size == (before or self._libraries.get(families[pid].pid)):
                continue
            if not before or size > before:  # JAX unloads one before the end
                families[pid].changed = now
            families[pid].is_single |= is_single(read_environ(pid), on_cpus=self._planned.on_cpus)
            if families[pid].loaded is None and connections.has_framework(pid):
                families[pid].loaded = now
        self._libraries = libraries
        if not in_any_case and now < self._table_at and not has_changed:
            return
        cpu_s = time.process_time()
        table = connections.read_table()
        if table is None:
            self.due = None
            return
        self._look_at_sockets(table, {inode: one for pid, one in families.items() for inode in sockets[pid]})
        self._look_at_closed(table)
        if self.together_at is None and self._are_together and not self._excused:
            self.together_at = now
        # Sockets that are new may not be connected yet
        pause_s = 0.0 if has_changed else max(TABLE_S, 2 * COST_SHARE * (time.process_time() - cpu_s))
        self._table_at = now + pause_s

    def _look_at_closed(self, table: ConnectionTable) -> None:
        """Check the remains of connections at ports of the job that were opened and closed since the start.

        Below an agent they prove nothing: agents have such connections themselves. Nor does a connection
        within this node if it has one process, which may have made it to itself.
        """
        members = self._processes.members
        ports = {port for one in members if not self._processes.of_agent for port in one.ports}
        for ends in table.closed - self._old:
            if ports.isdisjoint(connections.ports_of(ends)):
                continue
            is_local = connections.is_local(ends)
            self._is_outward = self._is_outward or not is_local
            if len(members) > 1 or not is_local:
                self._met.update(one.pid for one in members)

    def _look_at_sockets(self, table: ConnectionTable, ours: dict[bytes, Watched]) -> None:
        """Find the connections between our processes, and those to other nodes."""
        spans = self._planned.spans_nodes
        pairs = [pair for pair in connections.find_pairs(table) if pair[0] in ours]
        unknown = {other for _, other in pairs} - ours.keys() - {ORPHAN}
        others = self._find_others() if unknown else set()
        for mine, its in pairs:
            is_agents = self._processes.of_agent and its in others
            # With a process that is not of the job: another node may be simulated on this machine. With the
            # agent: only the store of the whole job connects a worker to it.
            is_outward = spans and (is_agents or (its in unknown and its not in others))
            if is_outward or its in others or (its in ours and ours[its] is not ours[mine]):
                self._met.add(ours[mine].pid)
                self._is_outward = self._is_outward or is_outward
        for inode in connections.find_outward(table) if spans else ():
            if inode in ours:
                self._is_outward = True
                self._met.add(ours[inode].pid)

    def _find_others(self) -> set[bytes]:
        """Return the sockets of our other descendants: an agent, servers beside the ranks."""
        below = find_descendants([os.getpid()])
        return connections.find_sockets(self._each(pid for pid in below if pid not in self._sockets))

    def _doubt(self) -> None:
        """Check what takes longer: shared memory, InfiniBand, and processes that we cannot see into."""
        shared: dict[int, set[bytes]] = {}
        for one in self._processes.running:
            family = connections.with_descendants(one.pid)
            each = self._each(family)
            if any(connections.is_hidden(pid) or connections.has_direct_device(pid) for pid in each):
                self._excused.add(one.pid)
                self._is_outward = True
            shared[one.pid] = connections.find_shared(self._each(family))
        for pid, files in shared.items():
            if any(files & others for other, others in shared.items() if other != pid):
                self._met.add(pid)
