"""The ranks that mpirun has started on this node: their wrappers connect to the launcher of the node.

The launcher passes their reports to the head, and the head's messages to them. Ranks find it by a socket in a
private directory. If the head is lost, the ranks have their grace here. At the end, and before each restart,
all that the job has left on the node is ended.
"""

from __future__ import annotations

import os
import signal
import socket
import time

from launcher.channel.connection import Connection, Listener, read_peer
from launcher.channel.lines import WELCOME_LIMIT_BYTES, Lines
from launcher.cluster.messages import Again
from launcher.core.frozen import replace
from launcher.core.wire import pack, unpack
from launcher.job.events import Ready
from launcher.machine.process import descends_from, is_alive
from launcher.mpi import protocol
from launcher.mpi.folder import SOCKET, cannot_have_ranks, make_folder, remove_folder
from launcher.mpi.leftovers import LINGER_S, Daemons, Sweep, find_daemon, stop_daemon
from launcher.process.loop import Later
from launcher.process.signal_file import send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from launcher.process.loop import Loop


class Rank:
    """The wrapper of one rank, and the connection to it.

    Attributes:
        pid: Its PID.
        daemon: PID of the MPI daemon that started it; None if mpirun itself did.
        started: Whether it has reported its start, so that it can be sent signals for the rank.
        ended: Whether it has reported the end of its process.
        connection: The connection to it.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.daemon = find_daemon(pid)
        self.started = self.ended = False
        self.connection: Connection

    def send(self, message: object) -> None:
        """Send it a message, now or once it reads: a stopped wrapper must not block us."""
        self.connection.send(pack(message))


class LocalRanks:
    """The ranks of this node, for one attempt after the other.

    Attributes:
        is_over: Whether nothing of the job is here: it has not begun, has ended, or the head is lost.
        briefing: The facts about the attempt that runs, or ran last; None before the first.
    """

    def __init__(self, loop: Loop, report: Callable[[object], None], index: int, grace_s: float) -> None:
        """Create it before the first `Briefing`.

        Args:
            loop: Waits for the ranks.
            report: Sends the head a message.
            index: Index of this node.
            grace_s: Seconds for what a launcher before us has left here.
        """
        self.is_over = True
        self.briefing: protocol.Briefing | None = None
        self._loop, self._report, self._index, self._grace_s = loop, report, index, grace_s
        self._ranks: list[Rank] = []
        self._variables: dict[str, str | None] = {}
        self._signalled: int | None = None
        """The signal by which the attempt began to end; None before."""
        self._released = self._is_ending = False
        self._stopped: set[int | None] = set()
        """PIDs of the daemons that we have stopped."""
        self._grace: Later | None = None
        """The end of the ranks' grace, once the head is gone; None before."""
        self._daemons = Daemons(loop, self._on_daemon_lost)
        self._listener: Listener | None = None
        self._job = ""
        """Name of the job whose ranks find us."""
        self._sweep: Sweep | None = None

    # --- the head

    def obey(self, message: object) -> None:
        """Handle a message from the head.

        Raises:
            LauncherError: See `listen`.
        """
        match message:
            case protocol.Variable():
                self._variables[message.name] = message.value
            case protocol.Briefing():
                self._begin(message)
            case Again():
                is_own = self.briefing is not None and self.briefing.job == message.run
                ready = Ready(self._index, message.attempt)
                linger_s = LINGER_S if is_own else self._grace_s
                self.clear(message.run, linger_s, lambda: self._report(ready))
            case protocol.PassOn():
                self._signal(message.number, begins_end=message.ends)
            case protocol.Release():
                self._released = True
                self._tell_ranks(message)
                self._let_daemons_go()

    def listen(self, job: str) -> None:
        """Listen for the ranks of a job.

        Raises:
            LauncherError: There is no place for the socket, or another launcher of this job runs here.
        """
        if self._listener is None:
            server = socket.socket(socket.AF_UNIX)
            try:
                self._job, folder = job, make_folder(job)
                server.bind(os.path.join(folder, SOCKET))
            except OSError as error:
                server.close()
                raise cannot_have_ranks(error) from error
            server.listen(512)
            self._listener = Listener(server, self._loop, self._take)

    def _begin(self, briefing: protocol.Briefing) -> None:
        self.listen(briefing.job)
        self._forget()
        self.briefing, self._variables = replace(briefing, variables=self._variables), {}
        self._signalled = self._sweep = self._grace = None
        self.is_over = self._is_ending = self._released = False

    def _forget(self) -> None:
        """Forget the ranks of the last attempt, which are all gone."""
        for rank in self._ranks:
            rank.connection.close()
        self._ranks.clear()
        self._stopped.clear()

    def clear(self, job: str, linger_s: float, then: Callable[[], None]) -> None:
        """End what the last attempt left here, after a time to end by itself."""

        def on_clear() -> None:
            self._sweep = None
            self._forget()
            then()

        self._sweep = Sweep(job, self._daemons, linger_s, on_clear)

    def lose_head(self) -> None:
        """End the job here, because the head is gone: the ranks may save their state within the grace."""
        if self._grace is None and self.briefing is not None and not self.is_over:
            self._grace = Later(time.monotonic() + self.briefing.grace_s, lambda: self.end(0.0))
            self._released = True
            self._tell_ranks(protocol.Release())
            self._signal(signal.SIGTERM, begins_end=True)

    def _signal(self, number: int, *, begins_end: bool) -> None:
        if begins_end:
            self._signalled = number
        for rank in self._ranks:
            if rank.started and not rank.ended:
                send(rank.pid, number)
                if begins_end:
                    send(rank.pid, signal.SIGCONT)  # a stopped wrapper could not forward it

    # --- ranks

    def _take(self, connected: socket.socket, _: str) -> None:
        pid, uid = read_peer(connected)
        if uid != os.geteuid() or descends_from(pid, {rank.pid for rank in self._ranks}):
            connected.close()  # a process that a rank has started is not a rank
            return
        rank = Rank(pid)
        rank.connection = Connection(
            connected,
            Lines(),
            self._loop,
            lambda packed: self._on_rank(rank, packed),
            lambda why: self._lose_rank(rank),
            WELCOME_LIMIT_BYTES,
        )
        self._ranks.append(rank)
        self._daemons.add(rank.daemon)

    def _on_daemon_lost(self, daemon: int) -> None:
        """Report a daemon that has ended before its ranks: mpirun may wait for it forever."""
        ours = [rank for rank in self._ranks if rank.daemon == daemon]
        for rank in ours:
            rank.connection.read()  # it may have reported its end before
        if any(not rank.ended and is_alive(rank.pid) for rank in ours):
            self._report(protocol.Orphaned(daemon))

    def _keep_daemon(self, rank: Rank) -> None:
        """Stop the process with which the ranks would abort, because MPI begins to end one of them.

        `_let_daemons_go` continues it when all ranks have ended.
        """
        if self._grace is not None or not self._released:
            self._stopped.add(stop_daemon(rank.pid))

    def _let_daemons_go(self) -> None:
        for pid in filter(None, self._stopped):
            send(pid, signal.SIGCONT)
        self._stopped.clear()

    def _tell_ranks(self, message: object) -> None:
        for rank in self._ranks:
            rank.send(message)

    def _lose_rank(self, rank: Rank) -> None:
        self._ranks.remove(rank)
        self._report(protocol.Gone(rank.pid))

    def _on_rank(self, rank: Rank, packed: Mapping[str, object]) -> None:
        """Handle a message from a rank.

        Raises:
            Garbled: The message is invalid.
        """
        match message := unpack(packed, protocol.FROM_RANK):
            case protocol.Attached() if self.briefing is not None:
                rank.send(self.briefing)
            case protocol.Started() if not rank.started:
                rank.started = True
                self._report(replace(message, pid=rank.pid))
                if self._signalled is not None:
                    send(rank.pid, self._signalled)  # the job began to end while this rank started
            case protocol.Abandoned() if rank.started and not rank.ended:
                self._keep_daemon(rank)
                self._report(replace(message, pid=rank.pid))
            case protocol.RankEnded() if not rank.ended:
                rank.ended = True
                self._report(replace(message, pid=rank.pid))
                if self._released:
                    rank.send(protocol.Release())

    # --- the end, and time

    def end(self, linger_s: float = LINGER_S) -> None:
        """End what the job has left on this node; then `is_over` is true."""
        if self.briefing is not None and not (self.is_over or self._is_ending):
            self._is_ending, self._grace = True, None
            self.clear(self.briefing.job, linger_s, self._on_end)

    def _on_end(self) -> None:
        self.is_over = True
        self.close()

    def _list_timers(self) -> Iterator[tuple[float, Listener | Later | Sweep]]:
        """Yield what acts at a time, with that time."""
        for timer in (self._listener, self._grace, self._sweep):
            if timer is not None and timer.due is not None:
                yield (timer.due if self._ranks or timer is not self._grace else 0.0), timer

    @property
    def due(self) -> float | None:
        """When to call `fire`."""
        return min((due for due, _ in self._list_timers()), default=None)

    def fire(self, now: float) -> None:
        """Do what is due; the grace is over when no rank is left."""
        for due, timer in self._list_timers():
            if now >= due:
                timer.fire(now)

    def close(self) -> None:
        """Stop listening, and remove the directory."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            remove_folder(self._job)
