"""Finds the addresses at which the rendezvous of a Horovod job must listen, then becomes its server.

It runs as a file, isolated (``python -I -S horovod_serve.py MASTER HOSTS COMMAND...``), on node 0 of several.
COMMAND is the server, which runs in the Python that has Horovod and imports nothing of the launcher. The
addresses become its last word.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.machine.host import Host


def main(words: Sequence[str]) -> int:
    """Find the addresses, then become the command; return an exit status if that fails."""
    from launcher.machine.host import Host
    from launcher.servers.horovod_wait import become

    master, hosts, *argv = words
    listed = tuple(hosts.split(",")) if hosts else ()
    return become(lambda: [*argv, ",".join(find_addresses(master, listed, Host()))])


def find_addresses(master: str, hosts: tuple[str, ...], host: Host) -> tuple[str, ...]:
    """Return our IPv4 addresses at which ranks reach the rendezvous; the other ones are left out.

    Ranks of this node use the address of the master's name, which may be a loopback address (127.0.1.1 on
    Debian). Ranks of other nodes use the address by which other nodes reach this one.

    Args:
        master: This node's name or address in the job.
        hosts: The first nodes by rank, if they are listed.
        host: This node.

    Raises:
        NotReady: This node has no IPv4 address at which other nodes could reach it.
    """
    from launcher.cluster.reach import find_address, is_reachable
    from launcher.core.errors import NotReady, Problem

    own = {found for found in host.own_addresses() if _is_ipv4(found)}
    here = {found for found in host.resolve(master) if found in own or found.startswith("127.")}
    if not any(map(is_reachable, here)):
        outside = {find_address(master, hosts, host)} & own or set(sorted(filter(is_reachable, own))[:1])
        if not outside:
            what = f"this node has no IPv4 address at which ranks of other nodes can reach it: {sorted(own)}"
            fix = "a network interface with an IPv4 address, or start the job with mpirun"
            raise NotReady(Problem("no-control-address", what, "Horovod's rendezvous server", fix))
        here |= outside
    return tuple(sorted(here))


def _is_ipv4(name: str) -> bool:
    return name.count(".") == 3 and name.replace(".", "").isdecimal()


if __name__ == "__main__":
    # With -I, neither this directory nor that of the package is on the path
    sys.path[0:0] = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    sys.exit(main(sys.argv[1:]))
