"""A serving node: runs programs for the head, until the head reports how the job ended, or is gone."""

from __future__ import annotations

import contextlib
import os
import socket
import time

from launcher.agent.agent import Agent, Place
from launcher.agent.coordination import Coordination
from launcher.channel.connection import READ_BYTES, Connection
from launcher.channel.lines import Lines
from launcher.channel.listener import Listener, read_peer
from launcher.core.budget import Quota
from launcher.core.errors import NotReady, Problem
from launcher.core.files import remove_tree
from launcher.core.messages import LINE_LENGTH, pack, unpack
from launcher.core.redact import quote
from launcher.core.signal import signal
from launcher.machine.pythons import own_program
from launcher.mpi.messages import JobOver, NodeTold
from launcher.mpi.session_folder import SERVE_SOCKET
from launcher.process.descendants import find_parent
from launcher.process.loop import Later
from launcher.process.signals import name_signal
from launcher.process.spawn import Child, Streams
from launcher.remote import programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.core.model import Supervision

GONE = 75
"""Our exit status if the head is gone without a report, or has not come."""
PATIENCE_S = 30.0
"""Seconds that the head may take to end the job, in addition to the grace."""
CLOSE_S = 4.0
"""Seconds that the programs may take to end."""


class Serving(Coordination):
    """Coordination of the program that joins the head and runs its programs, with the job's session."""

    shares_terminal = lends_terminal = False

    def __init__(self, listener: socket.socket, timeout_s: float, private: str, rejoin_s: float) -> None:
        """Create the coordination.

        Args:
            listener: Listening socket to which the job's session connects.
            timeout_s: Seconds that the head may take to come.
            private: A folder with the key, which `clean_up` removes.
            rejoin_s: Seconds that the head may take to come back; 0 if it does not start the job again.
        """
        self._listening, self._timeout_s, self._private = listener, timeout_s, private
        self._rejoin_s = rejoin_s
        self._connection: Connection | None = None
        self._status: int | None = None
        self._wake = Later(time.monotonic() + timeout_s, self._on_late)
        self._is_late = self._has_come = False
        self._words = b""
        self._writing = -1

    def attach(self, agent: Agent) -> None:
        """Listen for the session."""
        super().attach(agent)
        self.listen_to(agent)
        self._listener = Listener(self._listening, agent.loop, self._take)

    def listen_to(self, agent: Agent) -> None:
        """Limit the lines that the program's messages make in our log."""
        self._say = Quota(agent.say)

    def begin(self) -> None:
        """Start the timers: the wait for the head, and the listener's pauses."""
        self.agent.loop.timers += [self._wake, self._listener]

    def began(self) -> None:
        """Close our end of the pipe to which the program writes."""
        if self._writing >= 0:  # there is no pipe if it could not be started
            os.close(self._writing)
            self._writing = -1

    def route(self, child: Child, streams: Streams) -> Streams:
        """Give the program a pipe for its messages."""
        reading, self._writing = os.pipe()
        os.set_blocking(reading, False)
        self.agent.loop.add(reading, lambda: self._on_words(reading))
        return Streams(streams.stdin, self._writing, self._writing)

    def clean_up(self) -> None:
        """Remove the private folder, because it contains the key."""
        remove_tree(self._private)

    # --- signals

    def takes_signal(self, number: int, *, from_terminal: bool) -> bool:
        """Handle every signal, so that none goes to the program.

        SIGTERM and SIGINT are passed on to the head, which passes them on to all ranks. Without a head, or at
        a second Ctrl-C, they end this node's part.
        """
        forwarder = self.agent.forwarder
        if number in (signal.SIGTERM, signal.SIGINT):
            is_first, forwarder.told = forwarder.told is None, forwarder.told or number
            typed_twice = from_terminal and number == signal.SIGINT and not is_first
            if typed_twice or not self._tell(number):
                self._end(128 + number)
            elif is_first:
                self.agent.say(
                    f"{name_signal(number)}: passed on to the head of the job, which ends it on all nodes",
                    "signal",
                )
                self._wake.due = time.monotonic() + self.agent.watch.grace_s + PATIENCE_S
        return True  # our signals are not for the program

    def _tell(self, number: int) -> bool:
        """Tell the head about a signal; return whether there is a head."""
        if self._connection is None:
            return False
        self._connection.send(pack(NodeTold(number)))
        return self._connection.is_open

    # --- the program and the session

    def _on_words(self, fd: int) -> None:
        """Print the program's messages: why it does not reach the head."""
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self.agent.loop.remove(fd)
            os.close(fd)
        self.hear(data)

    def hear(self, data: bytes) -> None:
        """Print some of them, up to a limit."""
        *lines, rest = (self._words + data).split(b"\n")
        self._words = rest[-READ_BYTES:]
        for line in (line.decode("utf-8", "replace").strip() for line in lines):
            if line:
                self._say(quote(line, LINE_LENGTH), "joining")

    def _take(self, connected: socket.socket, _: str) -> None:
        """Take the connection of the session: the head has started it, so the head has come."""
        pid, uid = read_peer(connected)
        if uid != os.geteuid() or self._connection is not None:
            connected.close()
            return
        self._wake.due = None
        self._watch_session(pid)
        self._connection = Connection.of_socket(
            connected, Lines(), self.agent.loop, self._on_over, lambda why: self._on_lost()
        )

    def _watch_session(self, pid: int) -> None:
        """Wake the session when the program ends: a stopped session would not notice that."""
        with contextlib.suppress(OSError):  # an old kernel, or the process is gone
            fd = os.pidfd_open(find_parent(pid))
            self.agent.loop.add(fd, lambda: self._wake_session(pid, fd))

    def _wake_session(self, pid: int, fd: int) -> None:
        """Continue the session, because its streams have ended."""
        self.agent.loop.remove(fd)
        os.close(fd)
        if self._status is None:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)

    def _on_over(self, packed: Mapping[str, object]) -> None:
        """End with the job's status, which the session reports.

        Raises:
            Garbled: The message is of another type.
        """
        over = unpack(packed, (JobOver,))
        assert isinstance(over, JobOver)  # noqa: S101 - there is no other kind
        self._end(over.status)

    def _on_lost(self) -> None:
        """Wait for the head to come back, or end this node's part: the session is gone without a report."""
        self._connection = None
        if self._status is not None:
            return
        if self._rejoin_s and self.agent.forwarder.told is None:
            self.agent.say(
                "the head of the job is gone, or its session here: waiting "
                f"{self._rejoin_s:g} s for it to come back (--rejoin-timeout)",
                "head-lost",
            )
            self._has_come, self._wake.due = True, time.monotonic() + self._rejoin_s
        else:
            self.agent.say(
                "the head of the job or its session here is gone: ending what it left on this node",
                "head-lost",
            )
            self._end(GONE)

    # --- the end

    def _on_late(self) -> None:
        """End this node's part: the head has not come, or was told to end the job and has not done so."""
        told = self.agent.forwarder.told
        if told is not None:
            self.agent.say("the head did not end the job in time: giving up", "gave-up")
            self._end(128 + told)
        elif self._has_come:
            self.agent.say(
                f"the head of the job has not come back within {self._rejoin_s:g} s: giving up", "gave-up"
            )
            self._end(GONE)
        else:
            self._is_late = True
            self._end(GONE)

    def _end(self, status: int) -> None:
        """Stop the program, because the job is over on this node; the first status counts."""
        self._status = status if self._status is None else self._status
        stopper = self.agent.group.stopper
        stopper.grace_s = CLOSE_S
        stopper.begin(signal.SIGTERM)

    def finish(self) -> int:
        """Return the status of the job.

        Raises:
            NotReady: The head has not come in time.
        """
        self._say.say_dropped()
        if self._is_late:
            raise NotReady(_no_head(self._timeout_s))
        if self._status is None:
            return super().finish() or GONE  # the program itself has ended; its messages tell why
        return self._status


