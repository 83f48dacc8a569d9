"""Stops torchrun's workers without their agent: we signal the workers instead of the agent.

An agent that gets a signal exits with status 1 whatever its workers do. Without a signal it exits after its
workers, with 0 if all of them exited with 0. But as soon as one has failed, it ends all others by a signal
that they have already got, and a worker that is writing a checkpoint would start again. So we suspend the
agent (SIGSTOP) before we signal the workers. We continue it when they have ended, or after `HOLD_S` if none
has failed by then, because the other nodes' agents would miss its heartbeats.

Source: SimpleElasticAgent.run and SubprocessHandler, torch/distributed/elastic of torch 2.13: a worker leads
a session.
"""

from __future__ import annotations

import os
import time

from launcher.core.errors import attempt
from launcher.core.signal import signal
from launcher.machine.process import find_children, has_ended, has_signal, read_environ, read_stat
from launcher.process.loop import Later
from launcher.process.signal_file import send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.process.loop import Loop

HOLD_S = 8.0
"""Seconds that we hold an agent: the c10d rendezvous drops an agent after 15 s, three of its heartbeats."""
MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"
SURVIVED = ("SigCgt", "SigIgn", "SigBlk")
"""Fields of /proc/PID/status with the signals that do not simply end a process: caught, ignored, blocked."""


class TorchAgent:
    """An agent whose workers were signalled."""

    def __init__(self, pid: int, workers: Sequence[int], loop: Loop) -> None:
        """Suspend the agent, and watch for the end of its workers."""
        self._pid, self._loop = pid, loop
        self._running: set[int] = set()
        self._has_failed = False
        send(pid, signal.SIGSTOP)
        loop.timers.append(Later(time.monotonic() + HOLD_S, self._release))
        for worker in workers:
            pidfd = attempt(os.pidfd_open, worker)
            if pidfd is None:  # it has gone, or the kernel has no pidfd
                continue
            self._running.add(worker)
            loop.add(pidfd, lambda worker=worker, pidfd=pidfd: self._on_end(worker, pidfd))  # type: ignore[misc]
        if not self._running:
            send(pid, signal.SIGCONT)

    @property
    def has_workers(self) -> bool:
        """Whether one of its children has not ended."""
        return any(not has_ended(pid) for pid in find_children(self._pid))

    def _release(self) -> None:
        """Continue the agent if no worker has failed so far: it has other work."""
        if not self._has_failed:
            send(self._pid, signal.SIGCONT)

    def _on_end(self, worker: int, pidfd: int) -> None:
        stat = read_stat(worker)  # of a zombie, unless its agent reaped it first
        self._loop.remove(pidfd)
        os.close(pidfd)
        self._running.discard(worker)
        if not self._running:
            send(self._pid, signal.SIGCONT)
        elif stat is not None and stat.has_ended and stat.exit_code:
            self._has_failed = True
            send(self._pid, signal.SIGSTOP)


def find_workers(agent: int, number: int) -> list[int]:
    """Return the workers to signal instead of an agent; none if the agent itself must be signalled.

    It must be if it would restart its workers after a failure, or if the signal simply ends one of them: then
    the workers cannot end well.
    """
    workers = [pid for pid in find_children(agent) if _is_worker(pid)]
    # Python catches SIGINT by itself, to end by it
    is_safe = number != signal.SIGINT and all(has_signal(pid, number, *SURVIVED) for pid in workers)
    return workers if is_safe else []


def _is_worker(pid: int) -> bool:
    """Whether a process is a running torchrun worker that is not restarted after a failure."""
    leads = attempt(os.getsid, pid) == pid  # a worker leads a session
    return leads and not has_ended(pid) and read_environ(pid).get(MAX_RESTARTS) == "0"
