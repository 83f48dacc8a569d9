"""Watchdog: a process that survives a SIGKILL of the launcher and kills the launcher's processes.

The kernel kills the processes themselves (`launcher.process.kernel.die_with_parent`), but the processes that
they have started would continue and hold the GPU. So a fork of the launcher waits at the end of a pipe. If
the pipe closes before the launcher dismisses it, it kills the process groups that it was told about, and
every process with this run's mark in its environment, in whatever group or session.

If another node may take over, the launcher also renews a lease: when it ends without a renewal, because the
launcher stands still, the watchdog kills the processes too, and stays.

Neither its name nor its command line is that of the launcher: `pkill -9 launcher` must not end both. If both
are killed nevertheless, a new launcher in the place of the old one kills what carries the mark of their node.
"""

from __future__ import annotations

import os
import select
import time

from launcher.core.errors import attempt
from launcher.core.log import render
from launcher.core.signal import signal
from launcher.machine.process import ENVIRON_BYTES, PROC, list_pids, read_file, read_name
from launcher.process.kernel import collect, fork_apart, set_name
from launcher.process.signal_file import send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MARK = "LAUNCHER_RUN_ID"
"""Variable that names this run of a launcher, after the runs that it is a part of."""
NESTED_MAX = 16
"""Maximum number of names in a mark: a job that submits its successor passes its environment on."""
NAME = "job-watchdog"
DESCRIPTORS = 4096
"""Number of descriptors to try if nothing lists the open ones."""
LEASE = b"="
"""Marks a number as the end of the lease, in milliseconds."""
ARGUMENTS = slice(45, 47)
"""Fields 48 and 49 of /proc/PID/stat, as offsets from the state (field 3): where the command line is."""
KILLED = "the launcher was killed; its processes were killed with it"
STALLED = "the launcher hung or was paused, and another node may take over: its processes were killed"
EXIT_LOOK_S = 0.001
CLEAR_S = 2.0
"""Seconds for which it searches: the kernel needs a moment, and a search may miss a process that forks."""


