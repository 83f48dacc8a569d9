"""Ends what a finished job has left on a node: waits a moment for it, then kills it."""

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
"""Seconds for processes that end by themselves when the job does."""
KILL_WAIT_S = 2.0
"""Seconds for watchdogs: each cleans up for its own launcher, then ends by itself."""
LOOK_S, LOOK_AGAIN_S = 0.02, 0.01


def end_leftovers(job: str, daemons: Daemons, *, may_linger: bool) -> None:
    """End MPI's daemons, and all processes with the mark of a job.

    Args:
        job: Name of the job.
        daemons: The daemons of this node.
        may_linger: Whether all may have `LINGER_S` to end by themselves.
    """
    deadline = time.monotonic() + (LINGER_S if may_linger else 0.0)
    while (daemons.living() or find_marked(job.encode())) and time.monotonic() < deadline:
        select.select([], [], [], LOOK_S)
    daemons.kill()
    _kill_marked(job)


def _kill_marked(job: str) -> None:
    """Kill all processes with the mark; watchdogs get `KILL_WAIT_S` first."""
    deadline = time.monotonic() + KILL_WAIT_S
    while found := find_marked(job.encode()):
        is_late = time.monotonic() >= deadline
        for pid in found:
            if is_late or not is_watchdog(pid):
                send(pid, signal.SIGKILL)
        if is_late:
            return
        select.select([], [], [], LOOK_AGAIN_S)
