"""Pace: what each rank of this node does with its time, from /proc, and which rank differs from the others.

Ranks that train together wait for the slowest one, so all take the same time for a step. They differ in what
they do meanwhile: the slowest one is stopped, sleeps, waits for a CPU or a disk, or computes while the others
wait. Half a second apart, the watch notes the state of each rank's main thread and of its busiest thread.
Nothing here acts on what is found: `launcher status` names it.

Cost: two or three small files per rank and look, 0.03 % of a core for eight ranks.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import pairwise

from launcher.core.frozen import frozen
from launcher.machine.calls import read_call
from launcher.machine.process import PROC, list_folder, parse_stat, read_file
from launcher.process.families import read_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.process.families import Processes

LOOK_S, WINDOW_S = 0.5, 30.0
"""Seconds between two looks, on average, and those that count."""
LOOKS = int(WINDOW_S / LOOK_S)
LOOKS_MIN = LOOKS // 3
"""Number of looks below which a rank is not compared."""
SPREAD = 0.618
"""Spreads the looks: at even intervals, what happens once a second would always or never be seen."""
CHOOSE_S = 30.0
"""Seconds after which the process and the thread of a rank are chosen again."""
TIMES_EVERY = 6
"""Number of looks between two readings of the time that a thread has used a CPU, and waited for one."""
THREADS_MAX, MEMBERS_MAX = 512, 64
WORK_SHARE = 0.2
"""The rank's process is the outermost one that has used this part of the CPU time of the busiest one."""
STOPPED, SLEEPS, BLOCKED, GOES_ON = "TNDR"
"""What a look sees: a thread that is stopped, is in nanosleep, waits for a device, or runs or waits."""
SLEEP_CALLS = ("nanosleep", "clock_nanosleep")


@frozen
class RankPace:
    """What a rank has done in the last `WINDOW_S` seconds, as parts of that time.

    Attributes:
        stopped: Stopped, by SIGSTOP or a freezer.
        delayed: Able to run, but without a CPU: others use it, or a limit is reached.
        sleeping: In a sleep of the program.
        blocked: Waiting for a disk or another device.
        running: CPU time of its busiest thread.
    """

    stopped: float = 0.0
    delayed: float = 0.0
    sleeping: float = 0.0
    blocked: float = 0.0
    running: float = 0.0

    @property
    def busy(self) -> float:
        """Part of the time in which it did not wait for other ranks, as far as that is known."""
        return min(1.0, self.stopped + self.delayed + self.sleeping + self.blocked + self.running)