class Watchdog:
    """The launcher's view of the watchdog of one run. Process 1 needs none: the kernel kills all with it."""

    def __init__(
        self, run_id: str | None, clean_up: Callable[[bool], None], *, has_lease: bool = False
    ) -> None:
        """Fork it.

        Args:
            run_id: Names this run; None to kill no processes, if others do so.
            clean_up: Does what the launcher would have done at its end, in the watchdog once the launcher was
                killed; takes whether nothing that it has started runs any more.
            has_lease: Whether a lease will be renewed: then process 1 needs a watchdog, too.

        Raises:
            OSError: No more processes or descriptors.
        """
        self.pid: int | None = None
        if os.getpid() == 1 and not has_lease:
            return
        reading, self.writing = os.pipe()
        launcher = os.getpid()

        def guard() -> None:
            os.close(self.writing)
            is_clear = _guard(reading, run_id.encode() if run_id else None)
            while os.getppid() == launcher:  # its sockets may close after the pipe
                select.select([], [], [], EXIT_LOOK_S)
            clean_up(is_clear)

        self.pid = fork_apart(guard, self.writing, reading)

    def tell(self, group: int) -> None:
        """Add a process group to kill."""
        self._write(group)

    def forget(self, group: int) -> None:
        """Remove an empty process group: its number can be reused."""
        self._write(-group)

    def renew(self, until: float) -> None:
        """Renew the lease: the processes are killed at this time (monotonic seconds) if it is not renewed."""
        self._write(int(until * 1000), LEASE)

    def _write(self, number: int, kind: bytes = b"") -> None:
        if self.pid is not None:
            # Fails if it was killed; SIGCHLD reports that as for any child
            attempt(os.write, self.writing, b"%b%d\n" % (kind, number))

    def lose(self) -> None:
        """Note that it has ended: its pid can be reused."""
        os.close(self.writing)
        self.pid = None

    def dismiss(self) -> None:
        """End it, because the job has ended normally."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)  # our child, not yet reaped: the pid is still its own
            collect(self.pid, 0)
            self.lose()


def mark_of(run_id: str, environ: Mapping[str, str], node: str = "") -> str:
    """Return the mark of a run, with its outer runs: if their launcher is killed, ours must end, too.

    Args:
        run_id: Names this run.
        environ: The environment of the launcher, with the mark of its outer runs.
        node: Names this node of the job for all launchers that have this place in turn; empty for none.
    """
    names = [*environ.get(MARK, "").split("/"), node, run_id]
    return "/".join(list(filter(None, names))[-NESTED_MAX:])


def _guard(fd: int, run_id: bytes | None) -> bool:
    """Wait for the end of the launcher; return whether nothing that it has started runs then."""
    # All signals are blocked already. In our own session no signal to the launcher's group reaches us.
    attempt(os.setsid)  # if refused, SIGKILL to the launcher's whole group ends us, too
    set_name(NAME)
    _set_command(NAME)
    close_others((2, fd))
    groups, lease_until, rest = set[int](), None, b""
    queue = select.poll()  # after a stop, select() would wait for the rest of its time
    queue.register(fd, select.POLLIN)
    while True:
        left_ms = None if lease_until is None else max(0.0, lease_until - time.monotonic()) * 1000
        if not queue.poll(left_ms):
            lease_until = None
            _kill(run_id, groups)
            if groups:  # between two attempts, or at the end, nothing runs
                _say(STALLED, "launcher-stalled")
        elif data := os.read(fd, 4096):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.startswith(LEASE):
                    lease_until = int(line[len(LEASE) :]) / 1000
                else:
                    (groups.discard if line.startswith(b"-") else groups.add)(abs(int(line)))
        else:
            break
    is_clear = _kill(run_id, groups)
    if run_id is not None:
        _say(KILLED, "launcher-killed")
    return is_clear


def _kill(run_id: bytes | None, groups: Iterable[int]) -> bool:
    """Kill what the launcher has started; return whether nothing of it is left."""
    if run_id is None:
        return False
    for group in groups:
        send(-group, signal.SIGKILL)
    until = time.monotonic() + CLEAR_S
    while kill_marked(run_id):
        if time.monotonic() > until:
            return False
        select.select([], [], [], EXIT_LOOK_S)
    return True


def kill_marked(name: bytes) -> list[int]:
    """Kill the processes with this name in their mark; return those that were still there."""
    found = [pid for pid in find_marked(name) if not is_watchdog(pid)]
    for pid in found:
        send(pid, signal.SIGKILL)
    return found


def _say(text: str, event: str) -> None:
    attempt(os.write, 2, render(text, event))  # fails if the reader of our stderr was killed, too


def _set_command(name: str) -> None:
    """Replace our command line, as ps and ``pkill -f`` show it."""
    try:
        first, last = map(int, read_file("/proc/self/stat").rpartition(b")")[2].split()[ARGUMENTS])
        fd = os.open("/proc/self/mem", os.O_WRONLY | os.O_CLOEXEC)
        os.pwrite(fd, name.encode().ljust(last - first, b"\0")[: last - first], first)
    except (OSError, ValueError):
        pass  # /proc is not mounted, or a sandbox has no such file


def close_others(kept: Iterable[int]) -> None:
    """Close all but a few descriptors in a fork of the launcher: readers wait for the end of pipes."""
    for number in _list_descriptors():
        if number not in kept:
            attempt(os.close, number)  # fails for the descriptor of the listed directory itself


def _list_descriptors() -> Iterable[int]:
    names = attempt(os.listdir, "/proc/self/fd")  # None if /proc is not mounted
    return range(DESCRIPTORS) if names is None else map(int, names)


def find_marked(run_id: bytes) -> list[int]:
    """Return the processes with this name in their mark, except ourselves and processes that have ended."""
    return [
        pid
        for pid in list_pids()
        if pid != os.getpid() and _has_mark(read_file(f"{PROC}/{pid}/environ", ENVIRON_BYTES), run_id)
    ]


def is_watchdog(pid: int) -> bool:
    """Whether a process is a watchdog: it has its own run to clean up, and exits by itself afterwards."""
    return read_name(pid) == NAME


def _has_mark(environ: bytes, run_id: bytes) -> bool:
    """Whether an environment has this name in a mark; another user's may be megabytes of anything."""
    values = (b"\0" + environ).split(b"\0%s=" % MARK.encode())[1:]
    return any(b"/%s/" % run_id in b"/%s/" % value.partition(b"\0")[0] for value in values)
