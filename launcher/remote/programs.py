"""Runs on each node but the first: joins node 0's launcher, and runs the programs that it asks for.

For mpirun and DeepSpeed's autotuner it is what sshd is for ssh, for one job only. It calls node 0 and does
not listen, and both prove that they have the job's token. If the connection is lost, the standard streams of
the programs are closed, as sshd does it, and the node joins again as soon as it can.

It runs as a file (``python -I -S programs.py FILE``), so that neither the working directory nor PYTHONPATH
can replace this package. FILE has a `Config` as JSON; the launcher that serves on this node writes it.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import json
import signal
import socket
import time
from itertools import product

from launcher.channel.connection import READ_BYTES, Connection
from launcher.channel.frames import OTHER_LAUNCHER, Calling, HandshakeFailed, Sealed
from launcher.channel.keys import at_port
from launcher.cluster.reach import resolve
from launcher.core.frozen import frozen
from launcher.core.log import say
from launcher.core.messages import pack, unpack
from launcher.core.redact import quote
from launcher.process.execute import RESTORED
from launcher.process.kernel import set_name
from launcher.process.loop import Every, Later, Loop
from launcher.process.watchdog import MARK
from launcher.remote.messages import (
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
from launcher.remote.pipes import Pipes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NAME = "launcher-node"
CONNECT_S = 3.0
"""Seconds of a call, with the proofs."""
RETRY_S, RETRY_SHARE, RETRY_LIMIT_S = 0.1, 20, 2.0
"""A pause between calls is the time without node 0 divided by this share, within these limits."""
SAY_EVERY_S = 15.0
UNSENT_LIMIT_BYTES = 1 << 26
"""Data that node 0 does not take; each program has `WINDOW_BYTES` on the way at most."""
PIPE_BYTES = 1 << 20
"""The most that a pipe holds, see pipe(7): what a program has left there at its end."""
OF_TERMINAL = (signal.SIGHUP, signal.SIGINT)
LOOK_S = 0.1
"""Seconds between looks at programs whose end the kernel does not report."""


@frozen
class Config:
    """What the node has to know.

    Attributes:
        host: Name or address of node 0.
        ports: Ports at which its launcher may listen.
        key: Key of the job, in hex.
        index: Our node rank; None if it is unknown.
        address: Our own address in the cluster; node 0 finds the rank by it.
    """

    host: str
    ports: tuple[int, ...]
    key: str
    index: int | None
    address: str


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
    """The programs of one connection to node 0.

    Attributes:
        is_open: Whether there is still a connection.
    """

    def __init__(
        self, connected: socket.socket, framing: Sealed, loop: Loop, lose: Callable[[str, bool], None]
    ) -> None:
        """Take over a connection after its handshake.

        ``lose`` is called once, with the reason, and whether node 0 has refused us.
        """
        self._loop, self._lose = loop, lose
        self._programs: dict[int, Program] = {}
        # Without the mark by which the launcher's watchdog finds what it kills: ranks have their grace
        self._environ = {name: value for name, value in os.environ.items() if name != MARK}
        self._heard_at = time.monotonic()
        self.is_open = True
        self._unwatched: list[Program] = []
        self._connection = Connection.of_socket(
            connected, framing, loop, self._obey, lambda why: self._end(why), UNSENT_LIMIT_BYTES
        )  # fmt: skip

    def send(self, message: object) -> None:
        """Send node 0 a message."""
        self._connection.send(pack(message))

    def take(self, data: bytes) -> None:
        """Handle data that came with the handshake."""
        self._connection.take(data)

    def beat(self) -> None:
        """Send a sign of life, or give the connection up if node 0 has sent none for too long."""
        if time.monotonic() > self._heard_at + LOST_S:
            self._connection.close()
            self._end(f"nothing was heard of it for {LOST_S:g} s")
        else:
            self.send(StillHere())

    def _end(self, why: str, *, is_refused: bool = False) -> None:
        if self.is_open:
            self.is_open = False
            for program in list(self._programs.values()):
                self._let_go(program)
            self._lose(why, is_refused)

    def _obey(self, packed: Mapping[str, object]) -> None:
        """Handle a message from node 0.

        Raises:
            Garbled: The message is invalid.
        """
        self._heard_at = time.monotonic()
        match message := unpack(packed, TO_NODE):
            case RunProgram() if message.number not in self._programs:
                self._run(message)
            case EndProgram() if message.number in self._programs:
                self._let_go(self._programs[message.number])
            case StreamData() if message.number in self._programs:
                self._feed(self._programs[message.number], message)
            case StreamTaken() if message.number in self._programs:
                self._widen(self._programs[message.number], message.size)
            case NotAdmitted():
                self._connection.close()
                self._end(message.why, is_refused=True)

    # --- programs

    def _run(self, run: RunProgram) -> None:
        try:
            process = Pipes(("/bin/sh", "-c", run.line), self._environ, outlives=True)
        except OSError as error:
            self.send(ProgramEnded(run.number, NOT_REACHED, f"cannot start it: {error.strerror}"))
            return
        program = self._programs[run.number] = Program(run.number, process)
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
            self.send(ProgramEnded(program.number, code if code >= 0 else 128 - code))

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
            self.send(StreamData(program.number, stream, encode_data(data)))
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
                self.send(StreamTaken(program.number, 0, size))
        except BlockingIOError:
            if not self._loop.watches(fd):
                self._loop.add(fd, lambda: self._flush(program), writable=True)
            return
        except OSError:  # it reads no more
            self.send(StreamTaken(program.number, 0, len(program.unread)))
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
    """This node's membership: calls node 0 until it answers, and again when the connection is lost."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._loop = Loop(say)
        self._programs: Programs | None = None
        self._lost_count = 0
        self._without_since = time.monotonic()
        self._calls = Later(self._without_since, self._call)
        self._said, self._said_at = "", time.monotonic()

    def run(self) -> None:
        """Run until a signal ends this program."""
        self._loop.timers += [Every(BEAT_S, self._beat), self._calls]
        while True:
            self._loop.turn()

    def _beat(self) -> None:
        if self._programs is not None:
            self._programs.beat()

    def _call(self) -> None:
        """Call node 0, now and until it answers: at each address, as it listens only at one.

        After a connection that has ended, the next address is the first: another program may have passed on
        our calls.
        """
        config, why, is_refused = self._config, f"the name {self._config.host} does not resolve", False
        addresses = resolve(config.host)
        first = self._lost_count % max(1, len(addresses))
        for port, address in product(config.ports, (*addresses[first:], *addresses[:first])):
            try:
                connected, calling = dial(address, port, bytes.fromhex(config.key))
            except (OSError, HandshakeFailed) as error:
                text = getattr(error, "strerror", None) or str(error)
                why = why if is_refused else f"node 0 ({config.host}), port {port}: {text}"
                is_refused = is_refused or isinstance(error, HandshakeFailed)
                continue
            assert calling.sealed is not None  # noqa: S101 - see `dial`
            self._programs = Programs(connected, calling.sealed, self._loop, self._lose)
            self._programs.send(NodeHere(os.uname().nodename, config.index, config.address))
            self._programs.take(calling.rest)
            return
        self._complain(why, at_once=is_refused)
        self._call_again()

    def _call_again(self) -> None:
        now = time.monotonic()
        pause_s = min(RETRY_LIMIT_S, max(RETRY_S, (now - self._without_since) / RETRY_SHARE))
        self._calls.due = now + pause_s

    def _lose(self, why: str, is_refused: bool) -> None:
        self._programs, self._without_since = None, time.monotonic()
        self._lost_count += 1
        self._complain(f"node 0 ({self._config.host}): {why}", at_once=is_refused)
        self._call_again()

    def _complain(self, why: str, *, at_once: bool = False) -> None:
        """Print why node 0 is not reached, from time to time; ``at_once`` a new reason that will not pass."""
        now = time.monotonic()
        if now >= self._said_at + SAY_EVERY_S or (at_once and why != self._said):
            self._said, self._said_at = why, now
            print(quote(why, 400), file=sys.stderr, flush=True)


