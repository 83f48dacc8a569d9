"""Ports of this machine: one that is free, and held so, and whether another is taken.

A socket that is bound and does not listen holds its port, if it says SO_REUSEADDR: the kernel gives that port
to no program that asks for any, and to no outgoing connection; a program that says SO_REUSEADDR, too, can
listen there. PyTorch's store, gRPC (JAX, TensorFlow) and Python's servers do. `_socket` is a third of what
`socket` costs, and all that is needed.

Source: Linux net/ipv4/inet_connection_sock.c (inet_csk_bind_conflict), inet_hashtables.c; socket(7).
"""

from __future__ import annotations

import _socket
from errno import EADDRINUSE

TRIES = 20


def hold_pair() -> tuple[int, tuple[_socket.socket, ...]]:
    """Return a port that is free, with the next one, and what holds both until it is closed.

    Raises:
        OSError: No port is free.
    """
    for _ in range(TRIES):
        first = _bind(0, shared=False)
        port = int(first.getsockname()[1])
        try:
            held = (first, _bind(port + 1, shared=False))
        except (OSError, OverflowError):
            continue  # the next one is taken, or there is none
        for one in held:  # not before: two launchers could hold the same
            one.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        return port, held
    raise OSError(EADDRINUSE, "no two ports in a row are free")


def is_taken(port: int) -> bool:
    """Whether a port is taken, at any of this node's addresses; one in TIME_WAIT is free."""
    try:
        probe = _bind(port, shared=True)
    except OSError as error:
        return error.errno == EADDRINUSE
    try:
        probe.listen(1)  # two may be bound to a port, while none listens
    except OSError as error:
        return error.errno == EADDRINUSE
    finally:
        probe.close()
    return False


def _bind(port: int, *, shared: bool) -> _socket.socket:
    """Return a socket that has a port at all addresses, IPv6's and IPv4's; 0 is one that is free.

    Args:
        port: Which.
        shared: Whether others may be bound to it, too, that say so.

    Raises:
        OSError: It is taken.
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
