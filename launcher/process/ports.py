"""Ports that processes of this node will listen on: one that is taken is said before the start."""

from __future__ import annotations

import errno
import socket

from launcher.core.errors import NotReady, Problem
from launcher.machine.sockets import describe_holder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.machine.host import Host


def check_ports(ports: Sequence[tuple[int, str]], host: Host) -> None:
    """Hold that nobody listens on any of them.

    Args:
        ports: Each with the name of the process that will.
        host: Where the holder is looked for.

    Raises:
        NotReady: Some are taken.
    """
    problems = [
        port_taken(port, "this node", name, describe_holder(host, port), "--tf-port")
        for port, name in ports
        if is_taken(port)
    ]
    if problems:
        raise NotReady(*problems)


def is_taken(port: int) -> bool:
    """Whether somebody has a port, at any of this node's addresses."""
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # no IPv6 in this kernel
        with probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one in TIME_WAIT is in nobody's way
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind((address, port))
                probe.listen(1)  # two may be bound to a port, if nobody listens yet
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return True
    return False


def port_taken(port: int, node: str, user: str, holder: str, flag: str) -> Problem:
    """Return that somebody else has a port of this job.

    Args:
        port: Which.
        node: Of which node.
        user: For what of this job it is.
        holder: Who listens there, as far as that is known.
        flag: What gives the job another one.
    """
    return Problem(
        "port-taken",
        f"port {port} of {node} is for {user}, and {holder or 'somebody'} listens there",
        node,
        f"end that, or give all nodes other ports: {flag} N",
    )
