"""The session: one small program on each node of an mpirun job, started by the head through ssh.

The end of its connection tells the head that the node is lost, and tells the node that the head is lost.
Ranks find the session by a socket in a private folder. It passes their reports to the head, and the head's
messages to all of them. When the job is over, it ends whatever the job has left on this node.

It runs as a file (``python -I -S session.py JOB``), so that neither the working directory nor PYTHONPATH of a
login can replace this package.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import resource
import signal
import socket
import time
from errno import EADDRINUSE

from launcher.channel.connection import Connection
from launcher.channel.lines import WELCOME_LIMIT_BYTES, Lines
from launcher.channel.listener import Listener, read_peer
from launcher.core.errors import print_problems
from launcher.core.frozen import replace
from launcher.core.log import say
from launcher.core.messages import pack, unpack
from launcher.core.version import __version__
from launcher.mpi.daemons import Daemons, find_daemon, stop_daemon
from launcher.mpi.leftovers import LINGER_S, Sweep
from launcher.mpi.messages import (
    FROM_HEAD,
    FROM_RANK,
    Abandoned,
    Attached,
    Briefing,
    Cleared,
    Gone,
    JobOver,
    Leaving,
    NodeTold,
    Orphaned,
    PassOn,
    RankEnded,
    Release,
    SessionReady,
    Started,
    Taken,
)
from launcher.mpi.session_folder import FOLDERS, SERVE_SOCKET, SOCKET, make_folder, remove_folder
from launcher.process.descendants import descends_from, is_alive
from launcher.process.kernel import set_name
from launcher.process.loop import Loop
from launcher.process.refused import explain
from launcher.process.signals import send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "launcher-node"
UNSENT_LIMIT_BYTES = 1 << 26
"""Unread bytes that end the connection to the head: it does not lead the job any more.

A rank's report has 1 MiB at most.
"""


class Rank:
    """The wrapper of one rank, and the connection to it.

    Attributes:
        pid: Its PID.
        daemon: PID of the MPI daemon that started it; None if mpirun itself did.
        waits: Whether it waits for its `Briefing`.
        started: Whether it has reported its start, so that it can be sent signals for the rank.
        ended: Whether it has reported the end of its process.
        connection: The connection to it.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.daemon = find_daemon(pid)
        self.waits = self.started = self.ended = False
        self.connection: Connection

    def send(self, message: object) -> None:
        """Send it a message, now or once it reads: a stopped wrapper must not block us."""
        self.connection.send(pack(message))


