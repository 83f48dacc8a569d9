"""A node other than node 0: joins node 0's launcher, and runs the programs that it asks for.

For mpirun and DeepSpeed's autotuner it is what sshd is for ssh, for one job only. It calls node 0 and does
not listen, and both prove that they have the job's token. If the connection is lost, the standard streams of
the programs are closed, as sshd does it, and the node joins again as soon as it can.
"""

from __future__ import annotations

import os
import signal
import time
from itertools import product
from os import strerror

from launcher.channel.connection import READ_BYTES, Connection
from launcher.channel.frames import OTHER_LAUNCHER
from launcher.cluster.connect import ConnectAttempt
from launcher.cluster.reach import read_address, resolve
from launcher.core.frozen import frozen
from launcher.core.version import __version__
from launcher.core.wire import pack, unpack
from launcher.process.loop import Every
from launcher.process.watchdog import MARK
from launcher.remote.pipes import Pipes
from launcher.remote.protocol import (
    BEAT_S,
    CHUNK_BYTES,
    LOST_S,
    NOT_REACHED,
    TO_NODE,
    WINDOW_BYTES,
    EndProgram,
    NodeHere,
    NotAdmitted,
    ProgramEnded,
    RunProgram,
    StillHere,
    StreamData,
    StreamTaken,
    decode_data,
    encode_data,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from launcher.channel.frames import Calling
    from launcher.core.log import Say
    from launcher.process.helper import Take, Work
    from launcher.process.loop import Loop

CONNECT_S = 3.0
"""Seconds for the proofs once connected."""
RESOLVE_S = 20.0
RETRY_S, RETRY_SHARE, RETRY_LIMIT_S = 0.1, 20, 2.0
"""A pause between calls is the time without node 0 divided by this share, within these limits."""
SAY_EVERY_S = 15.0
UNSENT_LIMIT_BYTES = 1 << 26
"""Data that node 0 does not take; each program has `WINDOW_BYTES` on the way at most."""
PIPE_BYTES = 1 << 20
"""The most that a pipe holds, see pipe(7): what a program has left there at its end."""
LOOK_S = 0.1
"""Seconds between looks at programs whose end the kernel does not report."""


@frozen
class Membership:
    """How a node reaches node 0, and what it knows about itself.

    Attributes:
        host: Name or address of node 0.
        ports: Ports at which its launcher may listen.
        key: Key of the job.
        index: Our node rank; None if it is unknown.
        address: Our own address in the cluster; node 0 finds the rank by it.
    """

    host: str
    ports: tuple[int, ...]
    key: bytes
    index: int | None = None
    address: str = ""


class Program:
    """A program that runs here for node 0: its process, its streams, and data for its standard input.

    Attributes:
        window: Bytes of its outputs that may be sent before node 0's client has taken those before.
    """

    def __init__(self, number: int, process: Pipes) -> None:
        self.number, self.process = number, process
        self.outputs = {1: process.stdout, 2: process.stderr}
        self.pidfd = -1
        self.unread = bytearray()
        self.window = WINDOW_BYTES
        self.has_stdin, self.stdin_ends = True, False


class Programs:
    """The programs that run here for node 0, for one connection to it.

    Attributes:
        pids: Those that were not reaped yet.
    """

    def __init__(
        self,
        send: Callable[[object], None],
        loop: Loop,
        environ: Mapping[str, str],
        restore: Callable[[], None],
    ) -> None:
        """Begin without a program.

        Args:
            send: Sends node 0 a message.
            loop: Waits for the programs.
            environ: Their environment.
            restore: Restores the signals in a child, before its program.
        """
        self.pids: set[int] = set()
        self._send, self._loop, self._restore = send, loop, restore
        self._programs: dict[int, Program] = {}
        # Without the mark by which the launcher's watchdog finds what it kills: ranks have their grace
        self._environ = {name: value for name, value in environ.items() if name != MARK}
        self._unwatched: list[Program] = []

    def obey(self, message: object) -> None:
        """Handle a message from node 0 about programs."""
        match message:
            case RunProgram() if message.number not in self._programs:
                self._run(message)
            case EndProgram() if message.number in self._programs:
                self._let_go(self._programs[message.number])
            case StreamData() if message.number in self._programs:
                self._feed(self._programs[message.number], message)
            case StreamTaken() if message.number in self._programs:
                self._widen(self._programs[message.number], message.size)

    def let_go(self) -> None:
        """Close the streams of all programs, because node 0 is gone."""
        for program in list(self._programs.values()):
            self._let_go(program)

    def _run(self, run: RunProgram) -> None:
        try:
            process = Pipes(("/bin/sh", "-c", run.line), self._environ, self._restore, outlives=True)
        except OSError as error:
            self._send(ProgramEnded(run.number, NOT_REACHED, f"cannot start it: {error.strerror}"))
            return
        program = self._programs[run.number] = Program(run.number, process)
        self.pids.add(process.pid)
        self._watch_outputs(program)
        try:
            program.pidfd = os.pidfd_open(process.pid)
            self._loop.add(program.pidfd, lambda: self._note_end(program))
        except OSError:  # an old kernel or a strict seccomp profile
            if not self._unwatched:
                self._loop.timers.append(Every(LOOK_S, self._look_at_unwatched))
            self._unwatched.append(program)

    def _look_at_unwatched(self) -> None:
        for program in list(self._unwatched):
            self._note_end(program)

    def _note_end(self, program: Program) -> None:
        """Send what is left of a program's output, and its exit status, if it has ended."""
        pid, status = os.waitpid(program.process.pid, os.WNOHANG)
        if not pid:
            return
        self.pids.discard(pid)
        if program.pidfd >= 0:
            self._loop.remove(program.pidfd)
            os.close(program.pidfd)
        else:
            self._unwatched.remove(program)
        if program.number in self._programs:
            for stream in list(program.outputs):
                for _ in range(PIPE_BYTES // CHUNK_BYTES):  # what it has left behind may write on
                    if stream not in program.outputs or not self._send_output(program, stream):
                        break
            code = os.waitstatus_to_exitcode(status)
            self._forget(program)
            self._send(ProgramEnded(program.number, code if code >= 0 else 128 - code))

    def _watch_outputs(self, program: Program) -> None:
        for stream, fd in program.outputs.items():
            self._loop.add(fd, lambda stream=stream: self._forward(program, stream))  # type: ignore[misc]

    def _forward(self, program: Program, stream: int) -> None:
        """Send the output that can be read now, up to one chunk; no more once the window is used up."""
        self._send_output(program, stream)
        if program.window <= 0:
            for fd in program.outputs.values():
                self._loop.remove(fd)

    def _widen(self, program: Program, size: int) -> None:
        """Read outputs again, because the client has taken some."""
        was_shut = program.window <= 0
        program.window += size
        if was_shut and program.window > 0:
            self._watch_outputs(program)

    def _send_output(self, program: Program, stream: int) -> bool:
        """Send the output that can be read now, up to one chunk; return whether there was any."""
        try:
            data = os.read(program.outputs[stream], CHUNK_BYTES)
        except BlockingIOError:
            return False
        if data:
            program.window -= len(data)
            self._send(StreamData(program.number, stream, encode_data(data)))
        else:
            self._close_output(program, stream)
        return bool(data)

    def _feed(self, program: Program, data: StreamData) -> None:
        """Pass data on to a program's standard input."""
        program.unread += decode_data(data.data)
        program.stdin_ends = program.stdin_ends or not data.data
        self._flush(program)

    def _flush(self, program: Program) -> None:
        if not program.has_stdin:
            return
        fd = program.process.stdin
        try:
            while program.unread:
                size = os.write(fd, program.unread[:READ_BYTES])
                del program.unread[:size]
                self._send(StreamTaken(program.number, 0, size))
        except BlockingIOError:
            if not self._loop.watches(fd):
                self._loop.add(fd, lambda: self._flush(program), writable=True)
            return
        except OSError:  # it reads no more
            self._send(StreamTaken(program.number, 0, len(program.unread)))
            program.unread.clear()
        self._loop.remove(fd)
        if program.stdin_ends:
            self._close_stdin(program)

    def _close_stdin(self, program: Program) -> None:
        if program.has_stdin:
            program.has_stdin = False
            self._loop.remove(program.process.stdin)
            os.close(program.process.stdin)

    def _close_output(self, program: Program, stream: int) -> None:
        fd = program.outputs.pop(stream)
        self._loop.remove(fd)
        os.close(fd)

    def _let_go(self, program: Program) -> None:
        """Close a program's streams: it notices, even if it is stopped."""
        self._forget(program)
        program.process.send(signal.SIGCONT)

    def _forget(self, program: Program) -> None:
        self._programs.pop(program.number, None)
        self._close_stdin(program)
        for stream in list(program.outputs):
            self._close_output(program, stream)


class Member:
    """This node's membership: calls node 0 until it answers, and again when the connection is lost.

    Attributes:
        due: When to call `fire`.
        is_connected: Whether node 0 has answered, and the connection is open.
    """

    def __init__(
        self,
        place: Membership,
        loop: Loop,
        ask: Callable[[Work, Take, float], object],
        programs: tuple[Mapping[str, str], Callable[[], None]],
        say: Say,
        on_message: Callable[[object], None],
        on_lost: Callable[[], None],
        kinds: tuple[type, ...] = (),
    ) -> None:
        """Prepare to call.

        Args:
            place: Where node 0 is.
            loop: Waits for the connection and the programs.
            ask: Runs what may block, for at most some seconds, and passes on its lines; may raise `OSError`.
            programs: Environment of the programs, and what restores the signals in a child.
            say: Prints a message in the log.
            on_message: Takes the messages of node 0 that are not about programs.
            on_lost: Called when the connection is lost.
            kinds: The types of these messages.
        """
        self.due: float | None = time.monotonic()
        self.is_connected = False
        self._place, self._loop, self._ask, self._say = place, loop, ask, say
        self._on_message, self._on_lost, self._kinds = on_message, on_lost, kinds
        self.programs = Programs(self.send, loop, *programs)
        self._session = os.urandom(8).hex()
        self._connection: Connection | None = None
        self._attempt: ConnectAttempt | None = None
        self._places: list[tuple[int, str]] = []
        self._lost_count = 0
        self._why = self._said = ""
        self._is_refused = self._is_closed = False
        self._without_since = self._said_at = self._heard_at = time.monotonic()
        loop.timers.append(Every(BEAT_S, self._beat))

    def send(self, message: object) -> None:
        """Send node 0 a message, if there is a connection."""
        if self._connection is not None:
            self._connection.send(pack(message))

    def fire(self, now: float) -> None:
        """Call node 0, or give a call up."""
        attempt, self.due = self._attempt, None
        if attempt is None:
            self._call()
        elif now < attempt.until:  # it is connected
            self.due = attempt.until
        else:
            attempt.give_up()

    def close(self) -> None:
        """Leave node 0, and let the programs go."""
        self.due, self._is_closed = None, True
        if self._attempt is not None:
            self._attempt.close()
        if self._connection is not None:
            self._connection.close()
        self._connection, self.is_connected = None, False
        self.programs.let_go()

    # --- calling

    def _call(self) -> None:
        """Begin to call node 0 at each of its ports and addresses; it listens at one."""
        host = self._place.host
        self._why, self._is_refused = f"the name {host} does not resolve", False
        found = read_address(host)
        if found:
            self._call_at(found)
            return
        try:
            self._ask(lambda: resolve(host), self._call_at, RESOLVE_S)
        except OSError as error:
            self._why = error.strerror or "no process"
            self._call_again()

    def _call_at(self, addresses: Sequence[str]) -> None:
        """Call the first port of each address, then the next one.

        After a connection that has ended, the next address is the first: another program may have passed on
        our calls.
        """
        first = self._lost_count % max(1, len(addresses))
        self._places = list(product(self._place.ports, (*addresses[first:], *addresses[:first])))
        self._call_next()

    def _call_next(self) -> None:
        """Call the next place, or all again after a pause."""
        self._attempt = None
        if self._is_closed:
            return
        if not self._places:
            self._complain(self._why, at_once=self._is_refused)
            self._call_again()
            return
        port, address = self._places.pop(0)
        self._attempt = attempt = ConnectAttempt(
            self._place.key,
            CONNECT_S,
            self._loop,
            self._open,
            lambda error: self._note_failure(port, strerror(error)),
            lambda why, _: self._note_failure(port, why),
        )
        attempt.begin(address, port)
        if self._attempt is attempt:
            self.due = attempt.until

    def _note_failure(self, port: int, why: str) -> None:
        if not self._is_refused:
            self._is_refused = OTHER_LAUNCHER in why
            self._why = f"node 0 ({self._place.host}), port {port}: {why}"
        self._call_next()

    def _call_again(self) -> None:
        now = time.monotonic()
        self.due = now + min(RETRY_LIMIT_S, max(RETRY_S, (now - self._without_since) / RETRY_SHARE))

    def _open(self, connected: socket.socket, calling: Calling) -> None:
        """Join on the new connection, after both sides have proved themselves."""
        assert calling.sealed is not None  # noqa: S101 - see `ConnectAttempt`
        self._attempt, self.due, self._heard_at = None, None, time.monotonic()
        self._connection = connection = Connection(
            connected, calling.sealed, self._loop, self._hear, self._lose, UNSENT_LIMIT_BYTES
        )
        self.is_connected = True
        place = self._place
        self.send(NodeHere(os.uname().nodename, __version__, place.index, place.address, self._session))
        connection.take(calling.rest)

    # --- connected

    def _hear(self, packed: Mapping[str, object]) -> None:
        """Handle a message from node 0.

        Raises:
            Garbled: The message is invalid.
        """
        self._heard_at = time.monotonic()
        message = unpack(packed, (*TO_NODE, *self._kinds))
        if isinstance(message, NotAdmitted):
            self._is_refused = True
            self._give_up(message.why)
        elif isinstance(message, self._kinds):
            self._loop.guard(lambda: self._on_message(message))
        else:
            self.programs.obey(message)

    def _beat(self) -> None:
        """Send a sign of life, or give the connection up if node 0 has sent none for too long."""
        if self._connection is None:
            return
        if time.monotonic() > self._heard_at + LOST_S:
            self._give_up(f"nothing was heard of it for {LOST_S:g} s")
        else:
            self.send(StillHere())

    def _give_up(self, why: str) -> None:
        if self._connection is not None:
            self._connection.close()
            self._lose(why)

    def _lose(self, why: str) -> None:
        self._connection, self.is_connected, self._without_since = None, False, time.monotonic()
        self._lost_count += 1
        self.programs.let_go()
        self._complain(f"node 0 ({self._place.host}): {why}", at_once=self._is_refused)
        self._call_again()
        self._on_lost()

    def _complain(self, why: str, *, at_once: bool) -> None:
        """Print why node 0 is not reached, from time to time; ``at_once`` a new reason that will not pass."""
        now = time.monotonic()
        if now >= self._said_at + SAY_EVERY_S or (at_once and why != self._said):
            self._said, self._said_at = why, now
            self._say(why, "joining")
