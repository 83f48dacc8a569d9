"""Reads the network interfaces of this node, and finds the one that leads to the other nodes of the job.

The kernel itself reports addresses (`Host.networks`), /sys/class/net has the rest. A sysfs that was
mounted for another network namespace lists the interfaces of that one; properties that it lacks are None.

Source: Linux Documentation/ABI/testing/sysfs-class-net (carrier, flags, speed, type, master),
include/uapi/linux/if.h (flags), include/uapi/linux/if_arp.h (types), include/uapi/linux/route.h;
net/ipv4/fib_trie.c (fib_route_seq_show), net/ipv6/route.c (ipv6_route_native_seq_show).
"""

from __future__ import annotations

import ipaddress

from launcher.core.errors import attempt
from launcher.core.frozen import frozen
from launcher.core.ranks import natural_order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from launcher.machine.host import Host

NET = "/sys/class/net"
ROUTES, ROUTES_6 = "/proc/net/route", "/proc/net/ipv6_route"
RTF_UP, RTF_REJECT = 0x1, 0x200
LINK_LOCAL = ("fe80", "ff00")
DEFAULT = "default"
IFF_UP = 0x1
IFF_LOOPBACK = 0x8
SPEED_LIMIT_MBPS = 1 << 31
"""Larger speeds count as unknown: some kernels write their -1 for "unknown" as 4294967295."""
KINDS_BY_ARP_TYPE = {1: "ethernet", 32: "infiniband", 772: "loopback"}
DEVTYPES = ("bridge", "bond", "vlan", "wlan")
"""Kinds that the kernel names in an interface's uevent file."""
OF_THIS_MACHINE_ALONE = ("docker", "virbr", "podman", "cni", "lxcbr", "lxdbr")
"""Name prefixes of bridges that container engines and hypervisors create inside one node."""


@frozen
class Interface:
    """A network interface.

    Attributes:
        name: Name as in ``ip addr``.
        addresses: IPv4 and IPv6 addresses without zones, each with the prefix length of its network, None if
            that is unknown.
        is_up: Whether it is enabled; None if /sys does not list it.
        has_carrier: Whether the cable (or the other end of a pair) is connected; None if disabled or unknown.
        speed_mbps: Speed in Mb/s; None if the driver reports none. A virtual pair (veth) reports 10,000.
        is_loopback: Whether it only leads back to this node.
        kind: ``ethernet`` (hardware, or a hypervisor's), ``infiniband`` (IP over InfiniBand), ``loopback``,
            ``bridge``, ``bond``, ``vlan``, ``wlan``, ``virtual`` (a pair into a container, a tunnel,
            a dummy), ``other``; None if /sys does not list it.
        master: The bridge or bond that it is a member of. For the fast path of accelerated networking,
            the interface that has the address.
    """

    name: str
    addresses: tuple[tuple[str, int | None], ...] = ()
    is_up: bool | None = None
    has_carrier: bool | None = None
    speed_mbps: int | None = None
    is_loopback: bool = False
    kind: str | None = None
    master: str | None = None


def read_interfaces(host: Host) -> tuple[Interface, ...]:
    """Return all interfaces of this network namespace, eth2 before eth10."""
    found = host.networks()
    return tuple(_read_interface(host, name, found[name]) for name in sorted(found, key=natural_order))


def _read_interface(host: Host, name: str, addresses: tuple[tuple[str, int | None], ...]) -> Interface:
    folder = f"{NET}/{name}"
    flags = attempt(int, host.read_line(f"{folder}/flags") or "", 16)
    carrier = host.read_number(f"{folder}/carrier")
    speed = host.read_number(f"{folder}/speed")
    master = host.read_link(f"{folder}/master")
    return Interface(
        name=name,
        addresses=addresses,
        is_up=None if flags is None else bool(flags & IFF_UP),
        has_carrier=None if carrier is None else bool(carrier),
        speed_mbps=speed if speed and speed < SPEED_LIMIT_MBPS else None,
        is_loopback=_only_loops(addresses) if flags is None else bool(flags & IFF_LOOPBACK),
        kind=_read_kind(host, folder),
        master=master.rpartition("/")[2] if master else None,
    )


def read_routes(host: Host) -> dict[str, tuple[str, ...]]:
    """Return the networks that each interface leads to, e.g. ``("default", "10.0.0.0/24")``.

    They are in the order of the main routing table. IPv6 routes for one link or this node only are left out.
    """
    found: dict[str, dict[str, None]] = {}
    lines = [*_lines(host, ROUTES, _parse_route), *_lines(host, ROUTES_6, _parse_route_6)]
    for name, network in lines:
        found.setdefault(name, {})[network] = None
    return {name: tuple(networks) for name, networks in found.items()}


def _lines(
    host: Host, path: str, parse: Callable[[list[str]], tuple[str, str] | None]
) -> Iterable[tuple[str, str]]:
    for line in (host.read_text(path) or "").splitlines():
        route = attempt(parse, line.split())  # None for the header line, and for a malformed one
        if route is not None and len(route[0]) < 16 and route[0].isprintable():
            yield route


