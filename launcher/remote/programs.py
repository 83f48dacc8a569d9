"""Runs programs on this node for clients on node 0.

For mpirun and DeepSpeed's autotuner this is what sshd is for ssh, for one job only. If the connection to
node 0 is lost, the standard streams of the programs are closed, as sshd does it.
"""

from __future__ import annotations

import contextlib
import os
import signal

from launcher.channel.connection import READ_BYTES
from launcher.process.kernel import collect
from launcher.process.signal_file import send as send_signal
from launcher.process.watchdog import MARK
from launcher.remote import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from launcher.process.loop import Loop

PIPE_BYTES = 1 << 20
"""The most that a pipe holds, see pipe(7): what a program has left there at its end."""
STDIN, OUTPUTS = 0, (1, 2)


class Program:
    """A program that runs here for node 0: its process, its streams, and data for its standard input.

    Attributes:
        number: Number by which node 0 calls it.
        pid: Its process, the leader of a process group of its own. It survives if we are killed.
    """

    def __init__(
        self, run: protocol.RunProgram, environ: Mapping[str, str], send: Callable[[object], None], loop: Loop
    ) -> None:
        """Start it.

        Raises:
            OSError: No more processes or descriptors.
            ValueError: Its command line has a null byte.
        """
        self.number, self._send, self._loop = run.number, send, loop
        self.pid, self._streams = start_shell(run.line, environ)
        self._unread, self._input_ends = bytearray(), False
        self._window = protocol.WINDOW_BYTES
        """Bytes of its outputs that may be sent before node 0's client has taken those before."""
        self._watch_outputs()

    def _watch_outputs(self) -> None:
        for stream in OUTPUTS:
            if stream in self._streams:
                self._loop.add(self._streams[stream], lambda stream=stream: self._forward(stream))  # type: ignore[misc]

    def _forward(self, stream: int) -> None:
        """Send the output that is ready, up to one chunk, while the window allows."""
        self._send_output(stream)
        if self._window <= 0:
            for output in OUTPUTS:
                self._loop.remove(self._streams.get(output, -1))

    def _send_output(self, stream: int) -> bool:
        """Send the output that can be read now, up to one chunk; return whether there was any."""
        try:
            data = os.read(self._streams[stream], protocol.CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._close(stream)
            return False
        self._window -= len(data)
        self._send(protocol.StreamData(self.number, stream, protocol.encode_data(data)))
        return True

    def widen(self, size: int) -> None:
        """Read outputs again, because the client has taken some."""
        was_shut = self._window <= 0
        self._window += size
        if was_shut and self._window > 0:
            self._watch_outputs()

    def feed(self, data: bytes) -> None:
        """Pass data on to its standard input; no data ends it."""
        self._unread += data
        self._input_ends = self._input_ends or not data
        self._flush()

    def _flush(self) -> None:
        fd = self._streams.get(STDIN)
        if fd is None:
            return
        try:
            while self._unread:
                size = os.write(fd, self._unread[:READ_BYTES])
                del self._unread[:size]
                self._send(protocol.StreamTaken(self.number, STDIN, size))
        except BlockingIOError:
            if not self._loop.watches(fd):
                self._loop.add(fd, self._flush, writable=True)
            return
        except OSError:  # it reads no more
            self._send(protocol.StreamTaken(self.number, STDIN, len(self._unread)))
            self._unread.clear()
        self._loop.remove(fd)
        if self._input_ends:
            self._close(STDIN)

    def finish(self, code: int) -> None:
        """Send what is left of its output, and its exit status: it has ended."""
        for stream in OUTPUTS:
            for _ in range(PIPE_BYTES // protocol.CHUNK_BYTES):  # what it has left behind may write on
                if stream not in self._streams or not self._send_output(stream):
                    break
        self.close()
        self._send(protocol.ProgramEnded(self.number, code if code >= 0 else 128 - code))

    def _close(self, stream: int) -> None:
        fd = self._streams.pop(stream)
        self._loop.remove(fd)
        os.close(fd)

    def close(self) -> None:
        """Close its streams."""
        for stream in list(self._streams):
            self._close(stream)


def start_shell(line: str, environ: Mapping[str, str]) -> tuple[int, dict[int, int]]:
    """Run a command line with a pipe for each standard stream; return its PID, and our ends by number.

    Raises:
        OSError: No more processes or descriptors.
        ValueError: The command line has a null byte.
    """
    with contextlib.ExitStack() as opened:
        pipes = []
        for _ in range(3):
            pipes.append(os.pipe())
            for fd in pipes[-1]:
                opened.callback(os.close, fd)
        (theirs_in, stdin), (stdout, theirs_out), (stderr, theirs_err) = pipes
        theirs = (theirs_in, theirs_out, theirs_err)
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(theirs)]
        # Without the signals that the launcher blocks
        words = ("/bin/sh", "-c", line)
        pid = os.posix_spawn(words[0], words, environ, file_actions=actions, setpgroup=0, setsigmask=())
        opened.pop_all()
    for fd in theirs:
        os.close(fd)
    ours = {STDIN: stdin, 1: stdout, 2: stderr}
    for fd in ours.values():
        os.set_blocking(fd, False)
    return pid, ours


class Programs:
    """The programs that run here for node 0, for one connection to it."""

    def __init__(self, send: Callable[[object], None], loop: Loop, environ: Mapping[str, str]) -> None:
        """Begin without a program.

        Args:
            send: Sends node 0 a message.
            loop: Waits for the programs.
            environ: Their environment.
        """
        self._send, self._loop = send, loop
        self._running: dict[int, Program] = {}
        """Those that were not reaped yet, by PID."""
        self._programs: dict[int, Program] = {}
        """Those of them that have a client, by number."""
        # Without the mark by which the launcher's watchdog finds what it kills: ranks have their grace
        self._environ = {name: value for name, value in environ.items() if name != MARK}

    @property
    def pids(self) -> Container[int]:
        """Those that were not reaped yet."""
        return self._running

    def obey(self, message: object) -> None:
        """Handle a message from node 0 about programs.

        Raises:
            Garbled: The data for a program is invalid.
        """
        match message:
            case protocol.RunProgram() if message.number not in self._programs:
                self._run(message)
            case protocol.EndProgram() if message.number in self._programs:
                self._let_go(self._programs[message.number])
            case protocol.StreamData() if message.number in self._programs:
                self._programs[message.number].feed(protocol.decode_data(message.data))
            case protocol.StreamTaken() if message.number in self._programs:
                self._programs[message.number].widen(message.size)

    def _run(self, run: protocol.RunProgram) -> None:
        try:
            program = Program(run, self._environ, self._send, self._loop)
        except (OSError, ValueError) as error:
            what = f"cannot start it: {getattr(error, 'strerror', None) or error}"
            self._send(protocol.ProgramEnded(run.number, protocol.NOT_REACHED, what))
            return
        self._programs[run.number] = self._running[program.pid] = program

    def reap(self) -> None:
        """Report the programs that have ended; to be called after each SIGCHLD."""
        for pid, program in list(self._running.items()):
            code = collect(pid)
            if code is not None:
                del self._running[pid]
                if self._programs.get(program.number) is program:
                    del self._programs[program.number]
                    program.finish(code)

    def let_go(self) -> None:
        """Close the streams of all programs, because node 0 is gone."""
        for program in list(self._programs.values()):
            self._let_go(program)

    def _let_go(self, program: Program) -> None:
        """Close a program's streams: it notices, even if it is stopped."""
        del self._programs[program.number]
        program.close()
        send_signal(program.pid, signal.SIGCONT)
