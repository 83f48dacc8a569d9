"""Stops processes: signals the leaders first, all after half of the grace period, and kills at its end.

A leader is any child of ours: a process that we started, or an orphan that we adopted, e.g. a Python whose
shell has died of the signal that it did not forward. Leaders come first because SIGTERM to a DataLoader's
workers makes a process fail that is just saving its checkpoint.

Instead of torchrun's agent we signal its workers, if that is better (`launcher.process.torch_agent`).
"""

from __future__ import annotations

import os
import time

from launcher.core.errors import attempt
from launcher.core.signal import signal
from launcher.machine.process import (
    describe_some,
    find_children,
    find_descendants,
    has_ended,
    is_alive,
    list_pids,
    read_command,
    read_stat,
)
from launcher.process.signal_file import send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from launcher.core.log import Say
    from launcher.process.loop import Loop
    from launcher.process.torch_agent import TorchAgent

LINGER_S = 0.2
"""Seconds that helpers of a process (multiprocessing's resource tracker) need to notice that it has ended."""
NAMED_MAX = 3
LEFTOVERS_GRACE_S = 5.0
"""Maximum seconds between SIGTERM and SIGKILL for processes that outlive all processes of the job."""
LEFT_MAX = 64
"""Number of them that are looked at."""
CHASES = 20
"""Number of times that we look again, without a pause, for children of processes that we have just killed."""
KILL_EVERY_S = 0.02
KILL_WAIT_S = 5.0
"""Seconds after SIGKILL until we give up: a process ends at once, or the kernel holds it (D state)."""
LAST_CALL = 0.9
"""Part of the grace period after which torchrun's agent is signalled if it has no worker left.

Such an agent waits for other agents.
"""