def _parse_route(words: list[str]) -> tuple[str, str] | None:
    """Return (interface, network) of a line: name, destination, gateway, flags, ..., mask (the eighth)."""
    if len(words) < 8:
        return None
    destination, flags, mask = (int(words[place], 16) for place in (1, 3, 7))
    if not flags & RTF_UP or flags & RTF_REJECT:
        return None
    if not (0 <= destination < 1 << 32 and 0 <= mask < 1 << 32):
        return None
    address, netmask = (ipaddress.IPv4Address(one.to_bytes(4, "little")) for one in (destination, mask))
    network = ipaddress.ip_network(f"{address}/{netmask}", strict=False)
    return words[0], _name_network(network)


def _parse_route_6(words: list[str]) -> tuple[str, str] | None:
    """Return (interface, network) of a line: destination, prefix length, ..., flags, interface."""
    if len(words) < 10 or words[0].startswith(LINK_LOCAL) or words[9] == "lo":
        return None
    length, flags = int(words[1], 16), int(words[8], 16)
    if not flags & RTF_UP or flags & RTF_REJECT or length == 128:
        return None
    network = ipaddress.ip_network((bytes.fromhex(words[0]), length), strict=False)
    return words[9], _name_network(network)


def _name_network(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> str:
    return DEFAULT if network.prefixlen == 0 else str(network)


def _only_loops(addresses: Iterable[tuple[str, int | None]]) -> bool:
    parsed = [_parse(address) for address, _ in addresses]
    return any(address is not None and address.is_loopback for address in parsed)


def _read_kind(host: Host, folder: str) -> str | None:
    number = host.read_number(f"{folder}/type")
    if number is None:
        return None
    words = (host.read_text(f"{folder}/uevent") or "").split()
    named = [kind for kind in DEVTYPES if f"DEVTYPE={kind}" in words]
    if named:
        return named[0]
    kind = KINDS_BY_ARP_TYPE.get(number, "other")
    is_virtual = "/virtual/" in (host.read_link(folder) or "")
    return "virtual" if is_virtual and kind != "loopback" else kind


def find_interface(interfaces: Iterable[Interface], address: str) -> Interface | None:
    """Return the first interface with an address, in any notation of it; None for a name."""
    wanted = _parse(address)
    if wanted is None:
        return None
    owned = ((found, own) for found in interfaces for own, _ in found.addresses)
    return next((found for found, own in owned if _parse(own) == wanted), None)


def network_of(interface: Interface, address: str) -> str | None:
    """Return the narrowest network of an interface with an address, e.g. ``10.77.0.0/24``; None without one.

    Args:
        interface: The interface.
        address: Its own address, or one that it reaches without a router.
    """
    wanted = _parse(address)
    networks = [
        attempt(ipaddress.ip_network, f"{own}/{length}", strict=False) for own, length in interface.addresses
    ]  # None for an unknown length
    around = [network for network in networks if network and wanted is not None and wanted in network]
    return str(max(around, key=lambda network: network.prefixlen)) if around else None


def cluster_interface(
    host: Host, interfaces: Sequence[Interface], own: str | None, peers: Iterable[str] = ()
) -> Interface | None:
    """Return the interface that leads to the other nodes of the job, None if unknown.

    It is the interface with our address in the host list, or else the one that the kernel uses to reach a
    peer. It is never the loopback or a container bridge inside this node, because no other node could answer
    there.

    Args:
        host: The node, which finds routes and resolves names; a recorded one has only recorded routes.
        interfaces: All interfaces of this node.
        own: This node in the host list: an address or a name; None if unknown.
        peers: Addresses or names of other nodes, tried in order until one gives the answer.
    """
    for address in _own_addresses(host, own, peers):
        found = find_interface(interfaces, address)
        if found is not None and leads_out(found):
            return found
    return None


def _own_addresses(host: Host, own: str | None, peers: Iterable[str]) -> Iterable[str]:
    """Yield our addresses that other nodes may use, the most certain first; each may cost a name lookup."""
    if own is not None and _parse(own) is not None:
        yield own
    names = [own] if own is not None and _parse(own) is None else []
    for target in (*names, *peers):
        address = address_towards(host, target)
        if address is not None:
            yield address


def address_towards(host: Host, target: str) -> str | None:
    """Return the address from which we would reach a host, None if it has no address or no route."""
    if not host.is_recorded():
        address = host.reached[target] = host.ask_source(target)
        return address
    known = host.recorded("towards")
    recorded = known.get(target) if isinstance(known, dict) else None
    return recorded if isinstance(recorded, str) else None


def leads_out(interface: Interface) -> bool:
    """Whether an interface can lead to other nodes: not the loopback, not a container bridge."""
    return not interface.is_loopback and not interface.name.startswith(OF_THIS_MACHINE_ALONE)


def _parse(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address without its zone, a mapped one as IPv4; None if the text is not an address."""
    parsed = attempt(ipaddress.ip_address, address.partition("%")[0])
    return getattr(parsed, "ipv4_mapped", None) or parsed
