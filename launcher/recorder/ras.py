"""Asks NCCL's RAS of this node for the state of the job's communicators, without ever blocking.

RAS is a thread in each process that uses NCCL. One of a node's processes answers at NCCL_RAS_ADDR, for the
whole job. To be asked has ended jobs: so it is asked only on request, and only where the version is known:

| NCCL | what happens |
|---|---|
| before 2.24 | there is no RAS |
| 2.26 | a question while a communicator is made crashes the process (NVIDIA/nccl#1669, #1718) |
| 2.24 to 2.29.1 | memory is corrupted if ranks do not answer, as in a hang (NVIDIA/nccl#1762) |
| 2.27.7 | RAS may crash without any question (NVIDIA/nccl#1996); NCCL_RAS_ENABLE=0 switches it off |
| 2.29.7 | a question while communicators are made may crash the process (NVIDIA/nccl#2346, open) |

Source: NCCL "RAS" of the user guide; src/ras/client.cc and client_support.cc (the text protocol).
"""

from __future__ import annotations

import os
import re
import socket
import sys
from errno import EINPROGRESS

from launcher.core.redact import printable, redact

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ADDRESS, ENABLE = "NCCL_RAS_ADDR", "NCCL_RAS_ENABLE"
PORT = 28028
ESTABLISHED = "01"
TABLES = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}
FIRST, SAFE = (2, 24, 0), (2, 29, 2)
"""The first version with RAS, and the first that survives a question about ranks that do not answer."""
UNSURE = {(2, 29, 7): "NCCL 2.29.7 may crash if it is asked while communicators are made (NVIDIA/nccl#2346)"}
ANSWER_S = 10.0
"""Seconds for the whole answer; NCCL itself waits 5 s for other nodes."""
LIMIT_BYTES = 256 << 10
LINES_MAX = 12
"""Lines of the answer that a report shows."""
GREETING, QUESTION = b"CLIENT PROTOCOL 2\n", b"VERBOSE STATUS\n"


def refuse(version: str, environ: Mapping[str, str]) -> str:
    """Return why RAS must not be asked, in a sentence; empty if it may be.

    Args:
        version: NCCL's version, ``"2.29.3"``; empty if unknown.
        environ: The environment of the ranks.
    """
    if environ.get(ENABLE) == "0":
        return f"NCCL's RAS is not asked: {ENABLE}=0"
    numbers = parse_version(version)
    if numbers is None:
        return "NCCL's RAS is not asked: NCCL's version is unknown, and versions before 2.29.2 crash if asked"
    if numbers < FIRST:
        return f"NCCL's RAS is not asked: NCCL {version} has none; it came with 2.24"
    if numbers < SAFE:
        return (
            f"NCCL's RAS is not asked: NCCL {version} may crash if it is asked in a hang "
            "(NVIDIA/nccl#1762); 2.29.2 and later do not"
        )
    return ""


def warn(version: str) -> str:
    """Return what is known against asking this version, which is asked all the same; empty for nothing."""
    return UNSURE.get(parse_version(version) or (0, 0, 0), "")


