"""What a job has left on a node when it is over: awaited for a moment, then killed."""

from __future__ import annotations

import select
import signal
import time

from launcher.process.signals import send
from launcher.process.watchdog import find_marked, is_watchdog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.mpi.daemons import Daemons

LINGER_S = 1.0
"""For what ends by itself when the job does."""
KILL_WAIT_S = 2.0
"""For watchdogs: they have their own to clean up, and end by themselves then."""
LOOK_S, LOOK_AGAIN_S = 0.02, 0.01


def end_leftovers(job: str, daemons: Daemons, *, may_linger: bool) -> None:
    """End MPI's daemons, and whatever carries the mark of a job.

    Args:
        job: Its name.
        daemons: Those of this node.
        may_linger: Whether both may take a moment to end by themselves.
    """
    deadline = time.monotonic() + (LINGER_S if may_linger else 0.0)
    while (daemons.living() or find_marked(job.encode())) and time.monotonic() < deadline:
        select.select([], [], [], LOOK_S)
    daemons.kill()
    _kill_marked(job)


def _kill_marked(job: str) -> None:
    """Kill what carries the mark; the watchdogs of launchers that are killed have some time before."""
    deadline = time.monotonic() + KILL_WAIT_S
    while found := find_marked(job.encode()):
        is_late = time.monotonic() >= deadline
        for pid in found:
            if is_late or not is_watchdog(pid):
                send(pid, signal.SIGKILL)
        if is_late:
            return
        select.select([], [], [], LOOK_AGAIN_S)