class RankLooks:
    """The looks at one rank.

    Attributes:
        pid: Its process.
        thread: Its busiest thread.
    """

    def __init__(self) -> None:
        self.pid = self.thread = 0
        self._states: deque[str] = deque(maxlen=LOOKS)
        self._times: deque[tuple[float, float, float]] = deque(maxlen=LOOKS // TIMES_EVERY)
        """When (monotonic seconds), and the seconds that the thread had used and waited for a CPU by then."""

    def choose(self, pid: int, thread: int) -> None:
        """Look at this thread from now on."""
        if (pid, thread) != (self.pid, self.thread):
            self.pid, self.thread = pid, thread
            self._times.clear()

    def look(self, now: float, *, reads_times: bool) -> None:
        """Note the state of the thread, and of the main thread if that one waits."""
        path = f"{PROC}/{self.pid}/task/{self.thread}"
        found = parse_stat(read_file(f"{path}/stat"))
        if found is None or found.has_ended:
            return
        state = {"t": STOPPED, "T": STOPPED, "D": BLOCKED}.get(found.state, GOES_ON)
        if found.state == "S" and read_call(self.pid) in SLEEP_CALLS:
            state = SLEEPS
        self._states.append(state)
        if reads_times:
            words = read_file(f"{path}/schedstat").split()
            waited_s = int(words[1]) / 1e9 if len(words) > 1 and words[1].isdigit() else 0.0
            self._times.append((now, found.cpu_s, waited_s))

    def read(self) -> RankPace | None:
        """Return the parts of the time; None after too few looks."""
        count = len(self._states)
        if count < LOOKS_MIN:
            return None
        stopped, sleeping, blocked = (self._states.count(kind) / count for kind in (STOPPED, SLEEPS, BLOCKED))
        used = waited = 0.0
        if len(self._times) > 1:
            first, last = self._times[0], self._times[-1]
            used, waited = (
                min(1.0, max(0.0, after - before) / (last[0] - first[0]))
                for before, after in zip(first[1:], last[1:], strict=True)
            )
        return RankPace(stopped, waited, sleeping, blocked, used)


class PaceWatch:
    """Looks at the ranks of this node.

    Attributes:
        due: When to call `fire`.
    """

    def __init__(self, list_ranks: Callable[[Processes], Sequence[tuple[int, int]]]) -> None:
        """Begin; ``list_ranks`` returns (rank, PID) of the ranks among all processes."""
        self.due: float | None = time.monotonic()
        self._list_ranks = list_ranks
        self._choose_at = self._spread = 0.0
        self._looked = 0
        self._used: dict[int, float] = {}
        self.ranks: dict[int, RankLooks] = {}

    def fire(self, now: float) -> None:
        """Look at each rank."""
        self._spread = (self._spread + SPREAD) % 1.0
        self.due = now + LOOK_S * (0.5 + self._spread)
        if now >= self._choose_at:
            self._choose_at = now + CHOOSE_S
            self._choose()
        self._looked += 1
        for looks in self.ranks.values():
            looks.look(now, reads_times=self._looked % TIMES_EVERY == 0)

    def _choose(self) -> None:
        """Choose the process and the thread of each rank that do its work."""
        table = read_table()
        used, ranks = {pid: one.cpu_s for pid, one in table.seen.items()}, {}
        for rank, first in self._list_ranks(table):
            family = table.members(first)[:MEMBERS_MAX]
            spent = {pid: used[pid] - self._used.get(pid, 0.0) for pid in family if pid in used}
            if not spent:
                continue
            least = WORK_SHARE * max(spent.values())
            pid = next(pid for pid in family if spent.get(pid, -1.0) >= least)
            ranks[rank] = self.ranks.get(rank) or RankLooks()
            ranks[rank].choose(pid, find_busiest(pid))
        self.ranks, self._used = ranks, used

    def close(self) -> None:
        """Stop looking."""
        self.due = None

    def read(self) -> dict[int, RankPace]:
        """Return the pace of each rank, as far as it is known."""
        return {rank: found for rank, looks in self.ranks.items() if (found := looks.read()) is not None}


def find_busiest(pid: int) -> int:
    """Return the thread of a process that has used most CPU time."""
    best, most_s = pid, -1.0
    for name in list_folder(f"{PROC}/{pid}/task")[:THREADS_MAX]:
        found = parse_stat(read_file(f"{PROC}/{pid}/task/{name}/stat"))
        if found is not None and found.cpu_s > most_s:
            best, most_s = int(name), found.cpu_s
    return best


# --- which rank differs

RULES = (
    ("stopped", 0.03, "is stopped {share} of the time (SIGSTOP, or a paused container)"),
    ("delayed", 0.25, "waits {share} of the time for a CPU: a limit, or another program on its CPUs"),
    ("sleeping", 0.25, "is in sleep {share} of the time"),
    ("blocked", 0.25, "waits {share} of the time for a disk or a device"),
    ("running", 0.05, "computes {share} of the time, and the others wait for it"),
)
"""Part of `RankPace`, how much more than that of all others it is, and what it means.

The first rule that holds names the rank.
"""
BUSIER, TIMES = 0.15, 2.0
"""A rank that computes more is slow only if it waits so much less, and computes so many times as much."""


def find_slow(paces: Mapping[int, RankPace]) -> list[tuple[list[int], str]]:
    """Return the ranks that differ from the others, and in what: ``is in sleep 45 % of the time ...``.

    Only a minority can differ, or one of two.

    Args:
        paces: What each rank of the job does.
    """
    found: list[tuple[list[int], str]] = []
    known: set[int] = set()
    for name, least, text in RULES:
        shares = {rank: getattr(pace, name) for rank, pace in paces.items()}
        ranks = [rank for rank in find_apart(shares, least) if rank not in known]
        others = [share for rank, share in shares.items() if rank not in ranks]
        if name == "running" and ranks:
            waits = max(paces[rank].busy for rank in paces if rank not in ranks)
            is_slow = min(paces[rank].busy for rank in ranks) >= waits + BUSIER
            ranks = ranks if is_slow and min(shares[rank] for rank in ranks) >= TIMES * max(others) else []
        if ranks:
            known.update(ranks)
            share = _percent([shares[rank] for rank in ranks])
            found.append((ranks, f"{text.format(share=share)}; others {_percent(others)}"))
    return found


def find_apart(values: Mapping[int, float], least: float) -> list[int]:
    """Return the ranks above the widest gap between neighboring values, if it is as wide as ``least``.

    None if they are the majority: then the others are not what is usual.
    """
    ordered = sorted(values, key=lambda rank: values[rank], reverse=True)
    sizes = [values[rank] for rank in ordered]
    gaps = [above - below for above, below in pairwise(sizes)]
    widest = max(gaps, default=0.0)
    if not gaps or widest < least:
        return []
    ranks = ordered[: gaps.index(widest) + 1]
    return sorted(ranks) if 2 * len(ranks) <= len(ordered) else []


def _percent(shares: Sequence[float]) -> str:
    ends = dict.fromkeys(f"{100 * share:.0f}" for share in (min(shares), max(shares)))
    return f"{' to '.join(ends)} %"
