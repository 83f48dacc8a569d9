"""The session: one small program on each node of an mpirun job, started by the head through ssh.

It holds the connection whose end tells the head that the node is lost, and tells the node that the
head is. Ranks find it by a socket in a private folder; what they report goes up to the head, what the
head wants goes to all of them. When the job is over, whatever it left on this node is ended.

Run as a file (``python -I -S session.py JOB``), so that the working directory and PYTHONPATH of a login
cannot stand in for this package.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import contextlib
import select
import signal
import socket
import time

from launcher import __version__
from launcher.mpi import wire
from launcher.run.guardian import find_marked
from launcher.run.kernel import set_name

SERVE_SOCKET = "LAUNCHER_SERVE_SOCKET"
"""Where the serving launcher of this node listens, if there is one."""
NAME = "launcher-node"
DEFAULT_GRACE_S = 30.0
LINGER_S = 1.0
"""After the job, before what it left here is killed."""
KILL_WAIT_S = 2.0
DAEMONS = ("orted", "prted", "hydra_pmi_proxy")
"""Comm names (15 bytes) of what mpirun starts on a node, and what starts the ranks there."""


class Rank:
    """One rank's shim, at the other end of a connection."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection, self.pid = connection, pid
        self.lines = wire.Lines()
        self.ended = False

    def say(self, message: dict[str, object]) -> None:
        """Tell the shim something; one that does not listen any more misses nothing."""
        with contextlib.suppress(OSError):
            self.connection.sendall(wire.pack(message))


