"""Resolves many names in parallel within a time limit: a name server that is down costs 10 s per name.

Threads of a forked child process ask the resolver and write the answers to a pipe. The child can be killed. A
thread of ours that waits for a name server could not be stopped, and may hold locks that a later fork would
inherit.
"""

from __future__ import annotations

import os
import select
import socket
import time

from launcher.core.errors import attempt
from launcher.core.signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

THREADS = 32
LINE_BYTES = select.PIPE_BUF
"""Bytes that the kernel writes to a pipe atomically, even with several writers."""
GRACE_S = 0.5
"""Seconds after the time limit at which the child ends by itself, in case its parent was killed."""
REAP_S = 5.0
"""Seconds that killed children may need to exit on a busy node."""
_STEP_S = 0.002


def resolve_names(names: Iterable[str], limit_s: float) -> dict[str, frozenset[str]]:
    """Return the addresses of each name, an empty set for an unknown name.

    Names without an answer within ``limit_s`` seconds are left out. The child process has ended on return,
    unless the kernel holds it for longer than `REAP_S`.
    """
    answers = {name: frozenset((name,)) for name in names if is_address(name)}
    asked = [name for name in dict.fromkeys(names) if name not in answers]
    if not asked or limit_s <= 0:
        return answers
    deadline = time.monotonic() + limit_s
    reading, writing = os.pipe()
    try:
        pid = _start(asked, writing, limit_s)
    except OSError:
        return answers  # no more processes
    finally:
        os.close(writing)
    try:
        for line in _read_lines(reading, deadline):
            number, *found = line.split()
            answers[asked[int(number)]] = frozenset(found)
    finally:
        os.close(reading)
        _end(pid)
    return answers


def is_address(name: str) -> bool:
    """Whether a name is an IPv4 or IPv6 address in standard notation."""
    return any(attempt(socket.inet_pton, family, name) for family in (socket.AF_INET, socket.AF_INET6))


def ask_resolver(name: str) -> frozenset[str]:
    """Return the addresses of a name, without a time limit; an empty set for an unknown name."""
    found = attempt(socket.getaddrinfo, name, None, type=socket.SOCK_STREAM)
    return frozenset(str(item[4][0]).partition("%")[0] for item in found or ())


def _start(names: Sequence[str], writing: int, limit_s: float) -> int:
    """Start the child process; the parent's signal handlers do not run in it."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_REAL, limit_s + GRACE_S)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))
                _work(list(enumerate(names)), writing)
            finally:
                os._exit(0)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _work(left: list[tuple[int, str]], writing: int) -> None:
    """Resolve names by threads, and write the answers."""
    import threading

    def answer() -> None:
        while left:
            try:
                place, name = left.pop()
            except IndexError:
                return  # another thread took the last one
            line = " ".join((str(place), *sorted(ask_resolver(name)), "")).encode()
            whole = line[: LINE_BYTES - 1].rpartition(b" ")[0]  # a part of an address is that of another node
            os.write(writing, whole + b"\n")

    threads = [threading.Thread(target=answer) for _ in range(min(THREADS, len(left)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


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


def _end(pid: int) -> None:
    """Kill and reap the child; give up after `REAP_S` if the kernel holds it."""
    until = time.monotonic() + REAP_S
    # No child of ours if SIGCHLD is ignored, or another part of the program has reaped it
    while attempt(os.waitpid, pid, os.WNOHANG) == (0, 0) and time.monotonic() < until:
        os.kill(pid, signal.SIGKILL)  # not reaped yet, so the PID is still the child's
        time.sleep(_STEP_S)
