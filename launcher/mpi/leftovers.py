"""Ends what an attempt has left on a node: waits a moment for it, then kills it."""

from __future__ import annotations

import select
import signal
import time

from launcher.mpi.daemons import find_daemon
from launcher.process.signals import send
from launcher.process.watchdog import find_marked, is_watchdog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.mpi.daemons import Daemons

LINGER_S = 1.0
"""Seconds for processes that end by themselves when the job does."""
KILL_WAIT_S = 2.0
"""Seconds for watchdogs: each cleans up for its own launcher, then ends by itself."""
LOOK_S, LOOK_AGAIN_S = 0.02, 0.01


class Sweep:
    """Ends MPI's daemons, and all processes with the mark of a job; a timer of the session's loop.

    Attributes:
        due: When to look again; None once nothing is left, or not even SIGKILL has helped.
    """

    def __init__(
        self, job: str, daemons: Daemons, linger_s: float, done: Callable[[], None] = lambda: None
    ) -> None:
        """Begin.

        Args:
            job: Name of the job.
            daemons: The daemons of this node.
            linger_s: Seconds that all may take to end by themselves.
            done: Called at the end.
        """
        self.due: float | None = time.monotonic()
        self._job, self._daemons, self._done = job.encode(), daemons, done
        self._kill_at = self.due + linger_s

    def run(self) -> None:
        """Wait until it is over."""
        while self.due is not None:
            self.fire(time.monotonic())
            select.select([], [], [], 0.0 if self.due is None else max(0.0, self.due - time.monotonic()))

    def fire(self, now: float) -> None:
        """Look at what is left; kill it if it had its time: watchdogs get `KILL_WAIT_S` more."""
        found = find_marked(self._job)
        for pid in found:
            self._daemons.watch(find_daemon(pid))  # that of a session before us
        is_late = now >= self._kill_at + KILL_WAIT_S
        if is_late or not (found or self._daemons.living()):
            self.due = None
        elif now < self._kill_at:
            self.due = now + LOOK_S
            return
        else:
            self.due = now + LOOK_AGAIN_S
        self._daemons.kill()
        for pid in found:
            if is_late or not is_watchdog(pid):
                send(pid, signal.SIGKILL)
        if self.due is None:
            self._done()
