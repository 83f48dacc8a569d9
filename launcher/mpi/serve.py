"""A node that serves: an sshd of this job alone, until the head says how the job ended, or is gone."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from launcher.errors import NotReady, Problem
from launcher.model import Supervision
from launcher.mpi import wire
from launcher.mpi.session import SERVE_SOCKET
from launcher.process.descendants import find_parent
from launcher.process.loop import Later
from launcher.process.signals import name_signal, signal
from launcher.process.spawn import Child, Inherited, Streams
from launcher.redact import printable
from launcher.run.relay import Relay
from launcher.run.supervise import Node, Supervisor
from launcher.ssh.keys import Keys
from launcher.ssh.server import is_routine, write_server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.process.spawn import Changes

GONE = 75
"""Our status where the head has gone without a word."""
PATIENCE_S = 30.0
"""How long a head may take on top of the grace that it gives the ranks."""
CLOSE_S = 4.0
"""How long sshd and its sessions may take to end."""


class ServeRelay(Relay):
    """Hands signals to the head, which tells the ranks of all nodes."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.watch, shares_terminal=False, say=server.say)
        self._server = server

    def attach(self, stopper: object, running: object) -> None:
        """What is asked of us is not asked of sshd."""

    def pass_on(self, number: int, *, from_terminal: bool) -> None:
        """Tell the head; before it has come, or at a second Ctrl-C, end."""
        if number not in (signal.SIGTERM, signal.SIGINT):
            return
        is_first, self.told = self.told is None, self.told or number
        typed_twice = from_terminal and number == signal.SIGINT and not is_first
        if typed_twice or not self._server.tell(number):
            self._server.end(128 + number)
        elif is_first:
            self._say(f"{name_signal(number)}: passed on to the head of the job, which ends it on all nodes")
            self._server.wait_for_end()


