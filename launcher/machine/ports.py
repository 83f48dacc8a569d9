"""Finds free ports of this node and reserves them, and tells whether a port is taken.

A socket that is bound with SO_REUSEADDR but does not listen reserves its port. The kernel gives the port to
no program that asks for any free port, and to no outgoing connection. A program that also sets SO_REUSEADDR
can listen on it; PyTorch's store, gRPC (JAX, TensorFlow) and Python's servers do. We import `_socket` because
it is sufficient and costs a third of `socket`.

Source: Linux net/ipv4/inet_connection_sock.c (inet_csk_bind_conflict), inet_hashtables.c; socket(7).
"""

from __future__ import annotations

import _socket
from errno import EADDRINUSE

TRIES = 20
AHEAD = 200
"""Number of ports above a taken one that are tried."""


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
