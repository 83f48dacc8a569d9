"""The process that outlives a SIGKILL of the launcher, to take the launcher's processes along.

The kernel ends the processes themselves (`launcher.process.kernel.die_with_parent`), but what they have
started would go on and hold its GPU. So a fork of the launcher waits at the end of a pipe. When the
pipe closes, no good-bye was said: it kills the process groups that it was told of, and whatever
carries this run's mark in its environment, wherever it has gone since.
"""

from __future__ import annotations

import os

from launcher.core.signal import signal
from launcher.machine.process import ENVIRON_BYTES, list_pids, read_file, read_name
from launcher.process.kernel import set_name
from launcher.process.signals import send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MARK = "LAUNCHER_RUN_ID"
"""Variable that names one run of a launcher, and before it those runs that this one is a part of."""
NESTED_MAX = 8
"""A job that submits its successor hands its environment down without end."""
NAME = "launcher-watch"
DESCRIPTORS = 4096
"""How many are looked at where nothing tells which are open."""
PASSES = 20
"""A process that forks while we look may be missed once, not so often."""


class Watchdog:
    """The watchdog of one run, as the launcher sees it. Not needed as process 1: the kernel is one."""

    def __init__(self, run_id: str | None, clean_up: Callable[[], None]) -> None:
        """Fork it; ``clean_up`` is what the launcher would have done at its end.

        Without ``run_id`` it ends nothing: others do.

        Raises:
            OSError: No more processes or descriptors.
        """
        self.pid: int | None = None
        if os.getpid() == 1:
            return
        reading, self.writing = os.pipe()
        try:
            self.pid = os.fork()
        except OSError:
            os.close(reading)
            os.close(self.writing)
            raise
        if self.pid == 0:
            try:
                os.close(self.writing)
                _guard(reading, run_id.encode() if run_id else None)
                clean_up()
            finally:
                os._exit(0)
        os.close(reading)

    def tell(self, group: int) -> None:
        """Name one more process group to be taken along."""
        self._write(group)

    def forget(self, group: int) -> None:
        """A process group is empty: its number may be given out again."""
        self._write(-group)

    def _write(self, number: int) -> None:
        if self.pid is not None:
            try:  # noqa: SIM105 - contextlib would be one more module on the launch path
                os.write(self.writing, b"%d\n" % number)
            except OSError:
                pass  # it was killed, and we shall hear of that as of any child

    def lose(self) -> None:
        """It has ended, and its pid is free for others."""
        os.close(self.writing)
        self.pid = None

    def dismiss(self) -> None:
        """All has ended as it should."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)  # our child, not yet waited for: the pid is its own
            os.waitpid(self.pid, 0)
            self.lose()


def mark_of(run_id: str, environ: Mapping[str, str]) -> str:
    """Return the mark of a run: a SIGKILL of the launcher around us must find our processes, too."""
    return "/".join([*environ.get(MARK, "").split("/")[1 - NESTED_MAX :], run_id]).lstrip("/")


def _guard(fd: int, run_id: bytes | None) -> None:
    # All signals are blocked already; out of the group, so that no group's signal means us.
    try:  # noqa: SIM105
        os.setsid()
    except OSError:
        pass  # refused: SIGKILL to the launcher's whole group then ends us, too
    set_name(NAME)
    close_others((2, fd))
    told = b""
    while data := os.read(fd, 4096):
        told += data
    if run_id is None:
        return
    groups: set[int] = set()
    for number in map(int, told.split()):
        (groups.add if number > 0 else groups.discard)(abs(number))
    for group in groups:
        send(-group, signal.SIGKILL)
    for _ in range(PASSES):
        found = [pid for pid in find_marked(run_id) if not is_watchdog(pid)]
        for pid in found:
            send(pid, signal.SIGKILL)
        if not found:
            break
    try:  # noqa: SIM105
        os.write(2, b"launcher: the launcher was killed; its processes were killed with it\n")
    except OSError:
        pass  # what has read our words was killed, too


def close_others(kept: Iterable[int]) -> None:
    """In a fork of the launcher: close what it has open but a few, as readers wait for the end of it."""
    for number in _list_descriptors():
        if number not in kept:
            try:  # noqa: SIM105
                os.close(number)
            except OSError:
                pass  # the descriptor of the folder that is listed


def _list_descriptors() -> Iterable[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:  # /proc is not mounted
        return range(DESCRIPTORS)


def find_marked(run_id: bytes) -> list[int]:
    """Return the processes that this run has marked, but ourselves and those that have ended."""
    return [
        pid
        for pid in list_pids()
        if pid != os.getpid() and _has_mark(read_file(f"/proc/{pid}/environ", ENVIRON_BYTES), run_id)
    ]


def is_watchdog(pid: int) -> bool:
    """Whether a process is a watchdog: it has its own run to clean up, and ends by itself then."""
    return read_name(pid) == NAME


def _has_mark(environ: bytes, run_id: bytes) -> bool:
    variables = (entry.partition(b"=") for entry in environ.split(b"\0"))
    return any(name == MARK.encode() and run_id in value.split(b"/") for name, _, value in variables)
