"""The ranks of all nodes as the target of signals: stops, kills and releases them, then ends mpirun."""

from __future__ import annotations

import time

from launcher.core.signal import signal
from launcher.mpi.messages import PassOn, Release

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.mpi.head import Head

KILL_WAIT_S = 2.0
SETTLE_S = 1.0
"""Seconds between the first and the last ranks that mpirun starts."""
MPI_END_S = 5.0
"""Seconds that mpirun may take to notice that all of its ranks have ended."""


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

    def __init__(self, head: Head) -> None:
        self._head = head
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
        """Number of running ranks."""
        return self._head.ranks_running()

    def describe(self) -> str:
        """Return the ranks in words: ``8 ranks on 2 nodes``."""
        ranks, nodes = self.count, len(self._head.sessions.nodes)
        return f"{ranks} rank{'' if ranks == 1 else 's'} on {nodes} node{'' if nodes == 1 else 's'}"

    def pass_on(self, number: int, *, whole: bool, reached: bool = False) -> None:
        """Send a signal to all ranks, except SIGTSTP: see `suspends`."""
        if number != signal.SIGTSTP:
            self.passed_on.add(number)
            self._head.sessions.tell(PassOn(number))

    def note(self, number: int) -> None:
        """Do nothing: the wrapper of each rank remembers the signal."""

    def stop(self, number: int, *, to_group: bool = False, reached: bool = False) -> None:
        """Tell all ranks to end by a signal; a repeated call does not restart the grace."""
        if not self.begun:
            self.due = self._kill_at = time.monotonic() + self._head.agent.watch.grace_s
        self.begun = True
        self._head.sessions.tell(PassOn(number, ends=True))
        self.check()

    def kill(self) -> None:
        """Send SIGKILL to all ranks now."""
        self.begun = self.killed = True
        self._head.sessions.tell(PassOn(int(signal.SIGKILL), ends=True))
        self.due = time.monotonic() + KILL_WAIT_S
        self.check()

    def check(self) -> None:
        """Release the ranks if none is running, so that mpirun can notice their end.

        If some ranks have not reported their start, wait for them first: if mpirun killed them, their reports
        would be lost.
        """
        if not self.begun or self.released or self._head.ranks_running():
            return
        if self._head.ranks_started() >= self._head.job.world_size:
            self._release()
        else:
            self._settled_at = time.monotonic() + SETTLE_S
            self.due = min(self._kill_at, self._settled_at)

    def fire(self, now: float) -> None:
        """Take the next step."""
        if self.released:
            self.due = None
            self._head.end_mpirun()
        elif self.killed or (now >= self._settled_at and not self._head.ranks_running()):
            self._release()
        elif now < self._kill_at:
            self.due = self._kill_at  # some ranks have started meanwhile
        else:
            count = self._head.ranks_running()
            ranks = "1 rank still runs" if count == 1 else f"{count} ranks still run"
            self._head.agent.say(
                f"{ranks} after {self._head.agent.watch.grace_s:g} s: sending SIGKILL", "grace-over"
            )
            self.kill()

    def _release(self) -> None:
        self.released = True
        self._head.sessions.tell(Release())
        self.due = time.monotonic() + MPI_END_S