class Server(Supervisor):
    """The parent of sshd, and through it of all that the job runs on this node."""

    may_share_terminal = False

    def __init__(
        self,
        child: Child,
        path: str,
        watch: Supervision,
        environ: Mapping[str, str],
        listener: socket.socket,
        timeout_s: float,
        private: str,
    ) -> None:
        self.listener, self.timeout_s, self.private = listener, timeout_s, private
        self.connection: socket.socket | None = None
        self.status: int | None = None
        self.wake = Later(time.monotonic() + timeout_s, self.on_late)
        self.is_late = False
        self.words = b""
        self.writing = -1
        super().__init__([child], [path], watch, Node(), environ)
        listener.setblocking(False)
        self.loop.add(listener.fileno(), self.on_connect)

    def make_relay(self) -> Relay:
        """Signals are for the head."""
        return ServeRelay(self)

    def start_all(self) -> None:
        """Start sshd."""
        self.loop.timers.append(self.wake)
        super().start_all()
        if self.writing >= 0:  # a process that is not even prepared has no pipe
            os.close(self.writing)
            self.writing = -1

    def prepare(self, index: int, inherited: Inherited) -> tuple[Child, Streams, Changes]:
        """Return sshd as it is to be started: what it says is for us to read."""
        child, streams, changes = super().prepare(index, inherited)
        reading, self.writing = os.pipe()
        os.set_blocking(reading, False)
        self.loop.add(reading, lambda: self.on_sshd(reading))
        return child, Streams(streams.stdin, self.writing, self.writing), changes

    def remove_traces(self) -> None:
        """Keys stand in the private folder."""
        super().remove_traces()
        shutil.rmtree(self.private, ignore_errors=True)

    def on_sshd(self, fd: int) -> None:
        """sshd tells of every connection; who was refused is worth a word."""
        try:
            data = os.read(fd, wire.READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self.loop.remove(fd)
            os.close(fd)
        *lines, self.words = (self.words + data).split(b"\n")
        for line in (line.decode("utf-8", "replace").strip() for line in lines):
            if line and not is_routine(line):
                self.say(f"sshd: {printable(line)}")

    def watch_session(self, pid: int) -> None:
        """Wake the session when its sshd ends: one that somebody has stopped would not see that."""
        with contextlib.suppress(OSError):  # an old kernel, or it is gone already
            fd = os.pidfd_open(find_parent(pid))
            self.loop.add(fd, lambda: self.wake_session(pid, fd))

    def wake_session(self, pid: int, fd: int) -> None:
        """The connection of the session has ended."""
        self.loop.remove(fd)
        os.close(fd)
        if self.status is None:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)

    def on_connect(self) -> None:
        """A session has been started on this node: the head has come."""
        connection, _ = self.listener.accept()
        pid, uid = wire.read_peer(connection)
        if uid != os.geteuid() or self.connection is not None:
            connection.close()
            return
        self.connection, self.wake.due = connection, None
        self.watch_session(pid)
        self.loop.add(connection.fileno(), self.on_word)

    def on_word(self) -> None:
        """The session tells how the job ended, or is gone."""
        assert self.connection is not None  # noqa: S101 - it is what was ready
        data = b""
        with contextlib.suppress(OSError):
            data = self.connection.recv(64)
        if data.strip().isdigit():
            self.end(min(int(data.split()[0]), 255))
        elif not data:
            self.loop.remove(self.connection.fileno())
            if self.status is None:
                self.say(
                    "the head of the job is gone, or its session here: what it left on this node is ended"
                )
                self.end(GONE)

    def on_late(self) -> None:
        """Nobody has come; or the head was told to end the job, and has not."""
        if self.relay.told is not None:
            self.say("the head of the job has not ended it: giving up")
            self.end(128 + self.relay.told)
        else:
            self.is_late = True
            self.end(GONE)

    def wait_for_end(self) -> None:
        """The head has been told to end the job: that takes the grace, and what it needs to clean up."""
        self.wake.due = time.monotonic() + self.watch.grace_s + PATIENCE_S

    def tell(self, number: int) -> bool:
        """Tell the head of a signal; return whether there is one."""
        if self.connection is None:
            return False
        with contextlib.suppress(OSError):
            self.connection.sendall(b"%d\n" % number)
            return True
        return False

    def end(self, status: int) -> None:
        """The job is over on this node."""
        self.status = status if self.status is None else self.status
        self.stopper.grace_s = CLOSE_S
        self.stopper.begin(signal.SIGTERM)

    def finish(self) -> int:
        """Return the status of the job.

        Raises:
            NotReady: The head has not come.
        """
        if self.is_late:
            raise NotReady(_no_head(self.timeout_s))
        if self.status is None:
            return super().finish() or GONE  # sshd itself has ended, and says why
        return self.status


def serve(
    keys: Keys,
    address: str,
    port: int,
    folder: str,
    watch: Supervision,
    environ: Mapping[str, str],
    timeout_s: float,
    checks: Callable[[], Sequence[str]] | None = None,
) -> int:
    """Serve until the job is over; return its status.

    Args:
        keys: The job's keys.
        address: Ours, in the network of the cluster: sshd listens there alone.
        port: Port of sshd.
        folder: A private folder, ours to write in.
        watch: How sshd is watched.
        environ: Our environment, which what the head starts here is to have.
        timeout_s: How long the head may take to come.
        checks: Made beside it, see `launcher.run.supervise.supervise`.

    Raises:
        NotReady: No sshd, it cannot listen, or the head has not come (75).
    """
    path = os.path.join(folder, "serve")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(8)
    argv = write_server(folder, keys, address, port, environ, {SERVE_SOCKET: path})
    child = Child(0, 0, argv, dict(environ), called="sshd")
    server = Server(child, argv[0], watch, environ, listener, timeout_s, folder)
    server.checks = checks
    server.say(f"serving on {address} port {port} until the head of the job says that it is over")
    return server.run()


def _no_head(timeout_s: float) -> Problem:
    return Problem(
        "no-head",
        f"the head of the job has not come within {timeout_s:g} s",
        "this node",
        "start the same command on node 0, with the same key, or wait longer: --roll-call-timeout S",
    )
