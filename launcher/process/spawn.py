"""Starts one process; does between fork and exec only what the process itself must do."""

from __future__ import annotations

import os
from errno import EINVAL

from launcher.core.errors import NotReady, Problem, attempt
from launcher.core.frozen import frozen
from launcher.core.signal import signal
from launcher.core.supervision import Route
from launcher.process.execute import keep_to
from launcher.process.kernel import die_with_parent
from launcher.process.signal_file import SignalFile, name_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Changes = tuple[tuple[str, str | None], ...]

CANNOT_EXECUTE = 126
READ_BYTES = 4096


@frozen
class Child:
    """One process to start.

    ``called``: its name in messages if it has no rank, as an agent or a companion. ``companion``: whether it
    is a companion of the ranks. ``finishes``: whether it exits by itself after them. ``outlives``: whether it
    continues if the launcher is killed; something else ends it then. ``serves``: whether it is a program of
    ours, which gets only signals that ask for the end: it has no handlers for those of the user's command.
    """

    rank: int
    local_rank: int
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    route: Route = Route()
    cpus: tuple[int, ...] | None = None
    called: str = ""
    companion: bool = False
    finishes: bool = False
    outlives: bool = False
    serves: bool = False

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.called or f"rank {self.rank}"

    @property
    def folder(self) -> str:
        """The name of its log directory: as in torchrun for a rank."""
        return self.called.replace(" ", "_") if self.companion else str(self.local_rank)


def cannot_start(error: OSError) -> NotReady:
    """Return the error for a kernel without processes or descriptors left."""
    fix = "raise the limit that is reached: ulimit -u, ulimit -n, pids.max of the container"
    return NotReady(Problem("cannot-start", f"cannot start a process: {error.strerror}", "this node", fix))


@frozen
class Streams:
    """Descriptors for a process's standard streams; None keeps ours.

    ``has_terminal``: the process reads our terminal. It stays in our process group, which has the foreground,
    and gets each signal of the terminal from there. All others lead groups of their own.
    ``ignored``: of these signals, those that it is to get only as ``--signal-map`` says, from us.
    """

    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None
    has_terminal: bool = False
    ignored: tuple[int, ...] = ()


class Inherited:
    """The environment that processes inherit from us, in the C library; `os.environ` stays as it is.

    If a child gets its environment as a mapping, it touches every string between fork and exec, and the
    kernel copies each of these pages: 40 pages, 0.15 ms for each process. A child does not touch an
    environment that it inherits.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._own = self._last = dict(environ)
        self._changed: dict[str, None] = {}

    def plan(self, environ: Mapping[str, str]) -> Changes:
        """Return the changes from the environment planned last to this one: names and values (None: unset).

        Plan all of them before the first fork: comparing touches the strings, which makes the kernel copy
        pages for us, too.
        """
        gone = [(name, None) for name in self._last.keys() - environ.keys()]
        new = [(name, value) for name, value in environ.items() if self._last.get(name) != value]
        self._last = dict(environ)
        self._changed.update((name, None) for name, _ in (*gone, *new))
        return (*gone, *new)

    def plan_own(self) -> Changes:
        """Return the changes that restore our own environment after any of those planned."""
        return tuple((name, self._own.get(name)) for name in self._changed)


def change_environ(changes: Iterable[tuple[str, str | None]]) -> None:
    """Change the environment that processes inherit."""
    for name, value in changes:
        if value is None:
            os.unsetenv(name)
        else:
            os.putenv(name, value)


class ExecErrors:
    """A pipe that exec closes: a child that cannot exec writes its error, and the others write nothing.

    A second one tells the process that has the terminal that all others were started.
    """

    def __init__(self) -> None:
        self.fd, self.writing = os.pipe()  # both close on exec
        self._gate, self._gate_writing = os.pipe()
        os.set_blocking(self.fd, False)
        self._rest = b""

    def close_writing(self) -> None:
        """Close our writing end after the last fork: now the pipe ends with the last exec."""
        for fd in (self.writing, self._gate, self._gate_writing):
            os.close(fd)

    def await_others(self) -> None:
        """Wait until all others were started, in the child that has the terminal.

        If it reads from a terminal in the background, SIGTTIN also stops a child that does not lead its own
        group yet.
        """
        os.close(self._gate_writing)
        os.read(self._gate, 1)

    def write(self, index: int, number: int) -> None:
        """Report an error, in the child."""
        os.write(self.writing, b"%d %d\n" % (index, number))

    def read(self) -> tuple[list[tuple[int, int]], bool]:
        """Return (index, errno) of the children that could not exec, and whether the pipe has ended."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return [], False
        *lines, self._rest = (self._rest + data).split(b"\n")
        pairs = [line.split() for line in lines]
        return [(int(index), int(number)) for index, number in pairs], not data


def start(
    index: int,
    child: Child,
    path: str,
    streams: Streams,
    signals: SignalFile,
    errors: ExecErrors,
) -> int:
    """Fork and exec; return the pid. The process inherits our environment (see `Inherited`).

    vfork and posix_spawn would be 0.4 ms faster each, but cannot request a parent-death signal. With this
    signal the kernel ensures that no process holds a GPU after a SIGKILL of the launcher.
    """
    launcher = os.getpid()
    pid = os.fork()
    if pid:
        if not streams.has_terminal:  # it leads a group: both sides say so, because either may run first
            attempt(os.setpgid, pid, pid)  # fails if it has called exec, or has gone
        return pid
    try:
        if not child.outlives:
            die_with_parent(signal.SIGKILL)
        if 0 < os.getppid() != launcher:  # the launcher was killed before the line above
            os._exit(CANNOT_EXECUTE)
        if streams.has_terminal:
            errors.await_others()
        else:
            os.setpgid(0, 0)
        for number, fd in enumerate((streams.stdin, streams.stdout, streams.stderr)):
            if fd is not None:
                os.dup2(fd, number)
        if child.cpus:
            keep_to(child.cpus)
        for number in streams.ignored:
            signal.signal(number, signal.SIG_IGN)
        signals.reset()
        os.execv(path, child.argv)
    except Exception as error:
        errors.write(index, getattr(error, "errno", None) or EINVAL)
    finally:
        os._exit(CANNOT_EXECUTE)


class Process:
    """One process that was started.

    Attributes:
        code: As from `os.waitstatus_to_exitcode`; None while it runs.
        ended_ns: When the kernel reported its end, in monotonic nanoseconds.
        passed_on: The last signal that was forwarded to it.
        has_terminal: See `Streams`.
    """

    def __init__(self, child: Child, pid: int, *, has_terminal: bool = False) -> None:
        self.child = child
        self.has_terminal = has_terminal
        self.pid = pid
        self.pidfd: int | None = None
        self.code: int | None = None
        self.ended_ns = 0
        self.passed_on: int | None = None

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.child.name} (pid {self.pid})"

    @property
    def status(self) -> int:
        """Its exit status as in a shell; 0 while it runs."""
        code = self.code or 0
        return code if code >= 0 else 128 - code

    @property
    def end(self) -> str:
        """How it has ended, in words."""
        code = self.code or 0
        return f"exited with code {code}" if code >= 0 else f"was ended by {name_signal(-code)}"
