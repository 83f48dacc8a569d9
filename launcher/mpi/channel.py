"""The connection of a rank's wrapper to the launcher of its node."""

from __future__ import annotations

import os
import select
import socket
import struct
import time

from launcher.channel import lines as wire
from launcher.core.errors import LauncherError, NotReady, Problem
from launcher.core.redact import quote
from launcher.core.signal import signal
from launcher.core.wire import Garbled, pack, unpack
from launcher.mpi.folder import find_socket
from launcher.mpi.placeholder import ENDING
from launcher.mpi.protocol import TO_RANK, Attached, Briefing, RankEnded, Release, Started
from launcher.process.kernel import open_signal_file, read_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

ANSWER_TIMEOUT_S = 30.0


class Channel:
    """The connection to the launcher of this node.

    Attributes:
        job: Name of the job.
        placeholder: Descriptor that reaches end of file when the placeholder ends.
        released: Whether we may exit, because all ranks have ended or the head or the launcher is gone.
        is_lost: Whether the launcher is gone.
        path: Path of its socket.
    """

    def __init__(self, job: str, placeholder: int) -> None:
        """Connect to the launcher.

        Args:
            job: Name of the job.
            placeholder: Descriptor from `launcher.mpi.placeholder.leave_placeholder`.

        Raises:
            NotReady: The job has no launcher on this node, where mpirun was not to start a rank.
        """
        self.job, self.placeholder = job, placeholder
        self.released = self.is_lost = False
        self._lines = wire.Lines(wire.WELCOME_LIMIT_BYTES)
        self.path = path = find_socket(job) or ""
        self.socket = socket.socket(socket.AF_UNIX)
        limit = struct.pack("ll", int(ANSWER_TIMEOUT_S), 0)  # also limits connect, unix(7)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        try:
            if not path:
                raise FileNotFoundError
            self.socket.connect(path)
        except OSError as error:
            raise NotReady(_no_session(job)) from error

    def attach(self) -> Briefing:
        """Report to the launcher, and return its answer: the facts about this node and the job.

        Raises:
            NotReady: There was no answer within `ANSWER_TIMEOUT_S`, or an invalid one.
            SystemExit: We were told to end.
        """
        self.send(Attached())
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        try:
            while self._wait(deadline) and (data := self.socket.recv(wire.READ_BYTES)):
                for message in self._read(data):
                    if isinstance(message, Briefing):
                        return message
        except (OSError, Garbled):
            pass
        raise NotReady(_no_answer())

    def _read(self, data: bytes) -> Iterator[object]:
        return (unpack(packed, TO_RANK) for packed in self._lines.feed(data))

    def send(self, message: object) -> None:
        """Send the launcher a message; if that fails it is gone, and we need not wait for it."""
        try:
            self.socket.sendall(wire.pack(pack(message)))
        except OSError:
            self.released = self.is_lost = True

    def _wait(self, deadline: float) -> bool:
        """Wait until the launcher has sent something or is gone; return False at the deadline.

        Raises:
            SystemExit: We were told to end.
        """
        signals = open_signal_file(ENDING)  # these signals are blocked
        try:
            poll = select.poll()
            for fd in (signals, self.placeholder, self.socket.fileno()):
                poll.register(fd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000)}
            if ready & {signals, self.placeholder}:
                told = [number for number, _, _ in read_signals(signals)]
                raise SystemExit(128 + next(iter(told), signal.SIGTERM))
            return bool(ready)
        finally:
            os.close(signals)

    def refuse(self, error: LauncherError, place: Started, wait_s: float) -> None:
        """Report that our process cannot be started, and wait: the head may know the cause better.

        Return when we are released, when the launcher is gone, or after ``wait_s``.

        Raises:
            SystemExit: We were told to end.
        """
        status = error.exit_status
        self.send(RankEnded(place.rank, place.local_rank, status, status, why=str(error)))
        deadline = time.monotonic() + wait_s
        while not self.released and self._wait(deadline) and self.hear():
            pass

    def hear(self) -> bool:
        """Read the launcher's messages; return False if it is gone or sends an invalid one."""
        try:
            data = self.socket.recv(wire.READ_BYTES)
            for message in self._read(data):
                self.released = self.released or isinstance(message, Release)
        except (OSError, Garbled):
            data = b""
        self.is_lost = self.is_lost or not data
        return bool(data)


def _no_session(job: str) -> Problem:
    return Problem(
        "no-session",
        f"mpirun has started a rank on {os.uname().nodename}, where job {quote(job, 64)} has no launcher",
        "this node",
        "mpirun did not follow the hostfile, or the nodes share one /dev/shm or /tmp",
    )


def _no_answer() -> Problem:
    return Problem(
        "no-session",
        f"the launcher of this job on {os.uname().nodename} does not answer",
        "this node",
        "see the head's messages about this node",
    )
