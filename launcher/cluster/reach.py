"""Finds how nodes reach each other: the address of this one, and why missing ones do not connect.

Once the job runs, a helper process resolves names and probes hosts (`launcher.process.helper`).
"""

from __future__ import annotations

import select
import socket
import time
from errno import ECONNREFUSED, EINPROGRESS
from os import strerror

from launcher.core.environ import REHEARSED, is_loopback
from launcher.core.errors import make_error
from launcher.core.redact import printable
from launcher.machine.network import address_towards
from launcher.machine.own_names import address_of
from launcher.process.refused import explain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from launcher.machine.host import Host

ANYWHERE = ("192.0.2.1", "2001:db8::1")
"""Documentation addresses (RFC 5737, RFC 3849), used only to find the interface of the default route."""
ANY = {"0": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - no socket listens there
"""Names of all addresses: a connection to them reaches the loopback."""
HOSTS_ASKED = 3
"""Number of listed nodes whose route is looked up; resolving more names would take time."""
WAIT_S = 0.5
RESOLVE_S = 1.0
"""Seconds after which no more names are resolved: each takes long if the resolver is down."""
UNKNOWN_NAME = "its name does not resolve: its container may not exist yet"
ANSWERS = (
    "its name resolves, its host answers, its launcher has not connected: its container may still be "
    "starting, or it has --no-peers, or something blocks it from the control port of this node"
)
SILENT = "its name resolves, its host does not answer: it may still be starting, or a firewall drops packets"


def find_address(master: str, hosts: tuple[str, ...], host: Host) -> str:
    """Return our address for the other nodes; never the wildcard address.

    It is the loopback in two cases only. The user has named it, for a job whose nodes all run on this
    machine. Or the job's name for this node means the loopback here and there is no other address; then
    launchers on this machine find us.

    Args:
        master: The job's name or address for this node.
        hosts: The nodes by rank, if they are listed.
        host: This node.

    Raises:
        NotReady: This node has no address at which another one could find it.
        Unavailable: The kernel refuses the calls that list addresses.
    """
    if master.startswith(REHEARSED):
        return master  # nodes that are addresses of one machine, which no interface lists
    if master in ANY:
        return ANY[master]
    own = host.own_addresses() - {host.hostname()}
    address = address_of(host, master)
    if is_loopback(master):
        return address
    if address in own and not is_loopback(address):
        return address
    # The name means 127.0.1.1 here (Debian), or a service in front of us (Kubernetes).
    for other in (*[name for name in hosts[1:] if name][:HOSTS_ASKED], *ANYWHERE):
        towards = address_towards(host, other)  # None for a name that does not resolve yet
        if towards in own and is_reachable(towards):
            return towards
    outside = sorted(filter(is_reachable, own), key=lambda item: (":" in item, item))
    if outside:
        return outside[0]
    if address in own:
        return address
    if not own and (refused := explain(OSError())) is not None:
        raise refused  # the kernel has not even told us the loopback
    raise make_error("no-control-address", master=printable(master), own=", ".join(sorted(own)))


def find_reasons(hosts: Mapping[int, str], port: int) -> Iterator[str]:
    """Probe the hosts of missing nodes, and yield a line for each, for `read_reasons`.

    The port need not be open, and nothing listens there: a host that is up refuses the connection.

    Args:
        hosts: Names or addresses, by rank.
        port: Port to probe.
    """
    deadline = time.monotonic() + RESOLVE_S
    waiting: dict[int, tuple[int, socket.socket]] = {}
    poll = select.poll()
    for rank, host in hosts.items():
        if time.monotonic() > deadline:
            break
        addresses = resolve(host)
        if not addresses:
            yield f"{rank} {UNKNOWN_NAME}"
            continue
        family = socket.AF_INET6 if ":" in addresses[0] else socket.AF_INET
        try:
            probe = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as problem:  # no IPv6 in this kernel, or no descriptor left
            yield f"{rank} {_explain(problem.errno or 0)}"
            continue
        error = probe.connect_ex((addresses[0], port))
        if error != EINPROGRESS:
            yield f"{rank} {_explain(error)}"
            probe.close()
            continue
        waiting[probe.fileno()] = (rank, probe)
        poll.register(probe, select.POLLOUT)
    yield from _collect(poll, waiting)


def read_reasons(lines: Sequence[str]) -> dict[int, str]:
    """Return the results of `find_reasons`, by rank."""
    pairs = (line.partition(" ") for line in lines)
    return {int(rank): text for rank, _, text in pairs}


def _collect(poll: select.poll, waiting: dict[int, tuple[int, socket.socket]]) -> Iterator[str]:
    until = time.monotonic() + WAIT_S
    while waiting and (left_s := until - time.monotonic()) > 0:
        for fd, _ in poll.poll(left_s * 1000):
            poll.unregister(fd)
            rank, probe = waiting.pop(fd)
            yield f"{rank} {_explain(probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))}"
            probe.close()
    for rank, probe in waiting.values():
        yield f"{rank} {SILENT}"
        probe.close()


def _explain(error: int) -> str:
    return ANSWERS if error in (0, ECONNREFUSED) else f"its name resolves, but: {strerror(error)}"


def is_reachable(address: str) -> bool:
    """Whether an address can mean this node on other nodes: neither loopback nor link-local."""
    return not is_loopback(address) and not address.startswith("fe80:")


def read_address(text: str) -> tuple[str, ...]:
    """Return the address if the text is one; none for a name, which must be resolved."""
    return resolve(text, socket.AI_NUMERICHOST)


def resolve(name: str, flags: int = 0) -> tuple[str, ...]:
    """Return the addresses of a name in the order to try them; none if it does not resolve."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(item[4][0]) for item in found))


def knock(name: str, port: int) -> bool | None:
    """Whether a process listens at a port of a host; None if the host does not answer."""
    for address in resolve(name)[:1]:
        try:
            socket.create_connection((address, port), WAIT_S).close()
        except ConnectionRefusedError:
            return False
        except OSError:
            return None
        return True
    return None
