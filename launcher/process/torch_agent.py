"""torchrun's agent while its workers are told to end: they are told in its place.

An agent that is told ends with status 1, whatever its workers do. One that is not ends when they have: with 0
if all have ended with 0. But it ends all as soon as one has failed, by a signal that they have heard already:
a worker that writes a checkpoint would begin once more. So it stands still before they are told, and goes on
when they have ended, or after `HOLD_S` if none has failed by then: the other nodes' agents would miss it.

Source: SimpleElasticAgent.run and SubprocessHandler, torch/distributed/elastic of torch 2.13: a worker leads
a session.
"""

from __future__ import annotations

import os
import time

from launcher.core.signal import signal
from launcher.machine.process import has_signal, read_environ, read_stat
from launcher.process.descendants import find_children, has_ended
from launcher.process.loop import Later
from launcher.process.signals import send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.process.loop import Loop

HOLD_S = 8.0
"""Agents that meet by c10d give one up that was not heard for 15 s, three of its heartbeats."""
MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"
SURVIVED = ("SigCgt", "SigIgn", "SigBlk")
"""Signals by which a process does not simply end: it catches, ignores or blocks them."""


class TorchAgent:
    """An agent whose workers were told to end."""

    def __init__(self, pid: int, workers: Sequence[int], loop: Loop) -> None:
        """Let it stand still, and watch for the end of its workers."""
        self._pid, self._loop = pid, loop
        self._running: set[int] = set()
        self._has_failed = False
        send(pid, signal.SIGSTOP)
        loop.timers.append(Later(time.monotonic() + HOLD_S, self._release))
        for worker in workers:
            try:
                pidfd = os.pidfd_open(worker)
            except OSError:  # it is gone, or the kernel has none
                continue
            self._running.add(worker)
            loop.add(pidfd, lambda worker=worker, pidfd=pidfd: self._on_end(worker, pidfd))  # type: ignore[misc]
        if not self._running:
            send(pid, signal.SIGCONT)

    @property
    def has_workers(self) -> bool:
        """Whether one of them has not ended."""
        return any(not has_ended(pid) for pid in find_children(self._pid))

    def _release(self) -> None:
        """None has failed so far: the agent may see to its other work."""
        if not self._has_failed:
            send(self._pid, signal.SIGCONT)

    def _on_end(self, worker: int, pidfd: int) -> None:
        stat = read_stat(worker)  # a zombie's, unless its agent was quicker
        self._loop.remove(pidfd)
        os.close(pidfd)
        self._running.discard(worker)
        if not self._running:
            send(self._pid, signal.SIGCONT)
        elif stat is not None and stat.has_ended and stat.exit_code:
            self._has_failed = True
            send(self._pid, signal.SIGSTOP)


def find_workers(agent: int, number: int) -> list[int]:
    """Return the workers that are told in place of an agent; none where it is to be told itself.

    It is where it would start its workers again after a failure, and where the signal simply ends one of
    them: then it cannot end well.
    """
    workers = [pid for pid in find_children(agent) if _is_worker(pid)]
    # Python catches SIGINT by itself, to end by it
    is_safe = number != signal.SIGINT and all(has_signal(pid, number, *SURVIVED) for pid in workers)
    return workers if is_safe else []


def _is_worker(pid: int) -> bool:
    """Whether a process is a worker of torchrun's that runs, and is started only once."""
    try:
        leads = os.getsid(pid) == pid and not has_ended(pid)
    except OSError:  # it is gone
        return False
    return leads and read_environ(pid).get(MAX_RESTARTS) == "0"
