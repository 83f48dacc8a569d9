"""How a head ends its job: ask the ranks, kill them, let them go, end mpirun; what signals mean for that."""

from __future__ import annotations

import time

from launcher.process.signals import name_signal, signal
from launcher.run.relay import Relay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.mpi.head import Head

KILL_WAIT_S = 2.0
SETTLE_S = 1.0
"""Between the first ranks and the last that mpirun starts."""
MPI_END_S = 5.0
"""How long mpirun may take to notice that all of its ranks have ended."""


class Ending:
    """The end of the job, once it has begun: ask the ranks, kill them, let them go, end mpirun.

    The same steps as `launcher.process.stop.Stopper` for processes that are not our children.
    """

    def __init__(self, head: Head) -> None:
        self.due: float | None = None
        self.begun = self.killed = self.released = False
        self._kill_at, self._settled_at = 0.0, 0.0
        self._head = head

    def begin(self, number: int, *, to_group: bool = False) -> None:
        """Tell all ranks; the clock of the first time is not restarted."""
        if not self.begun:
            self.due = self._kill_at = time.monotonic() + self._head.watch.grace_s
        self.begun = True
        self._head.crew.tell({"do": "signal", "number": number, "ends": True})
        self.check()

    def kill(self) -> None:
        """SIGKILL to all ranks, now."""
        self.begun = self.killed = True
        self._head.crew.tell({"do": "signal", "number": int(signal.SIGKILL), "ends": True})
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
            self._head.say(f"{ranks} after {self._head.watch.grace_s:g} s: SIGKILL")
            self.kill()

    def _release(self) -> None:
        self.released = True
        self._head.crew.tell({"do": "release"})
        self.due = time.monotonic() + MPI_END_S


class HeadRelay(Relay):
    """Passes signals on to the ranks of all nodes instead of to mpirun."""

    def __init__(self, head: Head) -> None:
        super().__init__(head.watch, shares_terminal=False, say=head.say)
        self._head = head

    def attach(self, stopper: object, running: object) -> None:
        """There is one job, whatever mpirun is asked."""

    def pass_on(self, number: int, *, from_terminal: bool) -> None:
        """Do with a signal what its sender wants to happen to the job."""
        sent = self._translate(number)
        if {number, sent} & {signal.SIGTERM, signal.SIGINT}:
            if from_terminal and number == signal.SIGINT and self.told is not None:
                self._head.ending.kill()
            else:
                self._stop(number, sent, typed=from_terminal)
        elif number != signal.SIGTSTP:  # a cluster is not suspended: its network would time out
            self._head.crew.tell({"do": "signal", "number": sent})

    def _stop(self, number: int, sent: int, *, typed: bool) -> None:
        count = self._head.ranks_running()
        if self.told is None:
            to = "" if sent == number else f" as {name_signal(sent)}"
            now = "; again to end them now" if number == signal.SIGINT and typed else ""
            ranks = f"{count} rank{'' if count == 1 else 's'} on {len(self._head.crew.nodes)} nodes"
            self._head.say(
                f"{name_signal(number)}: passed on{to} to {ranks}, {self._head.watch.grace_s:g} s "
                f"until SIGKILL{now}"
            )
        self.told = self.told or number
        self._head.ending.begin(sent)
