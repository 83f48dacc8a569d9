"""Resolves many names in parallel within a time limit: a name server that is down costs 10 s per name.

Forked child processes ask the resolver and write the answers to one pipe. They can be killed. A thread that
waits for a name server cannot be stopped, and may hold locks that a later fork would inherit.
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
"""Bytes that the kernel writes to a pipe atomically, even with several writers."""
GRACE_S = 0.5
"""Seconds after the time limit at which a child ends by itself, in case its parent was killed."""
REAP_S = 5.0
"""Seconds that killed children may need to exit on a busy node."""
_STEP_S = 0.002


def resolve_names(names: Iterable[str], limit_s: float) -> dict[str, frozenset[str]]:
    """Return the addresses of each name, an empty set for an unknown name.

    Names without an answer within ``limit_s`` seconds are left out. All child processes have ended on return,
    unless the kernel holds one for longer than `REAP_S`.
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
            pass  # no more processes: the names without a child get no answer
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
    """Whether a name is an IPv4 or IPv6 address in standard notation."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, name)
        except (OSError, ValueError):
            continue
        return True
    return False


def ask_resolver(name: str) -> frozenset[str]:
    """Return the addresses of a name, without a time limit; an empty set for an unknown name."""
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
    """Resolve names in the child process and exit it; the parent's signal handlers do not run in it."""
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
    """Kill and reap the children; give up after `REAP_S` on one that the kernel holds."""
    left = [pid for pid in pids if not _is_gone(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)  # not reaped yet, so the PID is still the child's
    until = time.monotonic() + REAP_S
    while (left := [pid for pid in left if not _is_gone(pid)]) and time.monotonic() < until:
        time.sleep(_STEP_S)


def _is_gone(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return True  # SIGCHLD is ignored, or another part of the program has reaped it