class Session:
    """This node's end of the connection to the head.

    Attributes:
        job: Name of the job.
        folder: The folder of our socket.
        ranks: The connected wrappers.
        briefing: Facts from the head; None before they have arrived.
        signalled: The signal by which the job began to end; None before.
        released: Whether wrappers may exit.
        stopped: PIDs of the daemons that we have stopped.
        status: The job's status; None as long as the head has not told us.
    """

    def __init__(self, job: str) -> None:
        self.job = job
        self.folder = make_folder(job)
        self.ranks: list[Rank] = []
        self.briefing: Briefing | None = None
        self.signalled: int | None = None
        self.released = False
        self.stopped: set[int | None] = set()
        self.status: int | None = None
        self.due: float | None = None
        """End of the ranks' grace, once the head is gone (monotonic seconds); None before."""
        self._loop = Loop(say)
        self._loop.timers.append(self)
        for fd in (0, 1):
            os.set_blocking(fd, False)
        self._head = Connection(
            (0, 1), Lines(WELCOME_LIMIT_BYTES), self._loop,
            self._obey, lambda why: self._lose_head(), UNSENT_LIMIT_BYTES,
        )  # fmt: skip
        self._daemons = Daemons(self._loop, self._on_daemon_lost)
        self._server = socket.socket(socket.AF_UNIX)
        self._serve: Connection | None = None

    def run(self) -> int:
        """Run until the head reports that the job is over; return an exit status.

        Without a head, run until no rank is connected or the grace is over.

        Returns:
            0, or 1 if this node has a session of the job already.
        """
        try:
            self._server.bind(os.path.join(self.folder, SOCKET))
        except OSError as error:
            if error.errno != EADDRINUSE:
                raise
            self.tell(Taken(os.uname().nodename))
            return 1
        self._server.listen(512)
        listener = Listener(self._server, self._loop, self._take)
        self._loop.timers.append(listener)
        serving = attach(os.environ.get(SERVE_SOCKET))
        if serving is not None:
            self._serve = Connection.of_socket(
                serving, Lines(), self._loop, self._on_served, lambda why: self._lose_serving()
            )
        self.tell(SessionReady(os.uname().nodename, __version__))
        try:
            while self.status is None and not self._is_over():
                self._loop.turn()
        finally:
            self.clean_up()
        return 0

    def _is_over(self) -> bool:
        return self.due is not None and (not self.ranks or time.monotonic() >= self.due)

    def fire(self, now: float) -> None:
        """Wake the loop at the end of the grace, so that `run` returns."""

    def tell(self, message: object) -> None:
        """Send the head a message, now or once it reads."""
        self._head.send(pack(message))

    # --- the head

    def _obey(self, packed: Mapping[str, object]) -> None:
        """Handle a message from the head.

        Raises:
            Garbled: The message is invalid. The connection then ends, as if the head were gone.
        """
        match message := unpack(packed, FROM_HEAD):
            case Briefing():
                self._begin(message)
            case PassOn():
                self._signal(message.number, begins_end=message.ends)
            case Release():
                self.released = True
                self._tell_ranks(message)
                self._let_daemons_go()
            case JobOver():
                self.status = message.status

    def _begin(self, briefing: Briefing) -> None:
        """Take the facts about an attempt; before a restart end what the last attempt has left here."""
        # If there was another session before us, the ranks that it has left have their grace
        linger_s = briefing.grace_s if self.briefing is None else LINGER_S
        self.briefing = briefing
        if briefing.attempt:
            self._loop.timers.append(Sweep(self.job, self._daemons, linger_s, self._renew))
            return
        for rank in self.ranks:
            self._brief(rank)

    def _renew(self) -> None:
        """Forget the last attempt, of which nothing is left here, and tell the head."""
        for rank in self.ranks:
            rank.connection.close()
        self.ranks.clear()
        self.stopped.clear()
        self.released, self.signalled = False, None
        if os.path.exists(os.path.join(self.folder, SOCKET)):
            self.tell(Cleared())
        else:  # removed by a rank that has lost the session before us
            self.tell(Leaving("its folder was removed"))
            self._lose_head()

    def _lose_head(self) -> None:
        """End the job here, because the head is gone: the ranks may save their state within the grace."""
        if self.due is None and self.status is None:
            self.due = time.monotonic() + (self.briefing or Briefing()).grace_s
            self.released = True
            self._tell_ranks(Release())
            self._signal(signal.SIGTERM, begins_end=True)

    def _signal(self, number: int, *, begins_end: bool) -> None:
        if begins_end:
            self.signalled = number
        for rank in self.ranks:
            if rank.started and not rank.ended:
                send(rank.pid, number)
                if begins_end:
                    send(rank.pid, signal.SIGCONT)  # a stopped wrapper could not forward it

    # --- ranks

    def _take(self, connected: socket.socket, _: str) -> None:
        pid, uid = read_peer(connected)
        if uid != os.geteuid() or descends_from(pid, {rank.pid for rank in self.ranks}):
            connected.close()  # a process that a rank has started is not a rank
            return
        rank = Rank(pid)
        rank.connection = Connection.of_socket(
            connected,
            Lines(),
            self._loop,
            lambda packed: self._on_rank(rank, packed),
            lambda why: self._lose_rank(rank),
            WELCOME_LIMIT_BYTES,
        )
        self.ranks.append(rank)
        self._daemons.watch(rank.daemon)

    def _on_daemon_lost(self, daemon: int) -> None:
        """Report a daemon that has ended before its ranks: mpirun may wait for it forever."""
        ours = [rank for rank in self.ranks if rank.daemon == daemon]
        for rank in ours:
            rank.connection.read()  # it may have reported its end before
        if any(not rank.ended and is_alive(rank.pid) for rank in ours):
            self.tell(Orphaned(daemon))

    def _keep_daemon(self, rank: Rank) -> None:
        """Stop the process with which the ranks would abort, because MPI begins to end one of them.

        `_let_daemons_go` continues it when all ranks have ended.
        """
        if self.due is not None or not self.released:
            self.stopped.add(stop_daemon(rank.pid))

    def _let_daemons_go(self) -> None:
        for pid in filter(None, self.stopped):
            send(pid, signal.SIGCONT)
        self.stopped.clear()

    def _tell_ranks(self, message: object) -> None:
        for rank in self.ranks:
            rank.send(message)

    def _brief(self, rank: Rank) -> None:
        """Send a waiting rank the head's `Briefing`, if that has arrived."""
        if rank.waits and self.briefing is not None:
            rank.waits = False
            rank.send(self.briefing)

    def _lose_rank(self, rank: Rank) -> None:
        self.ranks.remove(rank)
        self.tell(Gone(rank.pid))

    def _on_rank(self, rank: Rank, packed: Mapping[str, object]) -> None:
        """Handle a message from a rank.

        Raises:
            Garbled: The message is invalid.
        """
        match message := unpack(packed, FROM_RANK):
            case Attached():
                rank.waits = True
                self._brief(rank)
            case Started() if not rank.started:
                rank.started = True
                self.tell(replace(message, pid=rank.pid))
                if self.signalled is not None:
                    send(rank.pid, self.signalled)  # the job began to end while this rank started
            case Abandoned() if rank.started and not rank.ended:
                self._keep_daemon(rank)
                self.tell(replace(message, pid=rank.pid))
            case RankEnded() if not rank.ended:
                rank.ended = True
                self.tell(replace(message, pid=rank.pid))
                if self.released:
                    rank.send(Release())

    # --- serve

    def _on_served(self, packed: Mapping[str, object]) -> None:
        """Pass on a signal that the launcher serving on this node has received.

        Raises:
            Garbled: The message is of another type.
        """
        self.tell(unpack(packed, (NodeTold,)))

    def _lose_serving(self) -> None:
        """End the job here, because the serving launcher is gone and nothing keeps this node for the job."""
        self._serve = None
        self.tell(Leaving("the launcher that served there was killed"))
        self._lose_head()

    # --- the end

    def clean_up(self) -> None:
        """End what the job has left on this node, and tell the serving launcher how the job ended."""
        Sweep(self.job, self._daemons, LINGER_S if self.status is not None else 0.0).run()
        remove_folder(os.path.join(self.folder, SOCKET))
        if self._serve is not None and self.status is not None:
            self._serve.send(pack(JobOver(self.status)))


def attach(path: str | None) -> socket.socket | None:
    """Return a connection to the launcher that serves on this node; None if none does."""
    if not path:
        return None
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    connection.setblocking(False)
    return connection


def main(argv: list[str]) -> int:
    """Run the session of a job; return an exit status."""
    # The end of the ssh connection closes our pipes. A hangup or Ctrl-C of a login is not for us.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    set_name(NAME)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # two for each rank; we start no process
    try:
        return Session(argv[0]).run()
    except OSError as error:
        known = explain(error)
        if known is not None:
            print_problems(known)
            return 1
        where = error.filename or ", ".join(FOLDERS)
        print(f"no session on {os.uname().nodename}: {where}: {error.strerror or error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
