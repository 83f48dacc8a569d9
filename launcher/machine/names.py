"""Look names up, many at once, and for a bounded time: a name server that is down takes ten seconds for each.

Forks ask and write the answers to one pipe. A thread that waits for a name server cannot be ended, and would
share locks with what is forked later; a fork is killed.
"""

from __future__ import annotations

import os
import select
import socket
import time

from launcher.core.signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PROCESSES = 32
LINE_BYTES = select.PIPE_BUF
"""What the kernel writes to a pipe in one piece, though others write there too."""
GRACE_S = 0.5
"""After which a fork ends by itself whose parent was killed."""
REAP_S = 5.0
"""What processes may take to be gone that were killed, on a busy machine."""
_STEP_S = 0.002


def resolve_names(names: Iterable[str], limit_s: float) -> dict[str, frozenset[str]]:
    """Return the addresses of names; of a name that is not known none.

    A name without an answer in time is not in what is returned. No process is left behind.
    """
    answers = {name: frozenset((name,)) for name in names if is_address(name)}
    asked = [name for name in dict.fromkeys(names) if name not in answers]
    if not asked or limit_s <= 0:
        return answers
    deadline = time.monotonic() + limit_s
    reading, writing = os.pipe()
    pids: list[int] = []
    try:
        try:
            for place in range(min(PROCESSES, len(asked))):
                pids.append(_start(range(place, len(asked), PROCESSES), asked, writing, limit_s))
        except OSError:
            pass  # no more processes: what has none asking gets no answer
        finally:
            os.close(writing)
        for line in _read_lines(reading, deadline):
            number, *found = line.split()
            answers[asked[int(number)]] = frozenset(found)
    finally:
        os.close(reading)
        _end(pids)
    return answers


def is_address(name: str) -> bool:
    """Whether a name is an address already, as addresses are written."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, name)
        except (OSError, ValueError):
            continue
        return True
    return False


def ask_resolver(name: str) -> frozenset[str]:
    """Return the addresses of a name, for as long as the resolver takes; none if it is not known."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return frozenset()
    return frozenset(str(item[4][0]).partition("%")[0] for item in found)


def _start(places: Iterable[int], names: Sequence[str], writing: int, limit_s: float) -> int:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    parent = os.getpid()
    try:
        pid = os.fork()
        if pid == 0:
            _work(places, names, writing, limit_s, parent)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _work(places: Iterable[int], names: Sequence[str], writing: int, limit_s: float, parent: int) -> None:
    """Ask, in a process of its own, which ends here: no handler of the parent's runs in it."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, limit_s + GRACE_S)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))
        for place in places:
            if os.getppid() == parent:
                line = " ".join((str(place), *sorted(ask_resolver(names[place]))))
                os.write(writing, line.encode()[: LINE_BYTES - 1] + b"\n")
    finally:
        os._exit(0)


def _read_lines(reading: int, deadline: float) -> Iterable[str]:
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    rest = b""
    while (left_s := deadline - time.monotonic()) > 0:
        if not poll.poll(left_s * 1000):
            return
        data = os.read(reading, 1 << 16)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from (line.decode() for line in lines)


def _end(pids: Sequence[int]) -> None:
    """End the children, and collect them; one that the kernel holds is not waited for."""
    left = [pid for pid in pids if not _is_gone(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)  # a child that was not waited for: the pid is its own
    until = time.monotonic() + REAP_S
    while (left := [pid for pid in left if not _is_gone(pid)]) and time.monotonic() < until:
        time.sleep(_STEP_S)


def _is_gone(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return True  # SIGCHLD is ignored, or another part of the program has taken its status
