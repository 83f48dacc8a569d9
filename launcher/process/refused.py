"""System calls that supervision needs: finds out which of them the kernel refuses.

A container's seccomp profile can make any call fail (EPERM, ENOSYS). The launcher works without many of them:
prctl, pidfd_open, memfd_create, inotify, setpriority, setsid, sched_setaffinity. It needs those below.

Source: seccomp(2); the default profiles of Docker and containerd, which refuse none of these.
"""

from __future__ import annotations

import os
import select
from _socket import AF_INET, SOCK_STREAM, socket
from errno import EPERM

from launcher.core.errors import LauncherError, Unavailable, make_problem
from launcher.core.signal import signal
from launcher.process.kernel import FULL, collect, has_children, open_signal_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NEEDED = {
    "clone": "a process is started",
    "dup2": "a process gets its standard streams",
    "epoll_create1": "the launcher waits for events",
    "epoll_ctl": "the launcher waits for events",
    "epoll_wait": "the launcher waits for events",
    "ioctl": "the output of processes is read without waiting for it",
    "kill": "processes are signalled",
    "pipe2": "the output of processes is read",
    "rt_sigaction": "the launcher sets how signals act on processes",
    "rt_sigprocmask": "the launcher receives signals",
    "setpgid": "a process and its children are signalled together",
    "signalfd4": "the launcher receives signals",
    "socket": "launchers communicate",
    "waitid": "the launcher notices that processes exit",
}
"""Needed calls, by their names on x86_64, and what each is for."""
AT_TIMES = {"memfd_create": "a file in memory is made"}
"""Calls that some jobs need: a hostfile of ours, ``--stdin all``."""


def explain(error: OSError) -> LauncherError | None:
    """Return the error that names all refused calls, if an OSError was caused by one; otherwise None.

    Args:
        error: The error that occurred; its errno may be None if unknown.
    """
    refused = {} if error.errno in FULL else find_refused()
    if not refused or error.errno not in (None, *refused.values()):
        return None
    return refuse(refused)


def refuse(refused: Mapping[str, int]) -> Unavailable:
    """Return the error that names refused calls, each with its errno."""
    calls, purposes = ", ".join(refused), NEEDED | AT_TIMES
    return Unavailable(
        *(
            make_problem(
                "call-refused", call=call, purpose=purposes[call], reason=os.strerror(number), calls=calls
            )
            for call, number in refused.items()
        )
    )


def find_refused() -> Mapping[str, int]:
    """Return the names of the needed calls that fail here, each with its errno."""
    refused: dict[str, int] = {}

    def attempt(call: str, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            if error.errno not in FULL:
                refused[call] = error.errno or EPERM

    opened: list[int] = []
    attempt("pipe2", lambda: opened.extend(os.pipe()))
    queue: list[select.epoll] = []
    attempt("epoll_create1", lambda: queue.append(select.epoll()))
    if opened:
        attempt("dup2", lambda: os.dup2(opened[0], opened[1]))
        attempt("ioctl", lambda: os.set_blocking(opened[0], False))
    if opened and queue:
        attempt("epoll_ctl", lambda: queue[0].register(opened[0], select.EPOLLIN))
    if queue:
        attempt("epoll_wait", lambda: queue[0].poll(0))
        queue[0].close()
    attempt("rt_sigaction", lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN))
    attempt("rt_sigprocmask", lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    attempt("signalfd4", lambda: opened.append(open_signal_file((signal.SIGCHLD,))))
    attempt("socket", lambda: opened.append(socket(AF_INET, SOCK_STREAM).detach()))
    attempt("kill", lambda: os.kill(os.getpid(), 0))
    attempt("waitid", has_children)
    pids: list[int] = []
    attempt("clone", lambda: pids.append(_fork_and_lead()))
    if pids and "waitid" not in refused:
        attempt("setpgid", lambda: _hear_of(pids[0]))
    for number in opened:
        os.close(number)
    return dict(sorted(refused.items()))


def _fork_and_lead() -> int:
    """Fork a process that tries to lead a group, and exits with the errno; return its pid.

    A child tries it because a session leader, as we may be, cannot.
    """
    pid = os.fork()
    if pid == 0:
        number = 255
        try:
            os.setpgid(0, 0)
            number = 0
        except OSError as error:
            number = error.errno or number
        finally:
            os._exit(number)
    return pid


def _hear_of(pid: int) -> None:
    try:
        number = collect(pid, 0) or 0
    except ChildProcessError:  # SIGCHLD is ignored: the kernel has collected it
        return
    if number > 0:
        raise OSError(number, os.strerror(number))