def parse_version(version: str) -> tuple[int, int, int] | None:
    """Return a version as numbers; None if it is none."""
    found = re.match(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?", version)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def find_nccl(python: str, environ: Mapping[str, str]) -> str:
    """Return the version of the NCCL that a Python's torch loads; empty if unknown."""
    from launcher.machine.host import Host
    from launcher.machine.packages import NCCLS, find_packages

    wheel = next((one for one in find_packages(python, environ) or () if one.name in NCCLS), None)
    if wheel is not None:
        return wheel.version
    return next((library.version for library in Host().libraries("libnccl.so.2", environ)), "")


def parse_address(text: str) -> list[tuple[int, str, int]]:
    """Return the sockets (family, address, port) to try; none for a name, whose look-up could block."""
    host, colon, port_text = text.rpartition(":")
    host = host.strip("[]")
    if not colon or not port_text.isdecimal() or not 0 < int(port_text) < 1 << 16:
        return []
    port = int(port_text)
    if host in ("", "localhost"):
        return [(socket.AF_INET6, "::1", port), (socket.AF_INET, "127.0.0.1", port)]
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return [(family, host, port)]
    return []


class RasQuestion:
    """One question to RAS.

    Attributes:
        complete: Whether the answer is there, or none will come.
        problem: Why there is no answer; empty if there is one.
    """

    def __init__(self, environ: Mapping[str, str], limit_s: float = ANSWER_S) -> None:
        """Prepare to ask; ``environ`` is the environment of the ranks."""
        address = environ.get(ADDRESS) or f"localhost:{PORT}"
        self._left = parse_address(address)
        self._limit_s, self._deadline = limit_s, 0.0
        self._socket: socket.socket | None = None
        self._to_send = b""
        self._received = b""
        self._greeted = False
        self.complete = False
        self.problem = (
            "" if self._left else f"{ADDRESS}={printable(redact(address))[:100]}: no numeric address"
        )

    @property
    def text(self) -> str:
        """The answer, printable; empty without one."""
        if not self._greeted:
            return ""
        text = self._received.decode("utf-8", "replace")
        return "\n".join(printable(line) for line in redact(text).split("\n")).strip()

    def go_on(self, now: float) -> None:
        """Connect, send and receive what is possible."""
        if self.complete:
            return
        if not self._deadline:
            self._deadline = now + self._limit_s
        try:
            while self._socket is None and self._left:
                self._connect()
            if self._socket is None:
                self._end(self.problem or "NCCL does not listen")
                return
            self._exchange(self._socket)
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(error.strerror or "no connection")
        if not self.complete and now > self._deadline:
            self._end(f"NCCL did not answer within {self._limit_s:g} s")

    def close(self) -> None:
        """Stop asking."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.complete = True

    def _connect(self) -> None:
        family, host, port = self._left.pop(0)
        try:
            self._socket = socket.socket(
                family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            )
            status = self._socket.connect_ex((host, port))
        except OSError as error:  # no such family here
            self._fail(error.strerror or "no connection")
            return
        if status not in (0, EINPROGRESS):
            self._fail(os.strerror(status))
            return
        self._to_send = GREETING

    def _exchange(self, connection: socket.socket) -> None:
        while self._to_send:
            self._to_send = self._to_send[connection.send(self._to_send) :]
        data = connection.recv(1 << 16)
        self._received += data
        if not self._greeted and b"\n" in self._received:
            hello, _, self._received = self._received.partition(b"\n")
            if not is_of_our_user(connection):
                self._end("what listens there is not a process of your user on this node")
                return
            if not hello.upper().startswith(b"SERVER PROTOCOL "):
                self._end("what listens there is not NCCL's RAS")
                return
            self._greeted, self._to_send = True, QUESTION
            self._exchange(connection)
        elif not data:
            self._end("" if self._greeted else "it closed the connection")
        elif len(self._received) >= LIMIT_BYTES:
            self._received = self._received[:LIMIT_BYTES]
            self._end("")

    def _fail(self, why: str) -> None:
        """Give up this address, and try the next one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.problem = why
        if not self._left:
            self._end(why)

    def _end(self, problem: str) -> None:
        self.problem = problem
        self.close()


def is_of_our_user(connection: socket.socket) -> bool:
    """Whether a process of our user on this node has accepted a connection; the kernel knows.

    To be called once the other side has sent something: before it accepts, its socket belongs to root, as
    does one that it has closed. So only an established connection counts.

    Source: proc(5) (/proc/net/tcp); Linux include/net/tcp_states.h.
    """
    try:
        ours, theirs = (write_address(end) for end in (connection.getsockname(), connection.getpeername()))
        expected, user = [theirs, ours, ESTABLISHED], str(os.geteuid())
        with open(TABLES[connection.family], encoding="ascii") as file:
            return any(row[1:4] == expected and row[7] == user for row in map(str.split, file))
    except OSError:
        return False


def write_address(end: tuple[str, int]) -> str:
    """Return an address and a port as in /proc/net/tcp, with 32-bit words in the machine's byte order."""
    data = socket.inet_pton(socket.AF_INET6 if ":" in end[0] else socket.AF_INET, end[0])
    words = [int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data), 4)]
    return f"{''.join(f'{word:08X}' for word in words)}:{end[1]:04X}"


def shorten_status(text: str) -> list[str]:
    """Return the lines of an answer that a report shows: its errors and warnings, else its last lines."""
    lines = [line for line in text.split("\n") if line.strip("= ")]
    begin = next((place for place, line in enumerate(lines) if line in ("Errors", "Warnings")), -LINES_MAX)
    return lines[begin:][:LINES_MAX]
