"""The ranks of all nodes, as node 0 knows them: which run, and the steps by which all end."""

from __future__ import annotations

import time

from launcher.core.signal import signal
from launcher.mpi.protocol import PassOn, Release

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.core.log import Say
    from launcher.process.group import ProcessGroup

KILL_WAIT_S = 2.0
SETTLE_S = 1.0
"""Seconds between the first and the last ranks that mpirun starts."""
MPI_END_S = 5.0
"""Seconds that mpirun may take to notice that all of its ranks have ended."""
MPI_GRACE_S = 4.0
"""Seconds between SIGTERM and SIGKILL for mpirun itself, which has nothing to save."""


class MpiNode:
    """One node of the job.

    Attributes:
        index: Its node rank.
        host: Its name or address in the host list.
        name: Its own host name.
        launcher: Name of its launcher, the latest one.
        lost: How the latest one was lost: whether its connection has ended, and when its ranks have ended at
            the latest (monotonic seconds), which is 0 if it never had any.
        free_at: Before this no other launcher's ranks start in its place.
        started: Ranks that have reported their start, by the PID of their wrapper.
        ended: PIDs of those that have ended.
    """

    def __init__(self, index: int, host: str) -> None:
        self.index, self.host = index, host
        self.name = self.launcher = ""
        self.lost, self.free_at = (True, 0.0), 0.0
        self.forget_ranks()

    def forget_ranks(self) -> None:
        """Forget the ranks of the last attempt."""
        self.started: dict[int, int] = {}
        self.ended: set[int] = set()

    def find_free_at(self, session: str, host: str) -> float:
        """Return before when no rank may start here, because a launcher of this session and host calls.

        The same launcher knows what runs here, and so does another one of the same machine.
        """
        has_ended, until = self.lost
        if session != self.launcher and not (has_ended and host == self.name):
            self.free_at = max(self.free_at, until)
        return self.free_at

    @property
    def name_in_full(self) -> str:
        """Its rank and its host, e.g. ``node 1 (10.0.0.5)``."""
        return f"node {self.index} ({self.host})"

    @property
    def running(self) -> int:
        """Number of its running ranks."""
        return len(self.started) - len(self.ended)

    def runs(self, pid: int) -> bool:
        """Whether the rank whose wrapper has this PID has started here and not ended."""
        return pid in self.started and pid not in self.ended


class RanksTarget:
    """The signal target of the head, and the steps to end the job.

    The steps are: stop the ranks, kill them after the grace, release them, end mpirun. They are those of
    `launcher.process.stop.Stopper`, but for processes that are not our children.

    Attributes:
        due: When `fire` has something to do.
        begun: Whether the ranks have been told to end.
        killed: Whether they have been sent SIGKILL.
        released: Whether they have been released, so that mpirun can notice their end.
        passed_on: The signals that were forwarded to them.
    """

    def __init__(
        self,
        nodes: Sequence[MpiNode],
        world_size: int,
        grace_s: float,
        say: Say,
        broadcast: Callable[[object], None],
        mpirun: ProcessGroup,
    ) -> None:
        """Begin before the first attempt.

        Args:
            nodes: The nodes of the job.
            world_size: Number of ranks that were requested.
            grace_s: Seconds between SIGTERM and SIGKILL.
            say: Prints a message in the log.
            broadcast: Sends all nodes a message.
            mpirun: Its process, which is stopped if it has not noticed that no rank is left.
        """
        self._nodes, self._world_size, self._grace_s = nodes, world_size, grace_s
        self._say, self._broadcast, self._mpirun = say, broadcast, mpirun
        self.begin_attempt()

    suspends = False
    """A cluster cannot be suspended: its network connections would time out."""

    def begin_attempt(self) -> None:
        """Forget the end of the attempt before."""
        self.due: float | None = None
        self.begun = self.killed = self.released = False
        self.passed_on: set[int] = set()
        self._kill_at, self._settled_at = 0.0, 0.0

    @property
    def count(self) -> int:
        """Number of running ranks, according to their reports."""
        return sum(node.running for node in self._nodes)

    @property
    def started(self) -> int:
        """Number of ranks that have reported their start."""
        return sum(len(node.started) for node in self._nodes)

    @property
    def has_ended(self) -> bool:
        """Whether all ranks have ended or have been released."""
        return self.released or not self.count

    def describe(self) -> str:
        """Return the ranks in words: ``8 ranks on 2 nodes``."""
        ranks, nodes = self.count, len(self._nodes)
        return f"{ranks} rank{'' if ranks == 1 else 's'} on {nodes} node{'' if nodes == 1 else 's'}"

    def pass_on(self, number: int, *, whole: bool, reached: bool = False) -> None:
        """Send a signal to all ranks, except SIGTSTP: see `suspends`."""
        if number != signal.SIGTSTP:
            self.passed_on.add(number)
            self._broadcast(PassOn(number))

    def note(self, number: int) -> None:
        """Do nothing: the wrapper of each rank remembers the signal."""

    def stop(self, number: int, *, to_group: bool = False, reached: bool = False) -> None:
        """Tell all ranks to end by a signal; a repeated call does not restart the grace."""
        if not self.begun:
            self.due = self._kill_at = time.monotonic() + self._grace_s
        self.begun = True
        self._broadcast(PassOn(number, ends=True))
        self.check()

    def kill(self) -> None:
        """Send SIGKILL to all ranks now."""
        self.begun = self.killed = True
        self._broadcast(PassOn(int(signal.SIGKILL), ends=True))
        self.due = time.monotonic() + KILL_WAIT_S
        self.check()

    def check(self) -> None:
        """Release the ranks if none is running, so that mpirun can notice their end.

        If some ranks have not reported their start, wait for them first: if mpirun killed them, their reports
        would be lost.
        """
        if not self.begun or self.released or self.count:
            return
        if self.started >= self._world_size:
            self._release()
        else:
            self._settled_at = time.monotonic() + SETTLE_S
            self.due = min(self._kill_at, self._settled_at)

    def fire(self, now: float) -> None:
        """Take the next step."""
        if self.released:
            self.due = None
            if self._mpirun.running:
                self._mpirun.stopper.begin(signal.SIGTERM, grace_s=MPI_GRACE_S)
        elif self.killed or (now >= self._settled_at and not self.count):
            self._release()
        elif now < self._kill_at:
            self.due = self._kill_at  # some ranks have started meanwhile
        else:
            count = self.count
            ranks = "1 rank still runs" if count == 1 else f"{count} ranks still run"
            self._say(f"{ranks} after {self._grace_s:g} s: sending SIGKILL", "grace-over")
            self.kill()

    def _release(self) -> None:
        self.released = True
        self._broadcast(Release())
        self.due = time.monotonic() + MPI_END_S
