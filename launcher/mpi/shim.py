"""A rank as its node's session knows it: the shim that mpirun has started, at the end of a connection."""

from __future__ import annotations

from launcher.channel import lines as wire
from launcher.mpi.daemons import find_daemon

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket


class Rank:
    """One rank's shim, at the other end of a connection.

    Attributes:
        daemon: What of MPI has started it here; None if that is mpirun itself.
        waits: It has said hello, and is to be welcomed.
        started: Signals for the rank can be sent to it.
        unsent: What it has not taken yet: one that is stopped must not stop us.
    """

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection, self.pid = connection, pid
        self.daemon = find_daemon(pid)
        self.lines = wire.Lines()
        self.waits = self.started = self.ended = False
        self.unsent = b""

    def say(self, message: dict[str, object]) -> None:
        """Tell the shim something; one that does not listen any more misses nothing."""
        self.unsent += wire.pack(message)
        self.flush()

    def flush(self) -> None:
        """Send as much as it takes."""
        try:
            while self.unsent:
                self.unsent = self.unsent[self.connection.send(self.unsent[: wire.READ_BYTES]) :]
        except BlockingIOError:
            pass
        except OSError:
            self.unsent = b""
