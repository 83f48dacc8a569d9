"""Finds free ports of this node and reserves them, and tells whether a port is taken, and by whom.

A socket that is bound with SO_REUSEADDR but does not listen reserves its port. The kernel gives the port to
no program that asks for any free port, and to no outgoing connection. A program that also sets SO_REUSEADDR
can listen on it; PyTorch's store, gRPC (JAX, TensorFlow) and Python's servers do. We import `_socket` because
it is sufficient and costs a third of `socket`.

Of a long list of sockets we read only the first part. It has all listening sockets: the kernel lists them
first.

Source: Linux net/ipv4/inet_connection_sock.c (inet_csk_bind_conflict), inet_hashtables.c; socket(7); proc(5)
(/proc/net/tcp); Linux include/net/tcp_states.h.
"""

from __future__ import annotations

import _socket
import time
from errno import EADDRINUSE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.machine.host import Host

TRIES = 20
AHEAD = 200
"""Number of ports above a taken one that are tried."""
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
LISTEN, TIME_WAIT = "0A", "06"
HOLDER_S = 1.0
"""Seconds for the search for a holder: root sees all descriptors of all users."""


def hold_pair() -> tuple[int, tuple[_socket.socket, ...]]:
    """Return a free port whose successor is free too, and the sockets that reserve both until closed.

    Raises:
        OSError: No two consecutive ports were free in `TRIES` attempts.
    """
    for _ in range(TRIES):
        first = _bind(0, shared=False)
        port = int(first.getsockname()[1])
        try:
            held = (first, _bind(port + 1, shared=False))
        except (OSError, OverflowError):
            continue  # the next port is taken or does not exist
        for one in held:  # only now: before, two launchers could reserve the same port
            one.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        return port, held
    raise OSError(EADDRINUSE, "no two ports in a row are free")


def is_taken(port: int) -> bool:
    """Whether a port is taken at any address of this node; a port in TIME_WAIT is free."""
    try:
        probe = _bind(port, shared=True)
    except OSError as error:
        return error.errno == EADDRINUSE
    try:
        probe.listen(1)  # several sockets can be bound to a port as long as none listens
    except OSError as error:
        return error.errno == EADDRINUSE
    finally:
        probe.close()
    return False


def is_reserved(port: int) -> bool:
    """Whether only a server with SO_REUSEADDR gets a port: a socket is bound to it, and does not listen."""
    if is_taken(port):
        return False
    try:
        _bind(port, shared=False).close()
    except OSError as error:
        return error.errno == EADDRINUSE
    return False


def find_free_port(before: int) -> int | None:
    """Return the first free port above a port, with the one above it free too, for Horovod; None if none."""
    ahead = range(before + 1, min(before + AHEAD, (1 << 16) - 1))
    return next((port for port in ahead if not is_taken(port) and not is_taken(port + 1)), None)


def _bind(port: int, *, shared: bool) -> _socket.socket:
    """Return a socket that is bound to a port at all IPv6 and IPv4 addresses.

    Args:
        port: The port; 0 for any free one.
        shared: Whether other sockets with SO_REUSEADDR may be bound to it too.

    Raises:
        OSError: It is taken, or cannot be bound.
        OverflowError: It is not a port number.
    """
    try:
        found = _socket.socket(_socket.AF_INET6, _socket.SOCK_STREAM)
        found.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 0)
        anywhere = "::"
    except OSError:  # no IPv6 in this kernel
        found, anywhere = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM), ""
    try:
        found.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, shared)
        found.bind((anywhere, port))
    except (OSError, OverflowError):
        found.close()
        raise
    return found


def find_sockets(host: Host, port: int) -> list[tuple[str, str]] | None:
    """Return (state, inode) of the sockets on a local port, except TIME_WAIT; None if unreadable."""
    texts = [text for text in map(host.read_text, TABLES) if text is not None]
    if not texts:
        return None
    suffix = f":{port:04X}"
    rows = [line.split() for text in texts for line in text.splitlines()]
    return [
        (row[3], row[9])
        for row in rows
        if len(row) > 9 and row[1].upper().endswith(suffix) and row[3] != TIME_WAIT
    ]


def find_holder(host: Host, inodes: frozenset[str]) -> tuple[str, str] | None:
    """Return (PID, name) of a process that has one of these sockets open; None if we see none in time."""
    wanted, until = {f"socket:[{inode}]" for inode in inodes}, time.monotonic() + HOLDER_S
    for pid in filter(str.isdecimal, host.list_folder("/proc")):
        folder = f"/proc/{pid}/fd"
        for fd in host.list_folder(folder):
            if host.read_link(f"{folder}/{fd}") in wanted:
                return pid, (host.read_text(f"/proc/{pid}/comm") or "").strip() or "unknown"
            if time.monotonic() > until:
                return None
    return None


def describe_holder(host: Host, port: int) -> str:
    """Return the process that listens on a port, as ``process 12 (sshd)``; empty if we cannot see it."""
    listening = [inode for state, inode in find_sockets(host, port) or () if state == LISTEN]
    holder = find_holder(host, frozenset(listening))
    return f"process {holder[0]} ({holder[1]})" if holder else ""