class Stopper:
    """Stops all children once a stop has begun.

    Attributes:
        due: When to call `fire`.
        number: The signal that all get; None before the stop.
        told: The last signal that each process got, by pid.
        left: Descriptions of the processes that outlived those of a job that ended by itself.
        left_at_s: When the last of them was started, in seconds since boot; None if /proc does not show it.
        left_ranks: The ranks among them that another process has started, and their command lines.
        gave_up: Whether not even SIGKILL has ended all processes.
        groups: The process groups that we created, as long as they have members.
        started: The processes that we started and have not reaped yet.
        agents: Those of them that start processes themselves.
    """

    def __init__(
        self,
        grace_s: float,
        loop: Loop,
        *,
        to_group: bool,
        spare: Callable[[], Iterable[int]],
        before_kill: Callable[[], None],
        say: Say,
    ) -> None:
        self._loop = loop
        self.grace_s = grace_s
        self.due: float | None = None
        self.number: int | None = None
        self.told: dict[int, int] = {}
        self.left = ""
        self.left_at_s: float | None = None
        self.left_ranks: dict[int, list[str]] = {}
        self.gave_up = False
        self.groups: set[int | None] = set()
        self.started: set[int] = set()
        self.agents: set[int] = set()
        self._to_group = to_group
        self._spare, self._before_kill = spare, before_kill
        self._say = say
        self._torch_agents: dict[int, TorchAgent] = {}
        self._steps: list[tuple[float, Callable[[], None]]] = []
        self._killed_at: float | None = None
        self._lingers = False

    @property
    def begun(self) -> bool:
        """Whether the processes of the job are being stopped."""
        return self.number is not None and not self._lingers

    def leaders(self) -> list[int]:
        """Return our children, started and adopted, that were not reaped yet.

        This includes those that have ended. While we look, a child of one of them can become ours, and a
        process whose main thread has ended looks like a zombie while its other threads run.

        If there is none, but a group that we created still has processes, /proc does not show our children or
        the kernel gives us no orphans. Such a group follows as a negative number, as for kill(2).
        """
        spared = set(self._spare())
        children = dict.fromkeys([*find_children(os.getpid()), *self.started])  # /proc may be missing
        found = [pid for pid in children if pid not in spared]
        return found or [-group for group in self.groups if group and _is_left(group)]

    def forget_groups(self) -> list[int]:
        """Forget and return the empty groups: their numbers can be reused."""
        gone = [group for group in self.groups if group and group not in self.started and _is_empty(group)]
        self.groups.difference_update(gone)
        return gone

    def begin(
        self, number: int, *, to_group: bool = False, reached: bool = False, grace_s: float | None = None
    ) -> None:
        """Signal all leaders, or all processes; a further call does not restart the grace period.

        Args:
            number: The signal.
            to_group: Whether all processes get it.
            reached: Whether the terminal has sent it to our own process group.
            grace_s: Seconds until SIGKILL, if they are not the usual ones.
        """
        now = time.monotonic()
        if not self.begun:
            self.grace_s = self.grace_s if grace_s is None else grace_s
            self._start_clock(now, self.grace_s)
        self.number = number
        self._to_group = self._to_group or to_group
        self._tell(self.leaders(), reached=reached)

    def sweep(self) -> None:
        """Stop the leftovers of a job that ended by itself, after a moment to exit on their own."""
        if self.number is None and self.due is None:
            self._lingers = True
            self.due = time.monotonic() + LINGER_S

    def tell_new(self) -> None:
        """Signal newly adopted children during a stop; to be called when a process has ended."""
        if self.begun and self._killed_at is None:
            self._tell(self._untold(self.leaders()))

    def _untold(self, pids: Iterable[int]) -> list[int]:
        return [pid for pid in pids if pid not in self.told and pid not in self._torch_agents]

    def kill(self) -> None:
        """Send SIGKILL to all groups and processes, now."""
        now = time.monotonic()
        if self._killed_at is None:
            self._killed_at = now
            self.number = self.number or signal.SIGKILL
        leaders = self.leaders()
        family = [*leaders, *find_descendants(leaders)]
        groups = self.groups | {attempt(os.getpgid, pid) for pid in family}
        for group in groups - {None, os.getpgrp()}:
            # One call for the whole group: a process that forks in a loop cannot escape.
            send(-(group or 0), signal.SIGKILL)
        for pid in family:
            self._kill_one(pid)
        self._chase()
        self.gave_up = now >= self._killed_at + KILL_WAIT_S
        self.due = None if self.gave_up else now + KILL_EVERY_S

    def _chase(self) -> None:
        """Kill processes that become our children in between; we are faster than they can fork."""
        hit = {pid for pid, number in self.told.items() if number == signal.SIGKILL}
        for _ in range(CHASES):
            for pid in self.leaders():
                if pid not in hit:
                    self._kill_one(pid)
                    hit.add(pid)

    def _kill_one(self, pid: int) -> None:
        send(pid, signal.SIGKILL)
        self.told[pid] = signal.SIGKILL

    def fire(self, now: float) -> None:
        """Do the step that is due."""
        if self._killed_at is not None:
            self.kill()
        elif self._lingers:
            self._end_lingering(now)
        else:
            (_, step), *self._steps = self._steps
            self.due = self._steps[0][0] if self._steps else None
            step()

    def _tell_rest(self) -> None:
        """Signal all processes that have not got a signal, after half of the grace period."""
        leaders = self.leaders()
        for pid in self._untold([*leaders, *find_descendants(leaders)]):
            self._tell_one(pid, self.number or signal.SIGTERM)

    def _tell_agents(self) -> None:
        for pid, agent in self._torch_agents.items():
            if pid in self.started and not agent.has_workers:
                self._tell_one(pid, self.number or signal.SIGTERM)

    def _end_grace(self) -> None:
        left = len(self.leaders())
        count = "1 process still runs" if left == 1 else f"{left} processes still run"
        if left:  # there may be none while the launcher waits for other nodes
            self._before_kill()
            self._say(f"{count} after {self.grace_s:g} s: sending SIGKILL", "grace-over")
        self.kill()

    def _end_lingering(self, now: float) -> None:
        self._lingers = False
        self.grace_s = min(self.grace_s, LEFTOVERS_GRACE_S)
        self._start_clock(now, self.grace_s)
        self.number = signal.SIGTERM
        leaders = self.leaders()
        if any(pid < 0 or is_alive(pid) for pid in leaders):
            self.left = "; ".join(describe_some(leaders, NAMED_MAX))
            starts = [found.started_s for found in map(read_stat, leaders) if found]
            self.left_at_s = max(starts, default=None)
            self.left_ranks = _find_ranks(leaders[:LEFT_MAX])
            self._say(f"{len(leaders)} left behind by the job: sending SIGTERM ({self.left})", "left-behind")
        self._tell(leaders)

    def _start_clock(self, now: float, grace_s: float) -> None:
        self._lingers = False
        self._steps = [
            (now + grace_s / 2, self._tell_rest),
            (now + grace_s * LAST_CALL, self._tell_agents),
            (now + grace_s, self._end_grace),
        ]
        self.due = self._steps[0][0]

    def _tell(self, pids: Iterable[int], *, reached: bool = False) -> None:
        number = self.number or signal.SIGTERM
        for pid in list(pids):
            below = find_descendants([pid]) if self._to_group else []
            for one in (*self._replace(pid, number), *below):
                self._tell_one(one, number, reached=reached and attempt(os.getpgid, one) == os.getpgrp())

    def _replace(self, pid: int, number: int) -> Iterable[int]:
        """Return the processes to signal instead of a leader; mostly the leader itself."""
        if pid not in self.agents or self._to_group:
            return [pid]
        from launcher.process.torch_agent import TorchAgent, find_workers

        workers = find_workers(pid, number)
        if workers and pid not in self._torch_agents:
            self._torch_agents[pid] = TorchAgent(pid, workers, self._loop)
        return workers if pid in self._torch_agents else [pid]

    def _tell_one(self, pid: int, number: int, *, reached: bool = False) -> None:
        if has_ended(pid):
            return  # it ended without our signal
        self.told[pid] = number
        if not reached:
            send(pid, number)
        send(pid, signal.SIGCONT)  # a process that is stopped, or about to be, could not act on the signal


def _is_empty(group: int) -> bool:
    try:
        os.kill(-group, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # another user's
    return False


def _is_left(group: int) -> bool:
    """Whether a group has processes that have not ended, as far as /proc shows them."""
    if _is_empty(group):
        return False
    shown = [pid for pid in list_pids() if attempt(os.getpgid, pid) == group]
    return not shown or any(map(is_alive, shown))


def _find_ranks(pids: list[int]) -> dict[int, list[str]]:
    """Return the ranks among processes, and their command lines; not what a rank has forked."""
    from launcher.process.families import read_worker

    found: dict[int, list[str]] = {}
    for pid in pids:
        stat, worker = read_stat(pid), read_worker(pid)
        if stat is not None and worker is not None and not stat.is_fork and not stat.has_ended:
            found[worker.rank] = read_command(pid)
    return found
