# Hydra passes ssh's -x, with which Python skips this line.
"""``ssh`` for programs that call it: runs a command on a node of the job, through node 0's launcher.

Runs as ``python -I -S rsh.py SOCKET [OPTIONS OF SSH] HOST WORDS``, as mpirun's remote shell, and under the
name ``ssh`` for DeepSpeed's autotuner and pdsh. It passes on its standard streams, and exits with the status
of the command, or with 255 if the node cannot be reached. A command for this node is run here.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import getopt
import select
import socket
from contextlib import suppress

from launcher.channel.lines import Lines
from launcher.channel.lines import pack as pack_line
from launcher.core.redact import quote
from launcher.core.wire import Garbled, pack, unpack
from launcher.remote import protocol

FLAGS = "46AaCfGgKkMNnqsTtVvXxYy12B:b:c:D:E:e:F:I:i:J:L:l:m:O:o:P:p:Q:R:S:W:w:"
"""Options of ssh, see ssh(1): they are ignored. 1 and 2 once chose the protocol; pdsh still passes -2."""
WHO = "launcher rsh: "


def run_there(path: str, host: str, line: str, *, reads: bool) -> int | None:
    """Run a command line on a host; return its status, or None if it is for this node.

    Args:
        path: Path of the launcher's socket.
        host: Name or address of the node.
        line: The command line, for a shell.
        reads: Whether the command gets our standard input.

    Raises:
        OSError: The launcher is gone.
        Garbled: What answers is not the launcher.
    """
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(path)

        def tell(message: object) -> None:
            """Send a message; if the command has ended, we learn it by what we receive."""
            with suppress(BrokenPipeError, ConnectionResetError):
                connected.sendall(pack_line(pack(message)))

        tell(protocol.AskProgram(host, line))
        framing = Lines()
        poll = select.poll()
        poll.register(connected, select.POLLIN)
        window = protocol.WINDOW_BYTES
        while True:
            for fd, _ in poll.poll():
                if fd == 0:
                    data = os.read(0, protocol.CHUNK_BYTES)
                    tell(protocol.StreamData(0, 0, protocol.encode_data(data)))
                    window -= len(data)
                    if not data or window <= 0:
                        poll.unregister(0)
                        reads = bool(data)
                    continue
                received = connected.recv(protocol.CHUNK_BYTES)
                if not received:
                    raise ConnectionResetError(None, "the launcher of node 0 has ended")
                for packed in framing.feed(received):
                    match message := unpack(packed, protocol.TO_CLIENT):
                        case protocol.RunHere():
                            return None
                        case protocol.RunThere() if reads:
                            poll.register(0, select.POLLIN)
                        case protocol.RunThere():
                            tell(protocol.StreamData(0, 0))
                        case protocol.StreamData():
                            data = protocol.decode_data(message.data)
                            write_all(2 if message.stream == 2 else 1, data)
                            tell(protocol.StreamTaken(0, 1, len(data)))
                        case protocol.StreamTaken():
                            window += message.size
                            if reads and window - message.size <= 0 < window:
                                poll.register(0, select.POLLIN)
                        case protocol.ProgramEnded():
                            if message.why:
                                print(f"{WHO}{quote(message.why, 400)}", file=sys.stderr)
                            return message.status


def write_all(fd: int, data: bytes) -> None:
    """Write all data."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def main(argv: list[str]) -> int:
    """Run a command as ssh does; return its status."""
    for fd in range(3):  # a closed one would become the number of a socket
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    try:
        found, rest = getopt.getopt(argv[1:], FLAGS)
        if len(rest) < 2:
            raise getopt.GetoptError("usage: ssh HOST WORDS")
    except getopt.GetoptError as error:
        print(f"{WHO}{error}", file=sys.stderr)
        return protocol.NOT_REACHED
    host, line = rest[0].rpartition("@")[2], " ".join(rest[1:])
    try:
        status = run_there(argv[0], host, line, reads=("-n", "") not in found)
    except (OSError, Garbled) as error:
        print(f"{WHO}{getattr(error, 'strerror', None) or error}", file=sys.stderr)
        return protocol.NOT_REACHED
    if status is None:
        os.execv("/bin/sh", ["/bin/sh", "-c", line])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
