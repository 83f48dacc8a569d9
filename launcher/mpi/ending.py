"""The ranks of all nodes as the target of signals: ask them, kill them, let them go, end mpirun."""

from __future__ import annotations

import time

from launcher.core.signal import signal
from launcher.mpi.messages import PassOn, Release

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.mpi.head import Head

KILL_WAIT_S = 2.0
SETTLE_S = 1.0
"""Between the first ranks and the last that mpirun starts."""
MPI_END_S = 5.0
"""How long mpirun may take to notice that all of its ranks have ended."""


class RanksTarget:
    """The end of the job, once it has begun: ask the ranks, kill them, let them go, end mpirun.

    The same steps as `launcher.process.stop.Stopper` for processes that are not our children.
    """

    def __init__(self, head: Head) -> None:
        self.due: float | None = None
        self.begun = self.killed = self.released = False
        self._kill_at, self._settled_at = 0.0, 0.0
        self._head = head

    suspends = False
    """A cluster is not suspended: its network would time out."""

    @property
    def count(self) -> int:
        """How many ranks run."""
        return self._head.ranks_running()

    def describe(self) -> str:
        """Return them in words."""
        return f"{self.count} rank{'' if self.count == 1 else 's'} on {len(self._head.sessions.nodes)} nodes"

    def pass_on(self, number: int, *, whole: bool) -> None:
        """Send a signal to all ranks."""
        if number != signal.SIGTSTP:
            self._head.sessions.tell(PassOn(number))

    def note(self, number: int) -> None:
        """Each rank's own launcher remembers it."""

    def stop(self, number: int, *, to_group: bool = False) -> None:
        """Tell all ranks; the clock of the first time is not restarted."""
        if not self.begun:
            self.due = self._kill_at = time.monotonic() + self._head.agent.watch.grace_s
        self.begun = True
        self._head.sessions.tell(PassOn(number, ends=True))
        self.check()

    def kill(self) -> None:
        """SIGKILL to all ranks, now."""
        self.begun = self.killed = True
        self._head.sessions.tell(PassOn(int(signal.SIGKILL), ends=True))
        self.due = time.monotonic() + KILL_WAIT_S
        self.check()

    def check(self) -> None:
        """Once no rank runs any more, mpirun may notice that they have ended.

        Unless some have yet to say that they start: what they would say is lost if mpirun kills them.
        """
        if not self.begun or self.released or self._head.ranks_running():
            return
        if self._head.ranks_started() >= self._head.job.world_size:
            self._release()
        else:
            self._settled_at = time.monotonic() + SETTLE_S
            self.due = min(self._kill_at, self._settled_at)

    def fire(self, now: float) -> None:
        """The next step is due."""
        if self.released:
            self.due = None
            self._head.end_mpirun()
        elif self.killed or (now >= self._settled_at and not self._head.ranks_running()):
            self._release()
        elif now < self._kill_at:
            self.due = self._kill_at  # some have started meanwhile
        else:
            count = self._head.ranks_running()
            ranks = "1 rank still runs" if count == 1 else f"{count} ranks still run"
            self._head.agent.say(f"{ranks} after {self._head.agent.watch.grace_s:g} s: SIGKILL")
            self.kill()

    def _release(self) -> None:
        self.released = True
        self._head.sessions.tell(Release())
        self.due = time.monotonic() + MPI_END_S
