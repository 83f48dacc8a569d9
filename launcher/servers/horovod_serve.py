"""Find where the rendezvous of a Horovod job has to listen, then become its server.

Run as a file, isolated (``python -I -S horovod_serve.py MASTER HOSTS COMMAND...``), on node 0 of several:
the server itself runs in the Python that has Horovod, and nothing of the launcher is imported there. Its
addresses become the last word of the command.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.machine.host import Host


def main(words: Sequence[str]) -> int:
    """Find the addresses, then become the command; return an exit status if that cannot be."""
    from launcher.core.errors import LauncherError
    from launcher.machine.host import Host
    from launcher.process.execute import execute

    master, hosts, *argv = words
    try:
        addresses = find_addresses(master, tuple(hosts.split(",")) if hosts else (), Host())
        execute([*argv, ",".join(addresses)], os.environ)
    except LauncherError as error:
        from launcher.core.errors import print_problems

        print_problems(error)
        return error.exit_status
    return 0


def find_addresses(master: str, hosts: tuple[str, ...], host: Host) -> tuple[str, ...]:
    """Return the IPv4 addresses of ours at which ranks ask for the rendezvous; never all of the node's.

    Ranks of this node ask where the master's name leads them, which may be a loopback address (127.0.1.1 on
    Debian); those of other nodes ask where the other nodes see this one.

    Args:
        master: What the job calls this node: a name or an address.
        hosts: The first nodes by rank, if they are listed.
        host: This node.

    Raises:
        NotReady: This node has no IPv4 address at which another one could find it.
    """
    from launcher.cluster.reach import find_address, is_reachable
    from launcher.core.errors import NotReady, Problem

    own = {found for found in host.own_addresses() if _is_ipv4(found)}
    here = {found for found in host.resolve(master) if found in own or found.startswith("127.")}
    if not any(map(is_reachable, here)):
        outside = {find_address(master, hosts, host)} & own or set(sorted(filter(is_reachable, own))[:1])
        if not outside:
            what = f"this node has no IPv4 address at which the ranks of other nodes could ask: {sorted(own)}"
            fix = "a network interface with an IPv4 address, or start the job with mpirun"
            raise NotReady(Problem("no-control-address", what, "Horovod's rendezvous server", fix))
        here |= outside
    return tuple(sorted(here))


def _is_ipv4(name: str) -> bool:
    return name.count(".") == 3 and name.replace(".", "").isdecimal()


if __name__ == "__main__":
    # With -I, this folder is not on the path, nor is the one that has the package
    sys.path[0:0] = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    sys.exit(main(sys.argv[1:]))
