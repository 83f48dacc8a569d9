"""Ports that processes of this node will listen on: one that is taken is said before the start."""

from __future__ import annotations

import errno
import socket

from launcher.checks.port import describe_holder
from launcher.errors import NotReady, Problem
from launcher.host import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def check_ports(ports: Sequence[tuple[int, str]], host: Host) -> None:
    """Hold that nobody listens on any of them.

    Args:
        ports: Each with the name of the process that will.
        host: Where the holder is looked for.

    Raises:
        NotReady: Some are taken.
    """
    problems = [_problem(port, name, host) for port, name in ports if _is_taken(port)]
    if problems:
        raise NotReady(*problems)


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one in TIME_WAIT is in nobody's way
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _problem(port: int, name: str, host: Host) -> Problem:
    holder = describe_holder(host, port) or "somebody"
    return Problem(
        "port-taken",
        f"port {port} of this node is for {name}, and {holder} listens there",
        "this node",
        "end that, or give all nodes other ports: --tf-port N",
    )
