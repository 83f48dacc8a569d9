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
import resource
import select
import signal
import socket
import time
from errno import EADDRINUSE

from launcher.channel import lines as wire
from launcher.core.version import __version__
from launcher.mpi.daemons import Daemons, stop_daemon
from launcher.mpi.leftovers import end_leftovers
from launcher.mpi.session_folder import FOLDERS, SOCKET, make_folder, remove_folder
from launcher.mpi.shim import Rank
from launcher.process.descendants import descends_from, is_alive
from launcher.process.kernel import set_name
from launcher.process.signals import send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SERVE_SOCKET = "LAUNCHER_SERVE_SOCKET"
"""Where the serving launcher of this node listens, if there is one."""
NAME = "launcher-node"
DEFAULT_GRACE_S = 30.0
UNSENT_LIMIT_BYTES = 1 << 26
"""What ranks report has 1 MiB at most; with so much of it unread, the head does not lead the job."""


class Session:
    """This node's end of the line to the head."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.folder = make_folder(job)
        self.ranks: dict[int, Rank] = {}
        self.welcome: dict[str, object] = {}
        self.signalled: int | None = None
        self.released = False
        self.stopped: set[int | None] = set()
        self.status: int | None = None
        self.deadline: float | None = None
        self._head = wire.Lines(wire.WELCOME_LIMIT_BYTES)
        self._unsent: bytearray | None = bytearray()
        """What the head has not taken yet; None once it takes nothing any more."""
        os.set_blocking(1, False)
        self._poll = select.poll()
        self.daemons = Daemons(self._poll)
        self._server = socket.socket(socket.AF_UNIX)
        self._serve: socket.socket | None = None

    def run(self) -> int:
        """Live until the head says that the job is over, or is gone."""
        try:
            self._server.bind(os.path.join(self.folder, SOCKET))
        except OSError as error:
            if error.errno != EADDRINUSE:
                raise
            self.tell({"is": "taken", "node": os.uname().nodename})
            return 1
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
        ended = []
        for fd, event in self._poll.poll(wait_ms):
            if fd == 0:
                self._hear_head()
            elif fd == 1:
                self._flush_head()
            elif fd == self._server.fileno():
                self._accept()
            elif self._serve is not None and fd == self._serve.fileno():
                self._hear_serve()
            elif fd in self.daemons:
                ended.append(fd)
            elif fd in self.ranks and event & select.POLLOUT:
                self._flush(self.ranks[fd])
            elif fd in self.ranks:
                self._hear_rank(self.ranks[fd])
        for fd in ended:  # after what its ranks have had to say
            self._lose_daemon(fd)
        if self.deadline is not None and not self.ranks:
            self.deadline = 0.0

    def tell(self, message: dict[str, object]) -> None:
        """Tell the head something; one that does not listen must not stop us."""
        if self._unsent is None:
            return
        waits = bool(self._unsent)
        self._unsent += wire.pack(message)
        self._flush_head()
        if self._unsent and not waits:
            self._poll.register(1, select.POLLOUT)

    def _flush_head(self) -> None:
        """Send as much as the head takes; one that is gone, or that has left too much, leads no more."""
        if self._unsent is None:
            return
        try:
            while self._unsent:
                del self._unsent[: os.write(1, self._unsent[: wire.READ_BYTES])]
        except BlockingIOError:
            if len(self._unsent) <= UNSENT_LIMIT_BYTES:
                return
        except OSError:
            pass
        with contextlib.suppress(KeyError):  # it has taken all at once
            self._poll.unregister(1)
        if self._unsent:
            self._unsent = None
            self._lose_head()

    # --- the head

    def _hear_head(self) -> None:
        try:
            data = os.read(0, wire.READ_BYTES)
            messages = self._head.feed(data)
        except BlockingIOError:  # sshd may have given us one socket for both ways
            return
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
                for rank in self.ranks.values():
                    self._greet(rank)
            case "signal":
                self._signal(wire.number(message, "number"), begins_end=bool(message.get("ends")))
            case "release":
                self.released = True
                self._tell_ranks({"do": "release"})
                self._let_daemons_go()
            case "end":
                self.status = wire.number(message, "status")

    def _lose_head(self) -> None:
        """The head is gone, and the job with it: what runs here may save its state, and ends."""
        if self.deadline is None and self.status is None:
            self.deadline = time.monotonic() + read_grace(self.welcome, DEFAULT_GRACE_S)
            self.released = True
            self._tell_ranks({"do": "release"})
            self._signal(signal.SIGTERM, begins_end=True)

    def _signal(self, number: int, *, begins_end: bool) -> None:
        if begins_end:
            self.signalled = number
        for rank in list(self.ranks.values()):
            if rank.started and not rank.ended:
                send(rank.pid, number)
                if begins_end:
                    send(rank.pid, signal.SIGCONT)  # one that is stopped could not pass it on

    # --- ranks

    def _accept(self) -> None:
        try:
            connection, _ = self._server.accept()
        except OSError:  # whoever came is gone again, or we have no descriptor for it
            return
        pid, uid = wire.read_peer(connection)
        if uid != os.geteuid() or descends_from(pid, {rank.pid for rank in self.ranks.values()}):
            connection.close()  # what a rank has started is none, whatever it says
            return
        connection.setblocking(False)
        rank = self.ranks[connection.fileno()] = Rank(connection, pid)
        self._poll.register(connection.fileno(), select.POLLIN)
        self.daemons.watch(rank.daemon)

    def _lose_daemon(self, fd: int) -> None:
        """MPI's daemon has ended; if that was before its ranks, mpirun may wait for it forever."""
        daemon = self.daemons.forget(fd)
        if any(
            rank.daemon == daemon and not rank.ended and is_alive(rank.pid) for rank in self.ranks.values()
        ):
            self.tell({"is": "orphaned", "daemon": daemon})

    def _keep_daemon(self, rank: Rank) -> None:
        """MPI begins to end a rank: until all have ended, what they would abort with is stopped."""
        if self.deadline is not None or not self.released:
            self.stopped.add(stop_daemon(rank.pid))

    def _let_daemons_go(self) -> None:
        for pid in filter(None, self.stopped):
            send(pid, signal.SIGCONT)
        self.stopped.clear()

    def _tell_ranks(self, message: dict[str, object]) -> None:
        for rank in self.ranks.values():
            self._say(rank, message)

    def _say(self, rank: Rank, message: dict[str, object]) -> None:
        rank.say(message)
        if rank.unsent:
            self._poll.modify(rank.connection.fileno(), select.POLLIN | select.POLLOUT)

    def _flush(self, rank: Rank) -> None:
        rank.flush()
        if not rank.unsent:
            self._poll.modify(rank.connection.fileno(), select.POLLIN)

    def _greet(self, rank: Rank) -> None:
        """Welcome a rank that has said hello, once the head has told with what."""
        if rank.waits and self.welcome:
            rank.waits = False
            self._say(rank, {**self.welcome, "do": "welcome"})

    def _hear_rank(self, rank: Rank) -> None:
        try:
            data = rank.connection.recv(wire.READ_BYTES)
            messages = rank.lines.feed(data)
        except BlockingIOError:
            return
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
        match message.get("is"):
            case "hello":
                rank.waits = True
                self._greet(rank)
            case "started" if not rank.started:
                rank.started = True
                self.tell({**message, "pid": rank.pid})
                if self.signalled is not None:
                    send(rank.pid, self.signalled)  # the job began to end while this one was being started
            case "abandoned" if rank.started and not rank.ended:
                self._keep_daemon(rank)
                self.tell({**message, "pid": rank.pid})
            case "ended" if not rank.ended:
                rank.ended = True
                self.tell({**message, "pid": rank.pid})
                if self.released:
                    self._say(rank, {"do": "release"})

    # --- serve

    def _hear_serve(self) -> None:
        """The launcher that serves on this node has been told a signal, or is gone."""
        assert self._serve is not None  # noqa: S101 - it is what was polled
        data = b""
        with contextlib.suppress(OSError):
            data = self._serve.recv(wire.READ_BYTES)
        for word in filter(bytes.isdigit, data.split()):  # two signals may have come as one piece
            self.tell({"is": "told", "number": int(word)})
        if not data:
            self._poll.unregister(self._serve.fileno())
            self._serve.close()
            self._serve = None
            self.tell({"is": "leaving", "why": "the launcher that served there was killed"})
            self._lose_head()  # nobody is left to hold this node for the job

    # --- the end

    def clean_up(self) -> None:
        """End what the job has left on this node, and tell who serves here how the job ended."""
        end_leftovers(self.job, self.daemons, may_linger=self.status is not None)
        remove_folder(os.path.join(self.folder, SOCKET))
        if self._serve is not None and self.status is not None:
            with contextlib.suppress(OSError):
                self._serve.sendall(b"%d\n" % self.status)


def read_grace(welcome: Mapping[str, object], default_s: float) -> float:
    """Return how long ranks may take to end once they were told to."""
    grace_s = welcome.get("grace_s")
    return grace_s if isinstance(grace_s, (int, float)) else default_s


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
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # two for each rank, and none is started by us
    try:
        return Session(argv[0]).run()
    except OSError as error:
        where = error.filename or ", ".join(FOLDERS)
        print(f"no session on {os.uname().nodename}: {where}: {error.strerror or error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
