"""The placeholder: a process that only waits and forwards signals, and which mpirun takes for the rank.

An MPI daemon that loses its mpirun ends the ranks within 2 s, and so does an mpirun that loses a daemon or a
rank. They only reach the placeholder. The rank's wrapper is in another process session (setsid), notices the
end of the placeholder and reports it, so that the head can end all ranks with their grace.
"""

from __future__ import annotations

import os

from launcher.core.signal import signal
from launcher.process.watchdog import close_others

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals by which MPI's daemons end a rank; SIGHUP comes from Open MPI's terminal of a killed daemon."""


def leave_placeholder() -> int:
    """Fork: the parent stays as the placeholder, the child returns, out of reach of MPI's daemon.

    Call it while the forwarded signals are blocked, see `launcher.process.signal_file.hold`.

    Returns:
        A descriptor that reaches end of file when the placeholder is asked to end or is killed.

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
    """Forward signals, except those in `ENDING`, to the wrapper until it ends; return its status.

    At the first signal in `ENDING` close ``writing``, to tell the wrapper.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
    watched = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                os.kill(os.getpid(), signal.SIGKILL)  # all other signals are blocked
            return code
        number = signal.sigwait(watched)
        if number in ENDING and writing >= 0:
            os.close(writing)
            writing = -1
        elif number not in (*ENDING, signal.SIGCHLD):
            os.kill(pid, number)
