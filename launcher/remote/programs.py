"""Runs programs on this node for clients on node 0.

For mpirun and DeepSpeed's autotuner this is what sshd is for ssh, for one job only. If the connection to
node 0 is lost, the standard streams of the programs are closed, as sshd does it.
"""

from __future__ import annotations

import os
import signal

from launcher.channel.connection import READ_BYTES
from launcher.process.loop import Every
from launcher.process.watchdog import MARK
from launcher.remote.pipes import Pipes
from launcher.remote.protocol import (
    CHUNK_BYTES,
    NOT_REACHED,
    WINDOW_BYTES,
    EndProgram,
    ProgramEnded,
    RunProgram,
    StreamData,
    StreamTaken,
    decode_data,
    encode_data,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.process.loop import Loop

PIPE_BYTES = 1 << 20
"""The most that a pipe holds, see pipe(7): what a program has left there at its end."""
LOOK_S = 0.1
"""Seconds between looks at programs whose end the kernel does not report."""


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
        """Send the output that is ready, up to one chunk, while the window allows."""
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