def dial(host: str, port: int, key: bytes) -> tuple[socket.socket, Calling]:
    """Return a connection to node 0 after the handshake, non-blocking.

    Raises:
        OSError: Nothing answers there.
        HandshakeFailed: What answers does not have the key.
    """
    until = time.monotonic() + CONNECT_S
    connected = socket.create_connection((host, port), CONNECT_S)
    try:
        calling = Calling(at_port(key, port))
        connected.sendall(calling.call)
        while calling.sealed is None:
            connected.settimeout(max(0.001, until - time.monotonic()))
            data = connected.recv(READ_BYTES)
            if not data:
                raise HandshakeFailed(
                    OTHER_LAUNCHER if calling.has_proved else "closed the connection at once"
                )
            connected.sendall(calling.feed(data))
        connected.setblocking(False)
    except BaseException:
        connected.close()
        raise
    return connected, calling


def main(argv: list[str]) -> int:
    """Join the job that a file describes.

    The signals that we ignore have a handler: programs, unlike with SIG_IGN, find their default action.
    """
    kept = [number for number in OF_TERMINAL if signal.getsignal(number) is signal.SIG_IGN]
    for number in {*OF_TERMINAL, *RESTORED}.difference(kept):
        signal.signal(number, lambda *_: None)
    set_name(NAME)
    with open(argv[0], encoding="ascii") as file:
        told = json.load(file)
    Member(Config(**{**told, "ports": tuple(told["ports"])})).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