class Session:
    """This node's end of the line to the head."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.folder = make_folder(job)
        self.ranks: dict[int, Rank] = {}
        self.welcome: dict[str, object] = {}
        self.signalled: int | None = None
        self.released = False
        self.status: int | None = None
        self.deadline: float | None = None
        self._head = wire.Lines()
        self._poll = select.poll()
        self._server = socket.socket(socket.AF_UNIX)
        self._serve: socket.socket | None = None

    def run(self) -> int:
        """Live until the head says that the job is over, or is gone."""
        self._server.bind(os.path.join(self.folder, wire.SOCKET))
        self._server.listen(512)
        self._serve = attach(os.environ.get(SERVE_SOCKET))
        for fd in (0, self._server.fileno(), *([self._serve.fileno()] if self._serve else [])):
            self._poll.register(fd, select.POLLIN)
        self.tell({"is": "ready", "node": os.uname().nodename, "launcher": __version__, "pid": os.getpid()})
        try:
            while self.status is None and not self._is_due():
                self._turn()
        finally:
            self.clean_up()
        return 0

    def _is_due(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _turn(self) -> None:
        wait_ms = None
        if self.deadline is not None:
            wait_ms = max(0.0, self.deadline - time.monotonic()) * 1000
        for fd, _ in self._poll.poll(wait_ms):
            if fd == 0:
                self._hear_head()
            elif fd == self._server.fileno():
                self._accept()
            elif self._serve is not None and fd == self._serve.fileno():
                self._hear_serve()
            elif fd in self.ranks:
                self._hear_rank(self.ranks[fd])
        if self.deadline is not None and not self.ranks:
            self.deadline = 0.0

    def tell(self, message: dict[str, object]) -> None:
        """Tell the head something."""
        data = wire.pack(message)
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            self._lose_head()

    # --- the head

    def _hear_head(self) -> None:
        try:
            data = os.read(0, wire.READ_BYTES)
            messages = self._head.feed(data)
        except (OSError, wire.Garbled):
            data, messages = b"", []
        for message in messages:
            self._obey(message)
        if not data:
            self._poll.unregister(0)
            self._lose_head()

    def _obey(self, message: dict[str, object]) -> None:
        match message.get("do"):
            case "welcome":
                self.welcome = message
            case "signal":
                self._signal(wire.number(message, "number"), begins_end=bool(message.get("ends")))
            case "release":
                self.released = True
                for rank in self.ranks.values():
                    rank.say({"do": "release"})
            case "end":
                self.status = wire.number(message, "status")

    def _lose_head(self) -> None:
        """The head is gone, and the job with it: what runs here may save its state, and ends."""
        if self.deadline is None and self.status is None:
            grace_s = self.welcome.get("grace_s")
            self.deadline = time.monotonic() + (
                grace_s if isinstance(grace_s, (int, float)) else DEFAULT_GRACE_S
            )
            self.released = True
            for rank in self.ranks.values():
                rank.say({"do": "release"})
            self._signal(signal.SIGTERM, begins_end=True)

    def _signal(self, number: int, *, begins_end: bool) -> None:
        if begins_end:
            self.signalled = number
        for rank in list(self.ranks.values()):
            if not rank.ended:
                send(rank.pid, number)

    # --- ranks

    def _accept(self) -> None:
        connection, _ = self._server.accept()
        pid, uid = wire.read_peer(connection)
        if uid != os.geteuid():
            connection.close()
            return
        self.ranks[connection.fileno()] = Rank(connection, pid)
        self._poll.register(connection.fileno(), select.POLLIN)

    def _hear_rank(self, rank: Rank) -> None:
        try:
            data = rank.connection.recv(wire.READ_BYTES)
            messages = rank.lines.feed(data)
        except (OSError, wire.Garbled):
            data, messages = b"", []
        for message in messages:
            self._take(rank, message)
        if not data:
            fd = rank.connection.fileno()
            self._poll.unregister(fd)
            del self.ranks[fd]
            rank.connection.close()
            self.tell({"is": "gone", "pid": rank.pid, "ended": rank.ended})

    def _take(self, rank: Rank, message: dict[str, object]) -> None:
        if message.get("is") == "hello":
            rank.say({**self.welcome, "do": "welcome"})
            return
        rank.ended = rank.ended or message.get("is") == "ended"
        self.tell({**message, "pid": rank.pid})
        if rank.ended and self.released:
            rank.say({"do": "release"})
        elif message.get("is") == "started" and self.signalled is not None:
            send(rank.pid, self.signalled)  # the job began to end while this one was being started

    # --- serve

    def _hear_serve(self) -> None:
        """The launcher that serves on this node has been told a signal, or is gone."""
        assert self._serve is not None  # noqa: S101 - it is what was polled
        data = b""
        with contextlib.suppress(OSError):
            data = self._serve.recv(wire.READ_BYTES)
        if data.isdigit() or data.strip().isdigit():
            self.tell({"is": "told", "number": int(data.split()[0])})
        if not data:
            self._poll.unregister(self._serve.fileno())
            self._serve.close()
            self._serve = None
            self._lose_head()  # whoever was killed there, nobody is left to hold this node for the job

    # --- the end

    def clean_up(self) -> None:
        """End what the job has left on this node, and tell who serves here how the job ended."""
        deadline = time.monotonic() + (LINGER_S if self.status is not None else 0.0)
        while find_marked(self.job.encode()) and time.monotonic() < deadline:
            select.select([], [], [], 0.02)
        kill_leftovers(self.job, [rank.pid for rank in self.ranks.values()])
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.folder, wire.SOCKET))
            os.rmdir(self.folder)
        if self._serve is not None and self.status is not None:
            with contextlib.suppress(OSError):
                self._serve.sendall(b"%d\n" % self.status)


def kill_leftovers(job: str, shims: list[int]) -> None:
    """Kill what carries the job's mark, and the daemons of MPI that have started it."""
    for pid in {parent for shim in shims if (parent := find_daemon(shim))}:
        send(pid, signal.SIGKILL)
    deadline = time.monotonic() + KILL_WAIT_S
    while found := [pid for pid in find_marked(job.encode()) if pid != os.getpid()]:
        for pid in found:
            send(pid, signal.SIGKILL)
        if time.monotonic() >= deadline:
            return
        select.select([], [], [], 0.01)


def find_daemon(pid: int) -> int | None:
    """Return MPI's daemon above a process, if that is one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
        with open(f"/proc/{parent}/comm", encoding="ascii", errors="replace") as file:
            return parent if file.read().strip() in DAEMONS else None
    except (OSError, ValueError):
        return None


def send(pid: int, signum: int) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(OSError):
        os.kill(pid, signum)


def make_folder(job: str) -> str:
    """Make the session's folder; an empty one of ours is what a session that was killed has left.

    Raises:
        OSError: Nowhere.
    """
    refused = OSError("no folder for a session")
    for base in wire.FOLDERS:
        path = os.path.join(base, wire.folder_name(job))
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if wire.find_session(job) != os.path.join(path, wire.SOCKET):
                continue
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(path, wire.SOCKET))
        except OSError as error:
            refused = error
            continue
        return path
    raise refused


def attach(path: str | None) -> socket.socket | None:
    """Connect to the launcher that serves on this node; None where sshd was there already."""
    if not path:
        return None
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


def main(argv: list[str]) -> int:
    """Be the session of a job."""
    # ssh's end of the connection closes our pipes; a hangup or Ctrl-C of a login is not for us
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    set_name(NAME)
    return Session(argv[0]).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
