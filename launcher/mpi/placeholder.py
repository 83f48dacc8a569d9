"""What mpirun knows of a rank: a process that only waits, in place of the rank's wrapper.

An MPI daemon that loses its mpirun, and an mpirun that loses a daemon or a rank, end the ranks within 2 s.
What they end is the placeholder; the wrapper has a session of its own, hears of that, and has the job end
the ranks with their grace.
"""

from __future__ import annotations

import os

from launcher.core.signal import signal
from launcher.process.watchdog import close_others

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""By which MPI's daemons end a rank; the hangup is that of Open MPI's terminals when a daemon is killed."""


def leave_placeholder() -> int:
    """Go on as a child that MPI's daemon does not reach.

    To be called while the signals that are passed on are blocked, see `launcher.process.signals.hold`.

    Returns:
        A descriptor whose end tells that the placeholder was asked to end, or was killed.

    Raises:
        OSError: No more processes or descriptors.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        try:
            close_others((writing,))
            os._exit(_wait(pid, writing))
        finally:
            os._exit(1)
    os.close(writing)
    os.setsid()
    return reading


def _wait(pid: int, writing: int) -> int:
    """Pass signals on to the wrapper until it ends, but those to end; return its status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
    watched = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                os.kill(os.getpid(), signal.SIGKILL)  # the others were blocked
            return code
        number = signal.sigwait(watched)
        if number in ENDING and writing >= 0:
            os.close(writing)
            writing = -1
        elif number not in (*ENDING, signal.SIGCHLD):
            os.kill(pid, number)