def serve(
    head: str,
    config: str,
    folder: str,
    watch: Supervision,
    environ: Mapping[str, str],
    timeout_s: float,
    rejoin_s: float = 0.0,
    checks: Callable[[], Sequence[str]] | None = None,
) -> int:
    """Serve until the job is over; return its status.

    Args:
        head: Name or address of node 0.
        config: File that describes the job, for `launcher.remote.programs`.
        folder: A private folder for our files; it is removed at the end.
        watch: How to watch the program.
        environ: Our environment, which the processes that the head starts here get as well.
        timeout_s: Seconds that the head may take to come.
        rejoin_s: Seconds that it may take to come back; 0 if it does not start the job again.
        checks: Run meanwhile, see `launcher.agent.agent.Agent`.

    Raises:
        NotReady: The head has not come (75).
    """
    path = os.path.join(folder, "serve")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(8)
    argv = own_program(programs.__file__, config)
    child = Child(0, 0, argv, {**environ, SERVE_SOCKET: path}, called="node")
    agent = Agent(watch, Place(), environ, Serving(listener, timeout_s, folder, rejoin_s), checks=checks)
    agent.take([child], [argv[0]])
    agent.say(f"serving node 0 ({head}) until it reports that the job is over", "serving")
    return agent.run()


def _no_head(timeout_s: float) -> Problem:
    return Problem(
        "no-head",
        f"the head of the job did not connect within {timeout_s:g} s",
        "this node",
        "start the same command on node 0, with the same token, or wait longer: --roll-call-timeout S",
    )
